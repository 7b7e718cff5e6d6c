"""Purgatories in dispatch, poll and the background dispatcher; what an interrupt loses there."""

import logging
import threading
from typing import Any

import pytest

from local_wheel import MS, LocalTimers, LocalWheel, cookies
from purgatory_ops import Hooked, Op, watch_all
from wheeld_client import ClientClosed, Purgatory

LONG = 60.0
"""Seconds that a test waits for another thread before it fails."""


def interrupt() -> None:
    raise KeyboardInterrupt


def test_poll_leaves_operations_to_dispatch(
    wheel: LocalWheel, purgatory: Purgatory, timers: LocalTimers
) -> None:
    op = Op(0.001)
    purgatory.try_complete_else_watch(op, ["k"])
    timers.schedule(0.001, 7)
    wheel.advance(MS)
    assert cookies(timers.poll()) == [7]
    assert op.ran == []
    assert len(timers.poll()) == 0
    assert len(timers.dispatch(None)) == 0  # returns at once: there is work
    assert op.ran == ["complete", "expire"]


def test_poll_leaves_triggers_to_dispatch(
    wheel: LocalWheel, purgatory: Purgatory, timers: LocalTimers
) -> None:
    op = Op(None)
    purgatory.try_complete_else_watch(op, ["k"])
    op.ready = True
    Purgatory(wheel.worker(1), "produce").check_and_complete("k")
    assert len(timers.poll(0.001)) == 0
    assert op.ran == []
    timers.dispatch(None)
    assert op.ran == ["complete"]


def test_max_events_bounds_expirations(
    wheel: LocalWheel, purgatory: Purgatory, timers: LocalTimers
) -> None:
    ops = [Op(0.001 * (1 + i)) for i in range(10)]
    watch_all(purgatory, ops, ["k"])
    wheel.advance(10 * MS)
    timers.dispatch(0.0, 4)
    assert [op.is_expired for op in ops] == [True] * 4 + [False] * 6
    timers.dispatch(0.0, 4)
    timers.dispatch()
    assert all(op.ran == ["complete", "expire"] for op in ops)


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("hook", ["complete", "expire"])
def test_interrupt_loses_nothing(
    wheel: LocalWheel,
    purgatory: Purgatory,
    timers: LocalTimers,
    kind: type[BaseException],
    hook: str,
) -> None:
    """Ctrl-C in a hook leaves dispatch; all else that fell due with it comes, now or with the next
    one."""

    def leave() -> None:
        raise kind

    ran: list[str] = []
    bad = Hooked(0.002, **{hook: leave})  # type: ignore[arg-type]
    ops = [Op(0.001), bad, Op(0.003)]
    watch_all(purgatory, ops, ["k"])
    timers.call_later(0.001, ran.append, "callback")
    timers.schedule(0.001, 9)
    wheel.advance(3 * MS)
    with pytest.raises(BaseException) as caught:
        timers.dispatch()
    assert caught.type is kind
    assert cookies(timers.dispatch()) == [9]
    assert ran == ["callback"]
    assert [op.is_expired for op in ops] == [True] * 3
    assert ops[0].ran == ops[2].ran == ["complete", "expire"]
    assert bad.ran[0] == "complete"
    assert (purgatory.watched, timers.pending) == (0, 0)


def test_interrupt_at_a_trigger_loses_none(
    wheel: LocalWheel, purgatory: Purgatory, timers: LocalTimers
) -> None:
    ops = [Op(None), Op(None), Op(None), Op(None)]
    watch_all(purgatory, ops[:3], ["k"])
    watch_all(purgatory, ops[3:], ["another key"])
    for op in ops:
        op.ready = True
    ops[1].error = KeyboardInterrupt()
    theirs = Purgatory(wheel.worker(1), "produce")
    for key in ("k", "another key"):
        theirs.check_and_complete(key)
    with pytest.raises(KeyboardInterrupt):
        timers.dispatch()
    timers.dispatch()
    assert [op.state for op in ops] == ["completed", "waiting", "completed", "completed"]


# -- in the background -------------------------------------------------------------------------


