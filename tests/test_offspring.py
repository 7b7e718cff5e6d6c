"""Child processes of the supervisor: each is collected once, by its end, whoever signals it."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading

import pytest

from daemons import is_running
from wheeld.offspring import Offspring
from wheeld.spawn import RECORDER


def start() -> Offspring:
    """A recorder that waits for its hello, which never comes."""
    return Offspring(RECORDER)


def end_unseen(pid: int) -> None:
    """End a process; nobody has collected it when this returns."""
    os.kill(pid, signal.SIGTERM)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)


def test_a_kill_of_one_that_has_just_ended(caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is said of an unknown child, and its exit code is the true one."""

    async def main() -> int | None:
        one = start()
        end_unseen(one.pid)
        one.kill()
        await one.end(60.0)
        one.channel.close()
        one.kill()
        await one.wait()
        return one.returncode

    with caplog.at_level(logging.WARNING):
        assert asyncio.run(main()) == -signal.SIGTERM
    assert caplog.text == ""


def test_no_thread_waits_for_it() -> None:
    """There may be no room for one when a clock has to be replaced."""

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
    """The process that was started already is gone, and so are both ends of the channel."""

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
