"""A purgatory's refusals leave everything as it was."""

import logging
import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from common_fixtures import local_wheel
from local_wheel import LocalTimers, LocalWheel
from purgatory_ops import Op, Scripted, watch_all
from wheeld_client import DelayedOperation, Purgatory, WheelFull

wheel = local_wheel(256)


# -- keys --------------------------------------------------------------------------------------


def keys_that_raise() -> Iterator[str]:
    yield "a"
    raise LookupError("no more")


NO_KEYS: list[Any] = [
    None, 1.5, (), ((1,),), ("a", ("b",)), ("a", None), ["a"], {"a"}, bytearray(b"a"), object,
    np.float64(1.0), np.arange(2), np.array([1.5, 2]), ("k", np.float32(2)), 1j,
]  # fmt: skip


@pytest.mark.parametrize(
    ("keys", "error", "why"),
    [(keys, ValueError, "key") for keys in ([], (), set(), iter([]))]
    + [(keys, TypeError, "key") for keys in ("abc", b"abc")]
    + [(keys, TypeError, "keys: got|object") for keys in (None, 5, object())]
    + [(["good", key], TypeError, "expected str, bytes, int") for key in NO_KEYS]
    + [([key, "good"], TypeError, "key") for key in NO_KEYS]
    + [(["good", "\ud800"], ValueError, "surrogates"), (keys_that_raise, LookupError, "no more")],
)
def test_wrong_keys(
    purgatory: Purgatory, timers: LocalTimers, keys: Any, error: type[Exception], why: str
) -> None:
    op = Op(1.0, ready=True)
    with pytest.raises(error, match=why):
        purgatory.try_complete_else_watch(op, keys() if callable(keys) else keys)
    assert op.tries == 0
    assert (op.state, op.ran) == ("new", [])
    assert (purgatory.watched, purgatory.num_delayed, timers.pending) == (0, 0, 0)


@pytest.mark.parametrize("key", NO_KEYS)
def test_wrong_key(purgatory: Purgatory, key: Any) -> None:
    for call in (purgatory.check_and_complete, purgatory.cancel_for_key):
        with pytest.raises(TypeError, match="key"):
            call(key)
    with pytest.raises(TypeError, match="key"), purgatory.changing("k", key):
        raise AssertionError("entered")


def test_wrong_key_among_many(purgatory: Purgatory) -> None:
    op = Op(1.0)
    purgatory.try_complete_else_watch(op, ["k"])
    op.ready = True
    for keys in (["k", 1.5], ["k", ("k", ())], ["k", None], "k", b"k", 5):
        with pytest.raises(TypeError):
            purgatory.check_and_complete_many(keys)  # type: ignore[arg-type]
    assert op.state == "waiting"
    assert purgatory.check_and_complete_many([]) == 0
    assert purgatory.check_and_complete_many(["k"]) == 1


# -- calls -------------------------------------------------------------------------------------

WRONG_CALLS: dict[str, tuple[type[Exception], Callable[[Any, Any], object]]] = {
    "no keys": (TypeError, lambda p, timers: p.try_complete_else_watch(Op())),
    "too much": (TypeError, lambda p, timers: p.try_complete_else_watch(Op(), ["a"], 1)),
    "no key": (TypeError, lambda p, timers: p.check_and_complete()),
    "two keys": (TypeError, lambda p, timers: p.check_and_complete("a", "b")),
    "no key to cancel": (TypeError, lambda p, timers: p.cancel_for_key()),
    "no text": (ValueError, lambda p, timers: p.check_and_complete(("a", "\ud800"))),
    "an index that raises": (OSError, lambda p, timers: p.check_and_complete(Broken())),
    "an argument": (TypeError, lambda p, timers: Op().force_complete(1)),  # type: ignore[call-arg]
    "its name": (ValueError, lambda p, timers: Purgatory(timers, p.name)),
    "no name": (ValueError, lambda p, timers: Purgatory(timers, "")),
} | {
    f"operation {thing!r}": (TypeError, lambda p, timers, thing=thing:  # type: ignore[misc]
                             p.try_complete_else_watch(thing, ["a"]))
    for thing in (None, 5, "op", object, DelayedOperation, Op)
} | {
    f"name {name!r}": (TypeError, lambda p, timers, name=name:  # type: ignore[misc]
                       Purgatory(timers, name))
    for name in (None, 5, b"bytes")
} | {
    f"timers {thing!r}": (TypeError, lambda p, timers, thing=thing:  # type: ignore[misc]
                          Purgatory(thing, "p"))
    for thing in (None, 5, object)
}  # fmt: skip


class Broken:
    def __index__(self) -> int:
        raise OSError("no")