def test_dispatcher_hands_on_events(wheel: LocalWheel, timers: LocalTimers) -> None:
    seen: list[int] = []
    done = threading.Event()
    with timers.dispatching(lambda events: seen.extend(cookies(events))):
        timers.schedule(0.001, 5)
        timers.call_later(0.002, done.set)
        wheel.advance(2 * MS)
        assert done.wait(LONG)
    assert seen == [5]


def test_dispatcher_warns_of_events(
    wheel: LocalWheel, timers: LocalTimers, caplog: pytest.LogCaptureFixture
) -> None:
    done = threading.Event()
    with caplog.at_level(logging.WARNING, "wheeld"), timers.dispatching():
        timers.schedule(0.001, 5)
        timers.call_later(0.002, done.set)
        wheel.advance(2 * MS)
        assert done.wait(LONG)
    assert "1 expirations" in caplog.text


@pytest.mark.parametrize("error", [LookupError, SystemExit])
def test_dispatcher_survives_bad_handlers(
    wheel: LocalWheel, purgatory: Purgatory, timers: LocalTimers, error: type[BaseException]
) -> None:
    def bad(*anything: Any) -> None:
        raise error

    purgatory.exception_handler = timers.exception_handler = bad
    done = threading.Event()
    with timers.dispatching(bad) as dispatcher:
        timers.schedule(0.001)
        timers.call_later(0.001, bad)
        purgatory.try_complete_else_watch(Hooked(0.001, expire=bad), ["k"])
        wheel.advance(MS)
        purgatory.try_complete_else_watch(Hooked(0.001, expire=done.set), ["k"])
        wheel.advance(MS)
        while not done.wait(0.01):
            assert dispatcher.running


def test_dispatcher_ends_at_once_and_often(timers: LocalTimers) -> None:
    before = threading.active_count()
    for _ in range(200):
        with timers.dispatching() as dispatcher:
            pass
        assert not dispatcher.running
    assert threading.active_count() == before


def test_dispatcher_that_stops_itself(wheel: LocalWheel, timers: LocalTimers) -> None:
    dispatcher = timers.dispatching()
    dispatcher.start()
    timers.call_later(0.001, dispatcher.stop)
    wheel.advance(MS)
    dispatcher._thread.join(LONG)
    assert not dispatcher.running


def test_dispatcher_of_timers_that_close(wheel: LocalWheel, purgatory: Purgatory) -> None:
    timers: Any = purgatory.timers
    op = Op(1.0)
    purgatory.try_complete_else_watch(op, ["k"])
    with timers.dispatching() as dispatcher:
        timers.close()
        dispatcher._thread.join(LONG)
        assert not dispatcher.running
    assert op.state == "cancelled"
    with pytest.raises(ClientClosed):
        timers.dispatch()


@pytest.mark.parametrize("when", ["before a dispatch", "by a neighbour"])
@pytest.mark.parametrize("end", ["force", "check", "cancel", "shutdown"])
def test_a_due_operation_that_ends_otherwise_does_not_expire(
    wheel: LocalWheel, timers: LocalTimers, purgatory: Purgatory, when: str, end: str
) -> None:
    def end_others() -> None:
        for op in ops:
            op.ready = True
        if end == "force":
            for op in ops:
                op.force_complete()
        elif end == "check":
            purgatory.check_and_complete("k")
        elif end == "cancel":
            purgatory.cancel_for_key("k")
        else:
            purgatory.shutdown()

    ops = [Hooked(0.001, expire=end_others if when == "by a neighbour" else int) for _ in range(3)]
    for op in ops:
        assert not purgatory.try_complete_else_watch(op, ["k"])
    wheel.advance(MS)
    if when == "before a dispatch":
        end_others()
    timers.dispatch()
    timers.dispatch()
    expired = [op for op in ops if "expire" in op.ran]
    assert len(expired) == (when == "by a neighbour")
    completed = "complete" in ops[1].ran, "complete" in ops[2].ran
    assert completed == (True, True) if end in ("force", "check") else not any(completed)
    assert timers.pending == 0
