"""Operations that are over before they are watched, or are cancelled by their own look."""

import queue
import threading

from local_wheel import SECOND, LocalTimers, LocalWheel
from purgatory_ops import Op, Scripted
from wheeld_client import Purgatory


def empty(purgatory: Purgatory, timers: LocalTimers) -> bool:
    return purgatory.watched == purgatory.num_delayed == timers.pending == 0


def test_completed_before_it_is_watched(purgatory: Purgatory, timers: LocalTimers) -> None:
    """False, as in Kafka: who makes an operation known first and has it watched then may come late.
    It is not asked, not watched and not counted, and its hook has run once."""
    op = Op(1.0, ready=True)
    assert op.force_complete() is True
    for _ in range(2):
        assert purgatory.try_complete_else_watch(op, ["a", "b"]) is False
    assert (op.ran, op.tries, op.state) == (["complete"], 0, "completed")
    assert empty(purgatory, timers)
    assert purgatory.metrics()["completed"] == 0


def test_checked_before_the_timeout_was_over(
    wheel: LocalWheel, purgatory: Purgatory, timers: LocalTimers
) -> None:
    theirs = Purgatory(wheel.worker(1), "produce")
    ops = [Op(0.010, number) for number in range(100)]
    for op in ops:
        purgatory.try_complete_else_watch(op, [("k", op.name)])
    for op in ops[::2]:
        op.ready = True
        theirs.check_and_complete(("k", op.name))
    wheel.advance(SECOND)
    timers.dispatch()
    assert [op.is_expired for op in ops] == [False, True] * 50
    assert [op.ran for op in ops[:2]] == [["complete"], ["complete", "expire"]]
    counts = purgatory.metrics()
    assert (counts["completed"], counts["expired"]) == (50, 50)
    assert empty(purgatory, timers)


def test_try_complete_that_cancels(purgatory: Purgatory, timers: LocalTimers) -> None:
    late = Scripted(lambda op: op.tries == 2 and op.cancel(), 1.0)
    assert purgatory.try_complete_else_watch(late, ["a"]) is False
    later = Scripted(lambda op: op.tries == 3 and op.cancel(), 1.0)
    assert purgatory.try_complete_else_watch(later, ["a"]) is False
    assert later.state == "waiting"
    assert purgatory.check_and_complete("a") == 0
    assert [(op.state, op.ran) for op in (late, later)] == [("cancelled", [])] * 2
    assert empty(purgatory, timers)
    counts = purgatory.metrics()
    assert (counts["completed"], counts["cancelled"]) == (0, 2)


def test_made_known_first_and_watched_then(
    wheel: LocalWheel, purgatory: Purgatory, timers: LocalTimers
) -> None:
    """Another thread gets each operation before it is watched: one of both completes it, and who
    comes late is told False. Nothing is left."""
    # Bounded: completers that lag behind would fill the wheel with what is not completed.
    known: queue.Queue[Op | None] = queue.Queue(maxsize=64)
    forced: list[bool] = []

    def complete() -> None:
        while (op := known.get()) is not None:
            forced.append(op.force_complete())

    completers = [threading.Thread(target=complete) for _ in range(2)]
    for thread in completers:
        thread.start()
    ops = [Op(1.0, number, ready=number % 2 == 0) for number in range(3000)]
    own = []
    try:
        for op in ops:
            known.put(op)
            own.append(purgatory.try_complete_else_watch(op, [op.name % 5]))
            wheel.settle()  # what is cancelled has to find room in the ring
    finally:
        for _ in completers:
            known.put(None)
        for thread in completers:
            thread.join()
    assert sum(own) + sum(forced) == len(ops) == len(forced)
    assert {(op.state, *op.ran) for op in ops} == {("completed", "complete")}
    assert empty(purgatory, timers)
