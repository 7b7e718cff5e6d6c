"""Clock, supervisor and daemon die: triggers go on, and operations time out all the same."""

import asyncio
import logging
import os
import signal
import threading

import pytest

import wheeld
from aio_time import ripple
from common_fixtures import connected, daemon_process
from daemons import Daemon, status_of, stopped, until
from purgatory_crew import LONG, NAME, Crew, once
from purgatory_ops import Hooked, Op
from wheeld_client import AsyncPurgatory, AsyncTimers, DaemonNotRunning, Purgatory, Timers, connect

daemon = daemon_process(max_workers=8)
timers = connected(worker="caller", reconnect_for=LONG)


@pytest.fixture
def purgatory(timers: Timers) -> Purgatory:
    return Purgatory(timers, NAME)


def test_clock_and_supervisor_die_meanwhile(
    daemon: Daemon, crew: Crew, timers: Timers, purgatory: Purgatory
) -> None:
    """Triggers need neither: they go on while both are gone. Timeouts come when they are back;
    nothing is lost or doubled, and the bits of those that live stay."""
    names = ["a", "b"]
    pids = [crew.watchers(name, list(range(60)), 3600.0) for name in names]
    impatient = crew.watchers("impatient", list(range(60, 80)), 1.0)
    view, rows = crew.view(), [crew.row(name) for name in names]
    watched = view.buckets(rows[0])

    def trigger(numbers: range, what: str) -> None:
        for number in numbers:
            crew.true[number] = 1
            purgatory.check_and_complete(number)
        wanted = 2 * numbers[-1] + 2
        until(lambda: sum(crew.facts("done").values()) >= wanted, what, 20)

    trigger(range(10), "at first")
    with stopped(daemon.clock_pid):
        trigger(range(10, 20), "without a clock that runs")
    daemon.kill_clock()
    trigger(range(20, 30), "with a new clock")
    daemon.kill()
    trigger(range(30, 40), "without a daemon")
    daemon.start()
    trigger(range(40, 50), "with a new daemon")
    crew.join(impatient)
    until(lambda: {"a", "b"} <= set(daemon.workers()), "taken up again")
    bits = [view.buckets(row) for row in rows]
    assert bits[0] == bits[1] < watched
    assert bits[0]
    trigger(range(50, 60), "at last")
    for pid in pids:
        crew.join(pid)
    assert crew.facts("done") == once(names, range(60))
    assert crew.facts("expired") == once(["impatient"], range(60, 80))
    assert view.watched() == 0
    timers.close()


def test_watcher_that_dies_while_the_supervisor_is_away(
    daemon: Daemon, crew: Crew, purgatory: Purgatory
) -> None:
    dead = crew.watchers("dead", list(range(50)))
    alive = crew.watchers("alive", list(range(25, 75)))
    row, view = crew.row("dead"), crew.view()
    bits = view.buckets(crew.row("alive"))
    daemon.kill()
    purgatory.check_and_complete(0)
    crew.kill(dead)
    daemon.start()
    crew.await_departure("dead")
    until(lambda: not view.buckets(row), "no bits of the dead")
    assert (view.marks(row), view.counter(row, "any")) == (set(), 0)
    assert view.buckets(crew.row("alive")) == bits
    assert view.watched() == len(bits)
    for number in range(25, 75):
        crew.true[number] = 1
        purgatory.check_and_complete(number)
    crew.join(alive)
    assert crew.facts("done") == once(["alive"], range(25, 75))


