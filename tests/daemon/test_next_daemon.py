"""A daemon that is stopped for good: clients with `on_reconnect` go on with the next one."""

import asyncio
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from children import in_child, receive
from common_fixtures import daemon_process
from daemons import LONG, Daemon, until
from wheeld_client import (
    AsyncPurgatory,
    AsyncTimers,
    ClientClosed,
    DaemonNotRunning,
    DelayedOperation,
    MemoryPool,
    Purgatory,
    Reconnection,
    Timers,
    connect,
)

daemon = daemon_process("--pool", "p=1M", max_workers=6)


def again(daemon: Daemon, **options: object) -> None:
    daemon.stop()
    daemon.start(pool="p=1M", **options)


def test_a_client_goes_on(daemon: Daemon) -> None:
    """The same object is a worker of the next daemon, and says what was lost; ids from before are
    nobody's."""
    events: list[Reconnection] = []
    with (
        connect(str(daemon.directory), reconnect_for=LONG) as victim,
        connect(
            str(daemon.directory), worker="w", reconnect_for=LONG, on_reconnect=events.append
        ) as timers,
    ):
        old = timers.schedule_many([1000.0] * 100)
        token = timers.wheel_token
        again(daemon)
        with pytest.raises(DaemonNotRunning, match="stopped"):
            victim.schedule(1.0)
        with connect(str(daemon.directory)) as other:
            innocent = other.schedule_many([1000.0] * 300)
            fired = timers.schedule(0.0, 7)
            assert receive(timers, 1)["timer_id"].tolist() == [fired]
            assert not timers.cancel_many(old).any()
            assert [timers.reschedule(int(id), 1.0) for id in old[:3]] == [False] * 3
            assert not set(old.tolist()) & set(innocent.tolist())
            assert other.pending == 300
        (event,) = events
        assert (event.worker, event.lost, event.restored) == ("w", 100, 0)
        assert event.wheel_token == timers.wheel_token != token
        assert list(daemon.workers()) == ["w"]
        again(daemon)
        timers.schedule(1000.0)
        assert [event.lost for event in events] == [100, 0]
    until(lambda: daemon.workers() == {}, "left")


def test_who_waits_in_poll(daemon: Daemon) -> None:
    got: list[int] = []

    def back(event: Reconnection) -> None:
        timers.schedule_many([0.0, 0.0], [event.lost, 8])

    with connect(
        str(daemon.directory), worker="w", reconnect_for=LONG, on_reconnect=back
    ) as timers:
        timers.schedule_many([1000.0] * 5)

        def wait() -> None:
            while len(got) < 2:
                got.extend(timers.poll(None, 1)["cookie"].tolist())
            timers.schedule(0.0, 9)  # for the other one

        threads = [threading.Thread(target=wait) for _ in range(2)]
        for thread in threads:
            thread.start()
        again(daemon)
        for thread in threads:
            thread.join(LONG)
            assert not thread.is_alive()
        assert sorted(got)[:2] == [5, 8]


def test_restored_by_name(daemon: Daemon, tmp_path: Path) -> None:
    again(daemon, state_dir=tmp_path)
    events: list[Reconnection] = []
    with connect(
        str(daemon.directory), worker="w", reconnect_for=LONG, on_reconnect=events.append
    ) as timers:
        ids = timers.schedule_many([1000.0] * 10, range(10))
        handle = timers.call_later(1000.0, print)
        again(daemon, state_dir=tmp_path)
        assert timers.cancel(int(ids[3])) is True
        assert timers.reschedule(int(ids[4]), 0.0) is True
        assert receive(timers, 1)["cookie"].tolist() == [4]
        assert timers.pending == 8
        assert handle.cancel() is False
        (event,) = events
        assert (event.lost, event.restored, event.adopted) == (1, 10, True)


class Operation(DelayedOperation):
    """Waits for a word."""

    done = False

    def try_complete(self) -> bool:
        return self.done and self.force_complete()


