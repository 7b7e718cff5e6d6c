"""Calls into a purgatory from try_complete and from the hooks of its own operations."""

from collections.abc import Callable
from typing import Any

import pytest

from local_wheel import MS, LocalTimers, LocalWheel
from purgatory_ops import Hooked, Op, Scripted, watch_all
from wheeld_client import Purgatory

# -- from the hooks ----------------------------------------------------------------------------


def test_hook_that_checks_others(purgatory: Purgatory, timers: LocalTimers) -> None:
    ops: list[Hooked] = []

    def next_of(i: int) -> Callable[[], object]:
        def hook() -> None:
            if i + 1 < len(ops):
                ops[i + 1].ready = True
                assert purgatory.check_and_complete(i + 1) == 1

        return hook

    ops += [Hooked(1.0, i, complete=next_of(i)) for i in range(50)]
    for i, op in enumerate(ops):
        purgatory.try_complete_else_watch(op, [i])
    ops[0].ready = True
    assert purgatory.check_and_complete(0) == 1
    assert [op.ran for op in ops] == [["complete"]] * 50
    assert (purgatory.watched, timers.pending) == (0, 0)


def test_hook_that_watches_under_the_same_key(purgatory: Purgatory) -> None:
    born: list[Op] = []

    def hook() -> None:
        child = Hooked(1.0, len(born), complete=hook)
        born.append(child)
        assert purgatory.try_complete_else_watch(child, ["k"]) is False

    op = Hooked(1.0, complete=hook)
    purgatory.try_complete_else_watch(op, ["k"])
    op.ready = True
    assert purgatory.check_and_complete("k") == 1
    assert len(born) == 1
    assert (purgatory.watched, born[0].state) == (1, "waiting")


@pytest.mark.parametrize("what", ["check", "force", "cancel", "shutdown"])
@pytest.mark.parametrize("where", ["complete", "expire"])
def test_hook_that_ends_the_others(
    wheel: LocalWheel, purgatory: Purgatory, timers: LocalTimers, what: str, where: str
) -> None:
    ops: list[Op] = []
    returned: list[Any] = []

    def hook() -> None:
        if what == "check":
            for op in ops:
                op.ready = True
            purgatory.check_and_complete("k")
        elif what == "force":
            for op in ops:
                op.force_complete()
        elif what == "cancel":
            returned.extend(purgatory.cancel_for_key("k"))
        else:
            returned.extend(purgatory.shutdown())

    def another(i: int) -> Op:
        return Hooked(0.001, i, **{where: hook}) if i == 3 else Op(9.0, i)

    ops += [another(i) for i in range(7)]
    watch_all(purgatory, ops, ["k", "other"])
    if where == "expire":
        wheel.advance(MS)
        timers.dispatch()
    else:
        ops[3].ready = True
        assert purgatory.check_and_complete("k") == 1
    assert ops[3].ran == ["complete", "expire"][: 1 + (where == "expire")]
    others = [op for op in ops if op is not ops[3]]
    if what in ("check", "force"):
        assert [op.ran for op in others] == [["complete"]] * 6
    else:
        assert returned == others
        assert {op.state for op in others} == {"cancelled"}
        assert [op.ran for op in others] == [[]] * 6
    assert (purgatory.watched, purgatory.num_delayed, timers.pending) == (0, 0, 0)


def test_hook_that_completes_its_own_operation(purgatory: Purgatory) -> None:
    answers: list[Any] = []

    def hook() -> None:
        answers.append(op.force_complete())
        answers.append(purgatory.check_and_complete("k"))
        answers.append(purgatory.try_complete_else_watch(op, ["k"]))

    op = Hooked(1.0, complete=hook)
    purgatory.try_complete_else_watch(op, ["k"])
    assert op.force_complete() is True
    assert (answers, op.ran) == ([False, 0, False], ["complete"])
    assert purgatory.watched == 0


def test_hook_that_dispatches(wheel: LocalWheel, purgatory: Purgatory, timers: LocalTimers) -> None:
    ops: list[Op] = []
    refused: list[BaseException] = []

    def hook() -> None:
        try:
            timers.dispatch()
        except RuntimeError as error:
            refused.append(error)

    ops += [Hooked(0.001, i, expire=hook) for i in range(5)]
    watch_all(purgatory, ops, ["k"])
    wheel.advance(MS)
    timers.dispatch()
    assert [op.ran for op in ops] == [["complete", "expire"]] * 5
    assert (purgatory.watched, timers.pending) == (0, 0)


def test_hook_that_closes_the_timers(
    wheel: LocalWheel, purgatory: Purgatory, timers: LocalTimers
) -> None:
    ops = [Hooked(1.0, complete=timers.close), Op(1.0), Op(None)]
    watch_all(purgatory, ops, ["k"])
    for op in ops:
        op.ready = True
    assert purgatory.check_and_complete("k") == 1
    assert ops[0].ran == ["complete"]
    assert [op.state for op in ops[1:]] == ["cancelled"] * 2
    assert wheel.settle() == [0]


# -- from try_complete -------------------------------------------------------------------------


