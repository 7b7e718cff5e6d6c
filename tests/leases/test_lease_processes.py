"""Leases over processes that are killed at any moment: no lease is held twice."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import struct
from functools import partial
from pathlib import Path

from children import start_child
from common_fixtures import connected, daemon_process, shared_daemon
from daemons import LONG, Daemon
from wheeld_client import AsyncLease, AsyncTimers, Lease, Timers, connect

daemon = shared_daemon(max_workers=16)
own_daemon = daemon_process(max_workers=4)
timers = connected(worker="caller")


def hold(daemon: Daemon, witness: Path, writer: int) -> None:
    """Take and release; a lock of the kernel, which it frees at death, sees each second holder."""
    with connect(str(daemon.directory), worker=f"w{os.getpid()}") as mine:
        lease = Lease(mine, "witnessed", 3600)
        while lease.acquire():
            lock = os.open(witness, os.O_RDWR)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                token = lease.token
            except BlockingIOError:
                token = 0  # another one is there
            os.write(writer, struct.pack("=Q", token))
            os.close(lock)
            assert lease.release()


def test_no_lease_is_held_twice_under_kills(daemon: Daemon, tmp_path: Path) -> None:
    witness = tmp_path / "witness"
    witness.touch()
    reader, writer = os.pipe()
    work = partial(hold, daemon, witness, writer)
    crew = [start_child(work) for _ in range(3)]
    tokens: list[int] = []
    for killed in range(15):
        while len(tokens) < 20 * (killed + 1):
            tokens += [token for (token,) in struct.iter_unpack("=Q", os.read(reader, 800))]
        pid, answer = crew.pop(0)
        os.kill(pid, signal.SIGKILL)  # perhaps the holder: the others go on
        os.waitpid(pid, 0)
        os.close(answer)
        crew.append(start_child(work))
    for pid, answer in crew:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(answer)
    os.close(reader)
    os.close(writer)
    assert 0 not in tokens
    assert tokens == sorted(set(tokens))


def test_a_killed_holder_frees_it(daemon: Daemon, timers: Timers) -> None:
    reader, writer = os.pipe()

    def work() -> None:
        with connect(str(daemon.directory), worker="holder") as mine:
            assert Lease(mine, "killed", 3600).try_acquire()
            os.write(writer, b"x")
            signal.pause()

    pid, answer = start_child(work)
    assert os.read(reader, 1)
    lease = Lease(timers, "killed", 3600)
    assert not lease.try_acquire()
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    for descriptor in (reader, writer, answer):
        os.close(descriptor)
    assert lease.acquire(LONG)


def test_a_closed_holder_frees_it(daemon: Daemon, timers: Timers) -> None:
    with connect(str(daemon.directory), worker="closer") as other:
        held = Lease(other, "closed", 3600)
        assert held.try_acquire()
    assert not held.held
    assert Lease(timers, "closed", 3600).acquire(LONG)


def test_tokens_grow_over_a_killed_supervisor(own_daemon: Daemon) -> None:
    with connect(str(own_daemon.directory), worker="first") as timers:
        first = Lease(timers, "restarted", 3600)
        assert first.try_acquire()
    own_daemon.kill()
    own_daemon.start()
    with connect(str(own_daemon.directory), worker="second") as timers:
        second = Lease(timers, "restarted", 3600)
        assert second.acquire(LONG)
        assert second.token == first.token + 1


async def test_on_a_loop(daemon: Daemon) -> None:
    async with AsyncTimers(str(daemon.directory), worker="loop") as timers:
        one, two = (AsyncLease(timers, "loop", 3600) for _ in range(2))
        async with one:
            waiting = asyncio.create_task(two.acquire())
            assert not await two.acquire(0)
            assert not waiting.done()
        assert await waiting
        assert two.held
        assert two.token > one.token