def test_background_dispatch_outlives_a_restart(
    daemon: Daemon, crew: Crew, caplog: pytest.LogCaptureFixture
) -> None:
    done, late = threading.Event(), Hooked(0.001)
    with (
        caplog.at_level(logging.ERROR, "wheeld"),
        connect(str(daemon.directory), worker="patient", reconnect_for=0.1) as timers,
    ):
        purgatory = Purgatory(timers, NAME)
        with timers.dispatching() as dispatcher:
            daemon.kill()
            until(lambda: "is waiting for the daemon" in caplog.text, "told", LONG)
            daemon.start()
            until(lambda: "patient" in daemon.workers(), "taken up again", LONG)
            purgatory.try_complete_else_watch(Hooked(0.001, expire=done.set), ["k"])
            assert done.wait(LONG)
            purgatory.try_complete_else_watch(late, ["k"])
            daemon.stop()
            until(lambda: not dispatcher.running, "ended", LONG)
    assert late.state in ("completed", "cancelled")


def test_trigger_just_before_a_worker_sleeps(
    daemon: Daemon, timers: Timers, purgatory: Purgatory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker has looked for work, found none, and will sleep; then another one marks a key for it
    and does not ring, as it is awake: it looks at its marks once more. (What happens in between is
    made to happen where it takes up its connection again.)"""
    with connect(str(daemon.directory), worker="sleepy", reconnect_for=LONG) as sleepy:
        op, asked = Op(None), []
        mine, reconnect = Purgatory(sleepy, NAME), sleepy._reconnect
        mine.try_complete_else_watch(op, ["k"])

        def reconnect_and_check() -> object:
            wait = reconnect()
            if wait is None and not asked:
                asked.append(True)
                op.ready = True
                purgatory.check_and_complete("k")
            return wait

        monkeypatch.setattr(sleepy, "_reconnect", reconnect_and_check)

        def work() -> None:
            while not op.is_completed:
                sleepy.dispatch(None)

        thread = threading.Thread(target=work)
        thread.start()
        daemon.kill()
        daemon.start()
        thread.join(20)
        missed = not op.is_completed
        op.force_complete()
        sleepy._wake()
        thread.join()
    assert asked
    assert not missed


@pytest.mark.parametrize("death", [signal.SIGTERM, signal.SIGKILL])
def test_async_waits_for_a_daemon_that_goes(death: int) -> None:
    async def main(name: str) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
        async with AsyncTimers(name, reconnect_for=0.2) as timers:
            purgatory = AsyncPurgatory(timers, "p")
            tasks = [
                asyncio.create_task(purgatory.wait(Op(timeout), ["k"]))
                for timeout in (1000.0, None)
            ]
            await ripple()
            os.kill(pid, death)
            done, _ = await asyncio.wait(tasks, timeout=60)
            assert len(done) == 2, "they wait for a daemon that is gone"
            assert all(isinstance(task.exception(), DaemonNotRunning) for task in done)

    with wheeld.embedded(capacity=64) as name:
        pid = status_of(name)["pid"]
        asyncio.run(main(name))


SOON = 0.05
"""Seconds; no test waits for less than it has to."""


def announced(timeout: float | None, over: threading.Event) -> Hooked:
    return Hooked(timeout, complete=over.set)


def give_up(timers: Timers) -> None:
    def dispatch() -> None:
        while True:
            timers.dispatch(SOON)

    with pytest.raises(DaemonNotRunning, match="not come back"):
        dispatch()


def test_timeouts_go_on(daemon: Daemon) -> None:
    with connect(str(daemon.directory), reconnect_for=LONG) as timers, timers.dispatching():
        purgatory = Purgatory(timers, "p")
        begun = [threading.Event() for _ in range(50)]
        early = [announced(SOON * (1 + n / 50), over) for n, over in enumerate(begun)]
        late, later = Op(None), threading.Event()
        for op in [*early, late]:
            purgatory.try_complete_else_watch(op, ["k"])
        daemon.kill()
        again = announced(SOON, later)
        purgatory.try_complete_else_watch(again, ["k"])  # it may come back: patience is not over
        assert all(over.wait(LONG) for over in [*begun, later])
        daemon.start()
        fresh = threading.Event()
        purgatory.try_complete_else_watch(announced(SOON, fresh), ["k"])
        assert fresh.wait(LONG)
        assert purgatory.num_delayed == 1
        late.ready = True
        assert purgatory.check_and_complete("k") == 1
    assert [op.ran for op in [*early, again]] == [["complete", "expire"]] * 51
    assert purgatory.metrics()["expired"] == 52


def test_gone_for_good(daemon: Daemon) -> None:
    with connect(str(daemon.directory), reconnect_for=SOON) as timers:
        purgatory = Purgatory(timers, "p")
        op, over = Op(None), threading.Event()
        purgatory.try_complete_else_watch(op, ["k"])
        late = announced(4 * SOON, over)
        purgatory.try_complete_else_watch(late, ["k"])
        daemon.kill()
        give_up(timers)
        for timeout in (1.0, None):
            refused = Op(timeout, ready=True)
            with pytest.raises(DaemonNotRunning, match="takes no operation"):
                purgatory.try_complete_else_watch(refused, ["k"])
            assert (refused.state, refused.tries) == ("new", 0)
        while not over.is_set():
            give_up(timers)
        assert (late.ran, late.is_expired) == (["complete", "expire"], True)
        op.ready = True
        assert purgatory.check_and_complete("k") == 1
        daemon.start()
        while timers._given_up:
            try:
                timers.dispatch(SOON)
            except DaemonNotRunning:
                continue
        assert purgatory.try_complete_else_watch(refused, ["k"]) is True


def test_background_thread_outlasts_it(daemon: Daemon) -> None:
    with (
        connect(str(daemon.directory), reconnect_for=SOON) as timers,
        timers.dispatching() as dispatcher,
    ):
        purgatory = Purgatory(timers, "p")
        over = [threading.Event() for _ in range(3)]
        for number, each in enumerate(over):
            purgatory.try_complete_else_watch(announced(SOON * 3 * number, each), ["k"])
        daemon.kill()
        assert all(each.wait(LONG) for each in over)
        assert dispatcher.running
        assert purgatory.num_delayed == 0


def test_stopped_with_operations(daemon: Daemon) -> None:
    with connect(str(daemon.directory)) as timers, timers.dispatching() as dispatcher:
        purgatory = Purgatory(timers, "p")
        over = threading.Event()
        purgatory.try_complete_else_watch(announced(3 * SOON, over), ["k"])
        purgatory.try_complete_else_watch(Op(None), ["k"])
        daemon.stop()
        assert over.wait(LONG)
        dispatcher._thread.join(LONG)
        assert not dispatcher.running
        with pytest.raises(DaemonNotRunning):
            purgatory.try_complete_else_watch(Op(1.0), ["k"])
        assert purgatory.num_delayed == 1


@pytest.mark.parametrize("patience", [SOON, LONG])
@pytest.mark.parametrize("how", ["kill", "stop"])
def test_on_a_loop(daemon: Daemon, how: str, patience: float) -> None:
    async def main() -> None:
        async with AsyncTimers(str(daemon.directory), reconnect_for=patience) as timers:
            purgatory = AsyncPurgatory(timers, "p")
            waits = [purgatory.begin(Op(SOON * number), ["k"]) for number in range(1, 7)]
            over = asyncio.Event()
            nobodys = Hooked(6 * SOON, complete=over.set)
            purgatory.try_complete_else_watch(nobodys, ["k"])
            await asyncio.to_thread(daemon.kill if how == "kill" else daemon.stop)
            told = await asyncio.gather(*waits, return_exceptions=True)
            assert all(one is False or isinstance(one, DaemonNotRunning) for one in told)
            if how == "kill" and patience == LONG:
                assert told == [False] * 6
            await over.wait()
            assert nobodys.ran in (["complete"], ["complete", "expire"])
            if timers._lost is not None:
                with pytest.raises(DaemonNotRunning):
                    await purgatory.wait(Op(1.0), ["k"])
                with pytest.raises(DaemonNotRunning):
                    purgatory.begin(Op(None), ["k"])
            assert purgatory.num_delayed == 0
            assert not purgatory._waiters

    asyncio.run(main())
