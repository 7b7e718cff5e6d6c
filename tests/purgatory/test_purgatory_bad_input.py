"""What a purgatory refuses, and that a refusal leaves everything as it was."""

import logging
import math
from collections.abc import Iterator
from typing import Any

import pytest

from common_fixtures import local_wheel
from local_wheel import LocalTimers, LocalWheel
from purgatory_ops import Op, Scripted, watch_all
from wheeld_client import DelayedOperation, Purgatory, WheelFull

NO_KEYS = [
    None,
    1.5,
    (),
    ((1,),),
    ("a", ("b",)),
    ("a", None),
    ["a"],
    {"a"},
    bytearray(b"a"),
    object,
]
"""What is no key."""


wheel = local_wheel(256)


def untouched(op: Op, purgatory: Purgatory, timers: LocalTimers) -> bool:
    left = (purgatory.watched, purgatory.num_delayed, timers.pending)
    return (op.state, op.ran, left) == ("new", [], (0, 0, 0))


# -- keys --------------------------------------------------------------------------------------


@pytest.mark.parametrize("keys", [[], (), set(), iter([])])
def test_no_keys(purgatory: Purgatory, timers: LocalTimers, keys: Any) -> None:
    op = Op(1.0, ready=True)
    with pytest.raises(ValueError, match="key"):
        purgatory.try_complete_else_watch(op, keys)
    assert op.tries == 0
    assert untouched(op, purgatory, timers)


@pytest.mark.parametrize("key", NO_KEYS, ids=repr)
def test_wrong_key(purgatory: Purgatory, timers: LocalTimers, key: Any) -> None:
    for keys in ([key], ["good", key], [key, "good"]):
        op = Op(1.0, ready=True)
        with pytest.raises(TypeError, match="key"):
            purgatory.try_complete_else_watch(op, keys)
        assert op.tries == 0
        assert untouched(op, purgatory, timers)
    with pytest.raises(TypeError, match="key"):
        purgatory.check_and_complete(key)
    with pytest.raises(TypeError, match="key"):
        purgatory.cancel_for_key(key)
    op = Op(1.0)
    purgatory.try_complete_else_watch(op, ["good"])
    assert purgatory.watched == 1


def test_key_that_is_no_text(purgatory: Purgatory, timers: LocalTimers) -> None:
    op = Op(1.0)
    with pytest.raises(ValueError):
        purgatory.try_complete_else_watch(op, ["good", "\ud800"])
    assert untouched(op, purgatory, timers)
    with pytest.raises(ValueError):
        purgatory.check_and_complete(("a", "\ud800"))


@pytest.mark.parametrize("keys", [None, 5, object()])
def test_keys_that_are_no_iterable(purgatory: Purgatory, timers: LocalTimers, keys: Any) -> None:
    op = Op(1.0)
    with pytest.raises(TypeError):
        purgatory.try_complete_else_watch(op, keys)
    assert untouched(op, purgatory, timers)


@pytest.mark.parametrize("keys", ["abc", b"abc"])
def test_one_key_in_place_of_keys(purgatory: Purgatory, timers: LocalTimers, keys: Any) -> None:
    op = Op(1.0)
    with pytest.raises(TypeError, match="key"):
        purgatory.try_complete_else_watch(op, keys)
    assert untouched(op, purgatory, timers)


def test_keys_that_raise(purgatory: Purgatory, timers: LocalTimers) -> None:
    def keys() -> Iterator[str]:
        yield "a"
        raise LookupError("no more")

    op = Op(1.0)
    with pytest.raises(LookupError):
        purgatory.try_complete_else_watch(op, keys())
    assert untouched(op, purgatory, timers)


# -- operations --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "timeout",
    [-1, -0.001, math.nan, math.inf, -math.inf, pytest.param(10**400, id="huge"), "1", b"", [], {}],
)
def test_wrong_timeout(timeout: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        Op(timeout)


@pytest.mark.parametrize("thing", [None, 5, "op", object(), DelayedOperation, Op])
def test_what_is_no_operation(purgatory: Purgatory, thing: Any) -> None:
    with pytest.raises(TypeError):
        purgatory.try_complete_else_watch(thing, ["a"])


def test_wrong_arguments(purgatory: Purgatory) -> None:
    calls: list[Any] = [
        lambda: purgatory.try_complete_else_watch(Op()),  # type: ignore[call-arg]
        lambda: purgatory.try_complete_else_watch(Op(), ["a"], 1),  # type: ignore[call-arg]
        purgatory.check_and_complete,  # type: ignore[call-arg]
        lambda: purgatory.check_and_complete("a", "b"),  # type: ignore[call-arg]
        purgatory.cancel_for_key,  # type: ignore[call-arg]
        lambda: Op().force_complete(1),  # type: ignore[call-arg]
    ]
    for call in calls:
        with pytest.raises(TypeError):
            call()


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
    watch_all(theirs, [bad, good], ["k"])
    bad.error, good.ready = ZeroDivisionError("bad"), True
    assert purgatory.check_and_complete("k") == 0
    with caplog.at_level(logging.ERROR, "wheeld"):
        theirs.timers.dispatch()
    assert "ZeroDivisionError" in caplog.text
    assert (bad.state, good.state) == ("waiting", "completed")
    seen: list[Any] = []
    theirs.exception_handler = lambda op, error: seen.append((op, type(error)))
    purgatory.check_and_complete("k")
    theirs.timers.dispatch()
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


def test_name_in_use(timers: LocalTimers, purgatory: Purgatory) -> None:
    with pytest.raises(ValueError, match="produce"):
        Purgatory(timers, "produce")
    op = Op(1.0)
    purgatory.try_complete_else_watch(op, ["a"])
    assert purgatory.cancel_for_key("a") == [op]


@pytest.mark.parametrize("name", [None, 5, b"bytes", ""])
def test_wrong_name(timers: LocalTimers, name: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        Purgatory(timers, name)


@pytest.mark.parametrize("thing", [None, 5, object()])
def test_timers_that_are_none(thing: Any) -> None:
    with pytest.raises(TypeError):
        Purgatory(thing, "p")
