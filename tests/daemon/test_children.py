"""Child processes of the supervisor: each is collected once, by its end, whoever signals it."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest

from daemons import is_running
from wheeld.clock import guard as clock_guard
from wheeld.processes import spawn
from wheeld.processes.children import Child
from wheeld.processes.spawn import RECORDER
from wheeld_core.control import Message
from wheeld_core.errors import WheelError


def start() -> Child:
    return Child(RECORDER)


def end_unseen(pid: int) -> None:
    os.kill(pid, signal.SIGTERM)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


def test_a_kill_of_one_that_has_just_ended(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> int | None:
        one = start()
        end_unseen(one.pid)
        one.kill()
        await one.end(60.0)
        one.channel.close()
        one.kill()
        await one.end(60.0)
        return one.returncode

    with caplog.at_level(logging.WARNING):
        assert asyncio.run(main()) == -signal.SIGTERM
    assert caplog.text == ""


def test_no_thread_waits_for_it() -> None:
    async def main() -> tuple[int, int]:
        one = start()
        during = threading.active_count()
        await one.end(0.0)
        one.channel.close()
        return during, one.pid

    before = threading.active_count()
    during, pid = asyncio.run(main())
    assert during == before
    assert not is_running(pid)


def test_without_a_descriptor_for_it_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(pid: int) -> int:
        pids.append(pid)
        raise OSError(24, "Too many open files")

    async def main() -> None:
        before = sorted(os.listdir("/proc/self/fd"))
        with pytest.raises(OSError, match="Too many"):
            start()
        assert sorted(os.listdir("/proc/self/fd")) == before

    pids: list[int] = []
    monkeypatch.setattr(os, "pidfd_open", refuse)
    asyncio.run(main())
    assert not is_running(pids[0])


def tell_and_wait() -> None:
    channel = socket.socket(fileno=int(sys.argv[1]))
    mine = os.getsid(0) == os.getpid()
    there = [fd for fd in os.listdir("/proc/self/fd") if int(fd) > 2]
    channel.send(f"{mine} {sum(os.path.exists(f'/proc/self/fd/{fd}') for fd in there)}".encode())
    channel.recv(1)
    os._exit(0)


def test_one_that_was_forked_ahead() -> None:
    """Who asks first gets it, who comes next another; one that nobody asks for ends. Nothing that
    its parent has open is open there."""
    spawn.fork_ahead(RECORDER, tell_and_wait)
    early = spawn._ahead[RECORDER].process.pid
    assert spawn._ahead[RECORDER].channel.recv(99) == b"True 1"

    async def main() -> tuple[int, int]:
        first, second = start(), start()
        for one in (first, second):
            await one.end(0.0)
            one.channel.close()
        return first.pid, second.pid

    first, second = asyncio.run(main())
    assert first == early
    assert second != early
    spawn.fork_ahead(RECORDER, tell_and_wait)
    unused = spawn._ahead[RECORDER].process.pid
    spawn.end_unused()
    assert not is_running(unused)


@pytest.mark.parametrize(
    ("arguments", "needless"),
    [
        (["-m", "wheeld", "--private", '{"parent_pid": null}', "--check"], ("typer", "tempfile")),
        (["-m", "wheeld", "start", "--check"], ("wheeld.cli.checks", "wheeld.demo")),
        (
            ["-c", "import wheeld.clock.process"],
            ("asyncio", "numpy", "tempfile", "wheeld.supervisor.server"),
        ),
    ],
)
def test_what_a_start_does_not_load(arguments: list[str], needless: tuple[str, ...]) -> None:
    command = [sys.executable, "-P", "-X", "importtime", *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "wheeld" in loaded
    assert not loaded & {*needless, "wheeld_client", "wheeld_pipeline"}


READY: Message = {"op": "ready", "linked": 3, "skipped": [], "lock_file": [1, 2]}


class Clock:
    """Stands in for the resources and the link of a clock whose word comes after so many beats."""

    def __init__(self, beats: int | None, damage: str | None = None) -> None:
        self.ready: asyncio.Future[Message]
        self.header = np.zeros((), [("heartbeat", "i8")])
        self.wheel = self
        self.waits = 0
        self._beats, self._damage = beats, damage

    def damage(self) -> str | None:
        return self._damage

    async def wait(self, tasks: Any, **patience: Any) -> None:
        assert patience["timeout"] == clock_guard.START_SECONDS + clock_guard.LOCK_SECONDS
        await asyncio.sleep(0)
        self.waits += 1
        if self._beats is None or self.waits < self._beats:
            self.header["heartbeat"] += self._beats is not None
        else:
            self.ready.set_result(READY)


def first_word(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> Message:
    guard = clock_guard.ClockGuard.__new__(clock_guard.ClockGuard)
    guard._resources = clock  # type: ignore[assignment]

    async def main() -> Message:
        loop = asyncio.get_running_loop()
        guard._ready = clock.ready = loop.create_future()
        life = loop.create_future()
        with monkeypatch.context() as patches:
            patches.setattr(clock_guard.asyncio, "wait", clock.wait)
            return await guard._first_word(life)  # type: ignore[arg-type]

    return asyncio.run(main())


def test_a_long_recovery_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(100)
    assert first_word(monkeypatch, clock) == READY
    assert clock.waits == 100


@pytest.mark.parametrize(
    ("clock", "error", "words"),
    [
        (Clock(None), TimeoutError, None),
        (Clock(100, damage="the segment has 0 bytes"), WheelError, "0 bytes"),
    ],
)
def test_one_that_does_not_get_on_is_not(
    monkeypatch: pytest.MonkeyPatch, clock: Clock, error: type[Exception], words: str | None
) -> None:
    with pytest.raises(error, match=words):
        first_word(monkeypatch, clock)
    assert clock.waits == 1
