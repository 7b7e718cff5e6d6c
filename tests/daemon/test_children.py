"""Child processes of the supervisor: each is collected once, by its end, whoever signals it."""

import asyncio
import logging
import os
import signal
import socket
import subprocess
import sys
import threading

import pytest

from daemons import is_running
from wheeld.processes import spawn
from wheeld.processes.children import Child
from wheeld.processes.spawn import RECORDER


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
