"""Crowds at the control socket: in which order callers are heard, and who makes room."""

import asyncio
import contextlib
import socket
import subprocess
from collections.abc import Callable
from pathlib import Path

from daemons import Daemon, until
from wheeld.processes.callers import HEARD_AT_ONCE, Callers, OneForAll
from wheeld_client import connect

CROWD, HONEST = 1001, 1002


def dismissals() -> tuple[list[str], Callable[[str], Callable[[], None]]]:
    gone: list[str] = []
    return gone, lambda name: lambda: gone.append(name)


def test_users_take_turns() -> None:
    async def play() -> list[int]:
        callers, heard = Callers(), list[int]()

        async def say(uid: int) -> None:
            await callers.turn(uid)
            heard.append(uid)

        crowd = [asyncio.create_task(say(CROWD)) for _ in range(1000)]
        await asyncio.sleep(0)
        await asyncio.gather(asyncio.create_task(say(HONEST)), *crowd)
        return heard

    heard = asyncio.run(play())
    assert len(heard) == 1001
    assert heard.index(HONEST) <= 2 * HEARD_AT_ONCE


async def test_a_turn_that_nobody_waits_for_any_more_is_passed_over() -> None:
    callers = Callers()
    gone = asyncio.create_task(callers.turn(CROWD))
    left = asyncio.create_task(callers.turn(CROWD))
    await asyncio.sleep(0)
    gone.cancel()
    await left
    await callers.turn(HONEST)


def test_who_has_most_makes_room() -> None:
    callers = Callers()
    gone, dismiss = dismissals()
    with contextlib.ExitStack() as silent:
        silent.enter_context(callers.silent(HONEST, dismiss("honest")))
        with callers.silent(CROWD, first := dismiss("first")):
            silent.enter_context(callers.silent(CROWD, dismiss("second")))
            silent.enter_context(callers.silent(CROWD, dismiss("third")))
        silent.enter_context(callers.silent(CROWD, first))  # it has said something meanwhile
        assert [callers.make_room() for _ in range(4)] == [True] * 4
        assert gone[:2] == ["second", "third"]
        assert sorted(gone[2:]) == ["first", "honest"]
        assert not callers.make_room()
    assert not callers.make_room()


def test_one_look_is_for_all_who_ask() -> None:
    async def play() -> tuple[list[int], int]:
        looks: list[int] = []

        async def look() -> int:
            looks.append(len(looks) + 1)
            return looks[-1]

        status = OneForAll(look)
        found = await asyncio.gather(*[status.get() for _ in range(500)])
        return list(found), await status.get()

    found, later = asyncio.run(play())
    assert (set(found), later) == ({1}, 2)


def test_looks_take_a_part_of_the_time() -> None:
    async def play() -> list[float]:
        loop, now = asyncio.get_running_loop(), 100.0
        began: list[float] = []
        pauses: list[float] = []

        async def look() -> None:
            nonlocal now
            began.append(now)
            now += 1.0

        async def sleep(seconds: float) -> None:
            nonlocal now
            pauses.append(seconds)
            now += seconds

        status = OneForAll(look)
        real, loop.time = asyncio.sleep, lambda: now  # type: ignore[method-assign]
        asyncio.sleep = sleep  # type: ignore[assignment]
        try:
            for _ in range(3):
                await status.get()
        finally:
            asyncio.sleep = real
        assert pauses == [0.0, 3.0, 3.0]
        return began

    assert asyncio.run(play()) == [100.0, 104.0, 108.0]


def test_an_honest_one_comes_in_among_silent_ones(runtime_dir: Path, daemon_name: str) -> None:
    with Daemon(runtime_dir, daemon_name, max_workers=4) as daemon:
        daemon.start()
        command = ["prlimit", f"--pid={daemon.pid}", "--nofile=120:120"]
        subprocess.run(command, check=True)
        with contextlib.ExitStack() as stack:
            for _ in range(110):
                end = stack.enter_context(socket.socket(socket.AF_UNIX))
                end.connect(str(daemon.directory / "control.sock"))
            with connect(str(daemon.directory)) as timers:
                timers.schedule(0.0, 7)
                assert timers.poll(30.0)["cookie"].tolist() == [7]
        until(lambda: daemon.status()["workers"] == [], "left")
        daemon.stop()
        assert daemon.nothing_left()