def test_try_complete_that_checks_others(purgatory: Purgatory) -> None:
    others = [Op(1.0, i) for i in range(3)]

    def script(op: Scripted) -> bool:
        for other in others:
            other.ready = op.tries > 2
        purgatory.check_and_complete("other")
        return False

    op = Scripted(script, 1.0)
    watch_all(purgatory, others, ["other"])
    purgatory.try_complete_else_watch(op, ["k"])
    assert purgatory.check_and_complete("k") == 0
    assert [other.ran for other in others] == [["complete"]] * 3
    assert (op.state, op.tries) == ("waiting", 3)


def test_try_complete_that_checks_its_own_key(purgatory: Purgatory, timers: LocalTimers) -> None:
    def script(op: Scripted) -> bool:
        purgatory.check_and_complete("k")
        return False

    looping, other = Scripted(script, 1.0), Op(1.0)
    with pytest.raises(RuntimeError, match="never end"):
        watch_all(purgatory, [looping], ["k"])
    assert (purgatory.watched, timers.pending) == (0, 0)
    purgatory.try_complete_else_watch(other, ["k"])
    other.ready = True
    assert purgatory.check_and_complete("k") == 1


def test_try_complete_that_checks_its_own_key_once(purgatory: Purgatory) -> None:
    def script(op: Scripted) -> bool:
        if op.tries == 3:
            purgatory.check_and_complete("k")
        return op.tries == 4 and op.force_complete()

    op = Scripted(script, 1.0)
    watch_all(purgatory, [op], ["k"])
    assert purgatory.check_and_complete("k") == 1
    assert (op.tries, op.ran) == (4, ["complete"])


@pytest.mark.parametrize("look", [1, 2, 3])
def test_try_complete_that_watches_itself(
    purgatory: Purgatory, timers: LocalTimers, look: int
) -> None:
    def script(op: Scripted) -> bool:
        if op.tries == look:
            purgatory.try_complete_else_watch(op, ["b"])
        return False

    op = Scripted(script, 1.0)
    if look == 3:
        purgatory.try_complete_else_watch(op, ["a"])
        with pytest.raises(ValueError):
            purgatory.check_and_complete("a")
    else:
        with pytest.raises(ValueError):
            purgatory.try_complete_else_watch(op, ["a"])
    left = purgatory.shutdown()
    assert len(left) <= 1
    assert (purgatory.watched, purgatory.num_delayed, timers.pending) == (0, 0, 0)


@pytest.mark.parametrize("look", [1, 2, 3])
@pytest.mark.parametrize("what", ["cancel", "shutdown"])
def test_try_complete_that_is_cancelled(
    purgatory: Purgatory, timers: LocalTimers, look: int, what: str
) -> None:
    returned: list[Any] = []

    def script(op: Scripted) -> bool:
        if op.tries == look:
            end = purgatory.shutdown if what == "shutdown" else purgatory.cancel_for_key
            returned.extend(end() if what == "shutdown" else end("a"))  # type: ignore[arg-type]
        return op.tries == look and op.force_complete()

    op = Scripted(script, 1.0)
    try:
        done = purgatory.try_complete_else_watch(op, ["a", "b"]) or (
            look == 3 and purgatory.check_and_complete("a") == 1
        )
    except (RuntimeError, ValueError):  # it cannot wait in a purgatory that was shut down
        done = op.is_completed
    assert len(returned) == (0 if done else 1)
    assert op.ran == (["complete"] if done else [])
    assert (purgatory.watched, purgatory.num_delayed, timers.pending) == (0, 0, 0)


def test_operations_that_wake_each_other(purgatory: Purgatory, timers: LocalTimers) -> None:
    calls = 0

    def script(other: str) -> Callable[[Scripted], bool]:
        def look(op: Scripted) -> bool:
            nonlocal calls
            calls += 1
            if op.tries > 2:
                purgatory.check_and_complete(other)
            return False

        return look

    a, b, bystander = Scripted(script("b"), 1.0), Scripted(script("a"), 1.0), Op(1.0)
    purgatory.try_complete_else_watch(a, ["a"])
    purgatory.try_complete_else_watch(b, ["b"])
    purgatory.try_complete_else_watch(bystander, ["a", "b"])
    with pytest.raises((RuntimeError, ExceptionGroup)):
        purgatory.check_and_complete("a")
    bystander.ready = True
    assert bystander.force_complete() is True
    assert sorted(map(id, purgatory.shutdown())) == sorted([id(a), id(b)])
    assert (purgatory.watched, timers.pending) == (0, 0)


def test_destructor_that_calls_the_purgatory(purgatory: Purgatory, timers: LocalTimers) -> None:
    made: list[Op] = []

    class Last(Op):
        def __del__(self) -> None:
            child = Op(1.0, "child")
            made.append(child)
            purgatory.try_complete_else_watch(child, ["k"])
            purgatory.check_and_complete("k")

    purgatory.try_complete_else_watch(Last(1.0, ready=False), ["k"])
    (op,) = purgatory.cancel_for_key("k")
    del op
    assert [child.state for child in made] == ["waiting"]
    assert (purgatory.watched, timers.pending) == (1, 1)