@pytest.mark.parametrize("call", WRONG_CALLS)
def test_wrong_calls(purgatory: Purgatory, timers: LocalTimers, call: str) -> None:
    op = Op(1.0)
    purgatory.try_complete_else_watch(op, ["a"])
    error, wrong = WRONG_CALLS[call]
    with pytest.raises(error):
        wrong(purgatory, timers)
    assert (op.tries, op.state, purgatory.watched, timers.pending) == (2, "waiting", 1, 1)


@pytest.mark.parametrize(
    "timeout",
    [-1, -0.001, math.nan, math.inf, -math.inf, pytest.param(10**400, id="huge"), "1", b"", [], {}],
)
def test_wrong_timeout(timeout: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        Op(timeout)


class Careless(DelayedOperation):
    def __init__(self) -> None:
        pass

    def try_complete(self) -> bool:
        return False


@pytest.mark.parametrize(
    ("made", "error"), [(Careless, RuntimeError), (DelayedOperation, NotImplementedError)]
)
def test_operation_that_is_not_whole(
    purgatory: Purgatory, timers: LocalTimers, made: Any, error: type[Exception]
) -> None:
    op = made() if made is Careless else made(1.0)
    with pytest.raises(error, match="__init__" if made is Careless else "try_complete"):
        purgatory.try_complete_else_watch(op, ["a"])
    if made is Careless:
        with pytest.raises(RuntimeError, match="__init__"):
            op.force_complete()
    assert (purgatory.watched, timers.pending) == (0, 0)


def test_operation_watched_twice(purgatory: Purgatory, timers: LocalTimers) -> None:
    other = Purgatory(timers, "fetch")
    op = Op(1.0)
    purgatory.try_complete_else_watch(op, ["a"])
    for where in (purgatory, other):
        with pytest.raises(ValueError):
            where.try_complete_else_watch(op, ["a", "b"])
    assert (op.tries, op.state) == (2, "waiting")
    assert (purgatory.watched, other.watched, timers.pending) == (1, 0, 1)
    op.ready = True
    assert purgatory.check_and_complete("a") == 1
    assert op.ran == ["complete"]


def test_operation_that_is_completed(purgatory: Purgatory, timers: LocalTimers) -> None:
    elsewhere = Purgatory(timers, "elsewhere")
    op = Op(1.0)
    purgatory.try_complete_else_watch(op, ["a"])
    op.force_complete()
    for place in (purgatory, elsewhere):
        assert place.try_complete_else_watch(op, ["a"]) is False
    assert (op.tries, op.state, op.ran) == (2, "completed", ["complete"])
    assert (purgatory.watched, elsewhere.watched, timers.pending) == (0, 0, 0)


def test_operation_that_is_cancelled(purgatory: Purgatory) -> None:
    op = Op(1.0)
    purgatory.try_complete_else_watch(op, ["a"])
    purgatory.cancel_for_key("a")
    with pytest.raises(ValueError):
        purgatory.try_complete_else_watch(op, ["a"])
    assert (op.tries, op.state, purgatory.watched) == (2, "cancelled", 0)


def test_operation_that_was_not_initialised(purgatory: Purgatory, timers: LocalTimers) -> None:
    class Careless(DelayedOperation):
        def __init__(self) -> None:
            pass

        def try_complete(self) -> bool:
            return False

        def on_complete(self) -> None:
            pass

    op = Careless()
    with pytest.raises(RuntimeError, match="__init__"):
        purgatory.try_complete_else_watch(op, ["a"])
    with pytest.raises(RuntimeError, match="__init__"):
        op.force_complete()
    assert (purgatory.watched, timers.pending) == (0, 0)


def test_operation_without_try_complete(purgatory: Purgatory, timers: LocalTimers) -> None:
    op = DelayedOperation(1.0)
    with pytest.raises((NotImplementedError, TypeError)):
        purgatory.try_complete_else_watch(op, ["a"])
    assert (purgatory.watched, timers.pending) == (0, 0)


# -- try_complete that errs --------------------------------------------------------------------


@pytest.mark.parametrize("look", [1, 2])
def test_try_complete_raises_while_it_is_registered(
    purgatory: Purgatory, timers: LocalTimers, look: int
) -> None:
    """At the first or second look: the caller gets the error, the operation is not watched, others
    are untouched; it may be tried again."""
    other = Op(1.0)
    purgatory.try_complete_else_watch(other, ["a"])

    def script(op: Scripted) -> bool:
        if op.tries == look:
            raise ZeroDivisionError
        return False

    op = Scripted(script, 1.0)
    with pytest.raises(ZeroDivisionError):
        purgatory.try_complete_else_watch(op, ["a", "b"])
    assert (op.tries, op.ran, op.is_completed) == (look, [], False)
    assert (purgatory.watched, purgatory.num_delayed, timers.pending) == (1, 1, 1)
    assert (other.tries, other.state) == (2, "waiting")
    if op.state == "new":
        assert purgatory.try_complete_else_watch(op, ["a"]) is False
        assert purgatory.watched == 2


def test_try_complete_raises_in_a_check(purgatory: Purgatory, timers: LocalTimers) -> None:
    ops = [Op(1.0, i) for i in range(3)]
    watch_all(purgatory, ops, ["k"])
    ops[0].ready = ops[2].ready = True
    ops[1].error = ZeroDivisionError("bad")
    with pytest.raises(ZeroDivisionError, match="bad"):
        purgatory.check_and_complete("k")
    assert [op.state for op in ops] == ["completed", "waiting", "completed"]
    assert (purgatory.watched, purgatory.num_delayed, timers.pending) == (1, 1, 1)
    ops[1].error, ops[1].ready = None, True
    assert purgatory.check_and_complete("k") == 1


def test_several_raise_in_a_check(purgatory: Purgatory) -> None:
    ops = [Op(1.0, i) for i in range(4)]
    watch_all(purgatory, ops, ["k"])
    ops[0].error, ops[2].error = ZeroDivisionError("0"), KeyError("2")
    ops[1].ready = ops[3].ready = True
    with pytest.raises(ExceptionGroup) as caught:
        purgatory.check_and_complete("k")
    assert sorted(type(e).__name__ for e in caught.value.exceptions) == [
        "KeyError",
        "ZeroDivisionError",
    ]
    assert [op.state for op in ops] == ["waiting", "completed"] * 2


def test_interrupt_in_a_check(purgatory: Purgatory, timers: LocalTimers) -> None:
    ops = [Op(1.0), Op(1.0), Op(1.0)]
    watch_all(purgatory, ops, ["k"])
    for op in ops:
        op.ready = True
    ops[1].error = KeyboardInterrupt()
    with pytest.raises(BaseException) as caught:
        purgatory.check_and_complete("k")
    assert isinstance(caught.value, KeyboardInterrupt) or (
        isinstance(caught.value, BaseExceptionGroup)
        and caught.value.subgroup(KeyboardInterrupt) is not None
    )
    ops[1].error = None
    purgatory.check_and_complete("k")
    assert [op.ran for op in ops] == [["complete"]] * 3
    assert (purgatory.watched, timers.pending) == (0, 0)


def test_error_at_a_trigger_from_elsewhere(
    wheel: LocalWheel, purgatory: Purgatory, caplog: pytest.LogCaptureFixture
) -> None:
    theirs = Purgatory(wheel.worker(1), "produce")
    bad, good = Op(1.0), Op(1.0)
    watch_all(purgatory, [bad, good], ["k"])
    bad.error, good.ready = ZeroDivisionError("bad"), True
    assert theirs.check_and_complete("k") == 0
    with caplog.at_level(logging.ERROR, "wheeld"):
        purgatory.timers.dispatch()
    assert "ZeroDivisionError" in caplog.text
    assert (bad.state, good.state) == ("waiting", "completed")
    seen: list[Any] = []
    purgatory.exception_handler = lambda op, error: seen.append((op, type(error)))
    theirs.check_and_complete("k")
    purgatory.timers.dispatch()
    assert seen == [(bad, ZeroDivisionError)]


def test_true_without_completion(purgatory: Purgatory, timers: LocalTimers) -> None:
    op = Scripted(lambda op: True, 1.0)
    with pytest.raises(RuntimeError, match="force_complete"):
        purgatory.try_complete_else_watch(op, ["k"])
    assert (purgatory.watched, timers.pending) == (0, 0)
    op = Scripted(lambda op: op.tries > 2, 1.0)
    assert purgatory.try_complete_else_watch(op, ["k"]) is False
    with pytest.raises(RuntimeError, match="force_complete"):
        purgatory.check_and_complete("k")
    assert (op.state, purgatory.watched, timers.pending) == ("waiting", 1, 1)


def test_error_after_completion(purgatory: Purgatory, timers: LocalTimers) -> None:
    def script(op: Scripted) -> bool:
        if op.tries > 2:
            op.force_complete()
            raise ZeroDivisionError
        return False

    op = Scripted(script, 1.0)
    purgatory.try_complete_else_watch(op, ["a", "b"])
    with pytest.raises(ZeroDivisionError):
        purgatory.check_and_complete("a")
    assert (op.ran, op.state) == (["complete"], "completed")
    assert (purgatory.watched, timers.pending) == (0, 0)


# -- the wheel's refusals ----------------------------------------------------------------------


def test_full_wheel(purgatory: Purgatory, timers: LocalTimers) -> None:
    timers.schedule_many([1e6] * 256)  # all that there are
    op, unbounded = Op(1.0), Op(None)
    with pytest.raises(WheelFull):
        purgatory.try_complete_else_watch(op, ["a", "b"])
    assert (op.is_completed, op.ran) == (False, [])
    assert (purgatory.watched, purgatory.num_delayed, timers.pending) == (0, 0, 256)
    assert purgatory.try_complete_else_watch(unbounded, ["a"]) is False
    assert purgatory.watched == 1