def test_purgatories_and_pools_go_on(daemon: Daemon) -> None:
    events: list[Reconnection] = []
    with connect(
        str(daemon.directory), worker="w", reconnect_for=LONG, on_reconnect=events.append
    ) as timers:
        purgatory, pool = Purgatory(timers, "words"), MemoryPool(timers, "p")
        first, second = Operation(1000.0), Operation(0.0)
        purgatory.try_complete_else_watch(first, ["a"])
        buffer = pool.try_allocate(1000)
        again(daemon)
        timers.schedule(0.0)
        receive(timers, 1)
        assert events[0].operations == [first]
        assert first.state == "cancelled"
        purgatory.try_complete_else_watch(second, ["a"])
        until(lambda: timers.dispatch(0.05) is not None and second.is_expired, "expired")
        third = Operation(1000.0)
        purgatory.try_complete_else_watch(third, ["a"])
        third.done = True
        assert purgatory.check_and_complete("a") == 1
        assert pool.used == 0
        buffer.release()
        with pool.try_allocate(10):
            assert pool.used == 10
        assert pool.used == 0


def test_no_other_daemon(daemon: Daemon) -> None:
    """Calls wait for `reconnect_for` seconds and say why; those that may not wait say so at once;
    poll with a timeout returns; and a later call finds the daemon."""
    events: list[Reconnection] = []
    with connect(
        str(daemon.directory), worker="w", reconnect_for=0.2, on_reconnect=events.append
    ) as timers:
        daemon.stop()
        with pytest.raises(DaemonNotRunning, match="stopped"):
            timers.schedule(1.0, block=False)
        with pytest.raises(DaemonNotRunning, match="stopped"):
            _ = timers.pending
        assert len(timers.poll(0.01)) == 0
        with pytest.raises(DaemonNotRunning, match="no other accepted this client"):
            timers.schedule(1.0)
        with pytest.raises(DaemonNotRunning, match="no other accepted this client"):
            timers.poll(None)
        assert timers._over is False
        daemon.start()

        def found() -> bool:
            try:
                return timers.schedule(1000.0) > 0
            except DaemonNotRunning:
                return False

        until(found, "another daemon")
        assert len(events) == 1


def test_closed_while_it_waits(daemon: Daemon) -> None:
    timers = connect(str(daemon.directory), reconnect_for=LONG, on_reconnect=print)
    errors: list[BaseException] = []

    def call(what: str) -> None:
        try:
            timers.poll(None) if what == "poll" else timers.schedule(1.0)
        except ClientClosed as error:
            errors.append(error)

    daemon.stop()
    threads = [threading.Thread(target=call, args=(what,)) for what in ("poll", "schedule")]
    for thread in threads:
        thread.start()
    timers.close()
    for thread in threads:
        thread.join(LONG)
    assert len(errors) == 2


def test_a_forked_child_has_a_way_of_its_own(daemon: Daemon) -> None:
    events: list[Reconnection] = []
    with connect(
        str(daemon.directory),
        worker="w",
        after_fork="reconnect",
        reconnect_for=LONG,
        on_reconnect=events.append,
    ) as timers:
        daemon.stop()
        assert len(timers.poll(0.01)) == 0
        daemon.start(pool="p=1M")

        def work() -> list[object]:
            timers.schedule(0.0, 3)
            cookies = receive(timers, 1)["cookie"].tolist()
            return [*cookies, timers.worker.startswith("w-"), len(events)]

        assert in_child(work) == [3, True, 0]
        timers.schedule(0.0, 4)
        assert receive(timers, 1)["cookie"].tolist() == [4]
        assert timers.worker == "w"
        assert len(events) == 1


