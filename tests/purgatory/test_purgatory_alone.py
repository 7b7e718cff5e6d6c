"""Operations whose daemon is gone time out by this process's clock; new ones are refused."""

import asyncio
import threading

import pytest

from common_fixtures import daemon_process
from daemons import LONG, Daemon
from purgatory_ops import Hooked, Op
from wheeld_client import AsyncPurgatory, AsyncTimers, DaemonNotRunning, Purgatory, Timers, connect

SOON = 0.05
"""Seconds; no test waits for less than it has to."""


daemon = daemon_process(capacity=4096, max_workers=4)


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
