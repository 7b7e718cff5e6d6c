"""check_and_complete_many: many keys in one call, in all workers; and what keys may be."""

from typing import Any

import numpy as np
import pytest

from local_wheel import LocalTimers, LocalWheel
from purgatory_ops import Op, Scripted, WatchView, readable, watch_all
from wheeld_client import ClientClosed, Purgatory


@pytest.fixture
def purgatory(timers: LocalTimers) -> Purgatory:
    return Purgatory(timers, "fetch")


@pytest.mark.parametrize("kind", [list, tuple, iter])
def test_all_keys_in_one_call(purgatory: Purgatory, kind: type) -> None:
    log: list[Any] = []
    ops = [Op(1.0, i, log=log) for i in range(20)]
    for op in ops:
        purgatory.try_complete_else_watch(op, [("k", op.name)])
        op.ready = True
    wanted = [13, 2, 17, 5, 3, 7, 11, 19, 1, 0]
    assert purgatory.check_and_complete_many(kind([("k", i) for i in wanted])) == len(wanted)
    assert log == wanted
    assert purgatory.num_delayed == 10


def test_each_operation_is_asked_once(purgatory: Purgatory) -> None:
    ops = [Op(1.0) for _ in range(50)]
    keys = [("k", i) for i in range(30)]
    watch_all(purgatory, ops, keys)
    for op in ops:
        op.tries = 0
    assert purgatory.check_and_complete_many([*keys, *keys]) == 0
    assert {op.tries for op in ops} == {1}
    assert purgatory.check_and_complete(("k", 3)) == 0
    assert len(purgatory.cancel_for_key(("k", 4))) == 50
    assert {op.tries for op in ops} == {2}


def test_no_keys_and_wrong_keys(purgatory: Purgatory) -> None:
    op = Op(1.0)
    purgatory.try_complete_else_watch(op, ["k"])
    op.ready = True
    assert purgatory.check_and_complete_many([]) == 0
    for wrong in (["k", 1.5], ["k", ("k", ())], ["k", None], "k", b"k", 5):
        with pytest.raises(TypeError):
            purgatory.check_and_complete_many(wrong)
    assert op.state == "waiting"
    assert purgatory.check_and_complete_many(["k"]) == 1
    purgatory.shutdown()
    with pytest.raises(ClientClosed):
        purgatory.check_and_complete_many(["k"])


def test_errors_harm_no_other(purgatory: Purgatory) -> None:
    ops = [Op(1.0, i) for i in range(6)]
    for op in ops:
        purgatory.try_complete_else_watch(op, [("k", op.name)])
        op.ready = True
    keys = [("k", i) for i in range(6)]
    ops[1].error = ZeroDivisionError()
    with pytest.raises(ZeroDivisionError):
        purgatory.check_and_complete_many(keys[:3])
    assert [op.state for op in ops[:3]] == ["completed", "waiting", "completed"]
    ops[4].error = KeyError()
    with pytest.raises(ExceptionGroup) as caught:
        purgatory.check_and_complete_many(keys)
    assert [type(error) for error in caught.value.exceptions] == [ZeroDivisionError, KeyError]
    assert purgatory.num_delayed == 2


def test_check_inside_a_check(purgatory: Purgatory) -> None:
    keys = [("k", i) for i in range(9)]
    others = [Op(1.0) for _ in range(5)]

    def look(op: Scripted) -> bool:
        if op.tries == 3:
            purgatory.check_and_complete_many(keys)
        return False

    watch_all(purgatory, [Scripted(look, 1.0)], keys)
    watch_all(purgatory, others, keys)
    for op in others:
        op.ready = True
    purgatory.check_and_complete_many(keys)
    assert [op.ran for op in others] == [["complete"]] * 5


def test_other_workers(wheel: LocalWheel, purgatory: Purgatory) -> None:
    other = wheel.worker(1)
    theirs = Purgatory(other, "fetch")
    keys = [("k", i) for i in range(200)]
    alone = [Op(1.0, i) for i in range(200)]
    for op in alone:
        theirs.try_complete_else_watch(op, [("k", op.name)])
    under_all = Op(1.0)
    theirs.try_complete_else_watch(under_all, keys)
    for op in alone:
        op.ready = True
    assert not readable(other)  # it waits for its bell
    assert purgatory.check_and_complete_many(keys) == 0
    assert readable(other)
    assert {op.state for op in alone} == {"waiting"}
    other.dispatch()
    assert {op.state for op in alone} == {"completed"}
    assert (under_all.tries, under_all.state) == (3, "waiting")
    assert not readable(other)


def test_all_are_marked_before_the_first_is_rung_for(wheel: LocalWheel) -> None:
    checker, *others = (wheel.worker(row) for row in range(3))
    ops, theirs = [Op(None), Op(None)], [Purgatory(timers, "fetch") for timers in others]
    for op, purgatory, key in zip(ops, theirs, "ab", strict=True):
        purgatory.try_complete_else_watch(op, [key])
        purgatory.timers.fileno()  # it sleeps
        op.ready = True
    view = WatchView(wheel.shared("watch"))

    class Killed(BaseException):
        """Instead of a death: what comes after it does not happen."""

    seen: list[tuple[int, bool, bool]] = []

    def open_bell(row: int) -> int:
        noted, marked = view.rows["everything"][0] != 0, view.rows["any"][1:3].all()
        seen.append((row, bool(noted), bool(marked)))
        raise Killed

    checker._open_bell = open_bell  # type: ignore[method-assign]
    with pytest.raises(Killed):
        Purgatory(checker, "fetch").check_and_complete_many(["a", "b"])
    assert seen[0] == (1, True, True)
    assert view.rows["everything"][0] == 0
    for op, timers in zip(ops, others, strict=True):
        timers.dispatch()
        assert op.is_completed


# -- keys --------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [0, 7, -3, 2**40])
def test_integers_of_numpy(purgatory: Purgatory, number: int) -> None:
    for kind in (np.int64, np.array, np.uint64 if number >= 0 else np.int64):
        theirs = kind(number)
        for watched, checked in ((theirs, number), (number, theirs)):
            for wrap in (lambda key: key, lambda key: ("topic", key)):
                op = Op(1.0)
                purgatory.try_complete_else_watch(op, [wrap(watched)])
                op.ready = True
                assert purgatory.check_and_complete(wrap(checked)) == 1
    op = Op(1.0)
    purgatory.try_complete_else_watch(op, np.arange(5))
    op.ready = True
    assert purgatory.check_and_complete(4) == 1


def test_what_is_no_integer(purgatory: Purgatory) -> None:
    for wrong in (np.float64(1.0), np.arange(2), np.array([1.5, 2]), ("k", np.float32(2)), 1j):
        with pytest.raises(TypeError, match="expected str, bytes, int"):
            purgatory.check_and_complete(wrong)


def test_what_an_index_raises(purgatory: Purgatory) -> None:
    class Broken:
        def __index__(self) -> int:
            raise OSError("no")

    with pytest.raises(OSError, match="no"):
        purgatory.check_and_complete(Broken())