def test_many_threads_at_once(daemon: Daemon) -> None:
    """Calls of all kinds from several threads, through two stops: no thread is left behind, no
    timer of the last wheel is lost or doubled."""
    over = threading.Event()
    errors: list[BaseException] = []
    got: list[int] = []
    with connect(
        str(daemon.directory), worker="w", reconnect_for=LONG, on_reconnect=lambda event: None
    ) as timers:

        def work(seed: int) -> None:
            rng = np.random.default_rng(seed)
            try:
                while not over.is_set():
                    with suppress(DaemonNotRunning):  # it waited for the clock when that ended
                        ids = timers.schedule_many(rng.uniform(0.0, 0.02, 10))
                        timers.cancel_many(ids[::2])
                        timers.cancel(timers.schedule(10.0))
                    timers.poll(0.002)
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(3)]
        for thread in threads:
            thread.start()
        for _ in range(2):
            again(daemon)
            seen = daemon.status()["counters"]["fired"]
            until(lambda seen=seen: daemon.status()["counters"]["fired"] > seen + 20, "going on")
        over.set()
        for thread in threads:
            thread.join(LONG)
        assert errors == []
        last = timers.schedule_many(np.full(50, 0.1), np.arange(50) + 10_000)
        while len(got) < 50:
            events = timers.poll(LONG)
            got += [int(i) for i in events["timer_id"] if i in last]
        assert sorted(got) == sorted(last.tolist())
        assert timers.pending == 0


def test_a_fresh_wheel_over_a_killed_daemon(daemon: Daemon) -> None:
    events: list[Reconnection] = []
    with connect(
        str(daemon.directory), worker="w", reconnect_for=LONG, on_reconnect=events.append
    ) as timers:
        timers.schedule(1000.0)
        daemon.kill()
        daemon.start("--fresh", pool="p=1M")
        timers.schedule(0.0, 5)
        assert receive(timers, 1)["cookie"].tolist() == [5]
        assert [event.lost for event in events] == [1]


def test_on_a_loop(daemon: Daemon) -> None:
    """Who waits is told of the stop at once; who iterates goes on with the next daemon, whose first
    event a coroutine of the application arms."""
    told: list[Reconnection] = []

    async def main() -> None:
        async def back(event: Reconnection) -> None:
            told.append(event)
            await asyncio.sleep(0)
            timers.schedule(0.0, 44)

        async with AsyncTimers(
            str(daemon.directory), worker="w", reconnect_for=LONG, on_reconnect=back
        ) as timers:
            purgatory = AsyncPurgatory(timers, "words")
            waits = asyncio.create_task(purgatory.wait(Operation(1000.0), ["a"]))
            sleeps = asyncio.create_task(timers.sleep(1000.0))
            comes: asyncio.Task[Any] = asyncio.create_task(anext(timers))  # type: ignore[arg-type]
            await asyncio.sleep(0)
            await asyncio.get_running_loop().run_in_executor(None, daemon.stop)
            for task in (waits, sleeps):
                with pytest.raises(DaemonNotRunning, match="stopped"):
                    await asyncio.wait_for(task, LONG)
            with pytest.raises(DaemonNotRunning):
                timers.schedule(1.0)
            await asyncio.get_running_loop().run_in_executor(None, daemon.start)
            assert int((await asyncio.wait_for(comes, LONG))["cookie"]) == 44
            await timers.sleep(0.001)
            assert await purgatory.wait(Operation(0.001), ["a"]) is False
        assert [event.lost for event in told] == [2]

    asyncio.run(main())
    until(lambda: daemon.workers() == {}, "left")


async def test_a_loop_gives_up_and_comes_back(daemon: Daemon) -> None:
    told: list[Reconnection] = []
    async with AsyncTimers(
        str(daemon.directory), reconnect_for=0.1, on_reconnect=told.append
    ) as timers:
        comes: asyncio.Task[Any] = asyncio.create_task(anext(timers))  # type: ignore[arg-type]
        await asyncio.get_running_loop().run_in_executor(None, daemon.stop)
        with pytest.raises(DaemonNotRunning, match="no other accepted this client"):
            await asyncio.wait_for(comes, LONG)
        await asyncio.get_running_loop().run_in_executor(None, daemon.start)
        async with asyncio.timeout(LONG):
            while not told:  # noqa: ASYNC110 - another process brings it about
                await asyncio.sleep(0.01)
        await timers.sleep(0.001)


def test_options() -> None:
    with pytest.raises(TypeError, match="on_reconnect"):
        connect("x", on_reconnect=7)  # type: ignore[arg-type]
    assert Timers.__doc__
