"""Memory for slots as they are needed: nobody claims a slab without, nobody touches one, and where
there is no more the wheel is full."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from test_free_list import clock_beside

from common_fixtures import daemon_process
from daemons import Daemon
from fsck_wheels import check, damaged
from local_wheel import DROP, KEEP, LocalTimers, LocalWheel
from punctual import sub_tail
from wheeld_client import WheelFull, connect
from wheeld_core import _native
from wheeld_core.views import record

SLAB = 64
PAYLOAD = 4096
"""So large that a few slabs are a step."""
STEP = 3
CAPACITY = 32 * SLAB


def a_wheel(backed: int = 2) -> LocalWheel:
    return LocalWheel(CAPACITY, 4, payload_bytes=PAYLOAD, homes=True, backed=backed)


def backed(wheel: LocalWheel) -> int:
    return int(wheel.view.header["backed"])


def untouched(wheel: LocalWheel) -> bool:
    for fd, spans in zip(
        wheel.growing, _native.spans(backed(wheel), CAPACITY // SLAB, **wheel.config), strict=True
    ):
        for offset, size in spans:
            begin, end = -(-offset // 4096) * 4096, (offset + size) // 4096 * 4096
            if begin < end and os.lseek(fd, begin, os.SEEK_HOLE) != begin:
                return False
            try:
                if begin < end and os.lseek(fd, begin, os.SEEK_DATA) < end:
                    return False
            except OSError:  # there is no data behind it
                pass
    return True


def submit(wheel: LocalWheel, row: int, word: int) -> None:
    memory = wheel.worker_memories[row]
    tail, begin = sub_tail(wheel, row), int(record(memory, "worker")["sub_off"])
    np.frombuffer(memory, "u8", offset=begin)[int(tail[0]) % (1 << wheel.sizes["sub_bits"])] = word
    tail += 1


def schedule(wheel: LocalWheel, timers: LocalTimers, count: int) -> list[int]:
    with clock_beside(wheel, timers):
        return [timers.schedule(3600.0, number) for number in range(count)]


def test_one_by_one() -> None:
    with a_wheel() as wheel:
        timers = wheel.worker(0)
        assert wheel.slots.owners[backed(wheel) : CAPACITY // SLAB].any() == 0
        ids: list[int] = []
        for number in range(CAPACITY):
            before = backed(wheel)
            if number == before * SLAB:  # all that has memory is taken
                ids += schedule(wheel, timers, 1)
                least, most = before + STEP, before + before // 4 + 2 * STEP
                assert min(least, CAPACITY // SLAB) <= backed(wheel) <= most
            else:
                ids.append(timers.schedule(3600.0, number))
                assert backed(wheel) == before
            if number % 100 == 0:
                assert untouched(wheel)
        assert len(set(ids)) == CAPACITY
        assert timers.pending == CAPACITY
        wheel.settle()
        assert damaged(check(wheel)) == {}


def test_a_batch() -> None:
    with a_wheel() as wheel:
        timers = wheel.worker(0)
        with clock_beside(wheel, timers):
            timers.schedule_many(np.full(10 * SLAB, 3600.0))
        assert 10 <= backed(wheel) < 10 + 2 * STEP
        assert untouched(wheel)
        with clock_beside(wheel, timers), pytest.raises(WheelFull, match="larger --capacity"):
            timers.schedule_many(np.full(CAPACITY, 3600.0))
        assert timers.pending == 10 * SLAB


def test_whoever_looks_leaves_the_hole_alone() -> None:
    with a_wheel() as wheel:
        dead, successor, other = wheel.worker(0), wheel.worker(1), wheel.worker(2)
        schedule(wheel, dead, 5 * SLAB)
        schedule(wheel, other, 10)
        schedule(wheel, successor, 1)
        assert damaged(check(wheel)) == {}
        wheel.depart(0, DROP)
        wheel.settle()
        wheel.restart_clock()
        wheel.depart(2, KEEP)
        wheel.settle()
        assert damaged(check(wheel)) == {}
        assert len(wheel.slots.armed()) == 11
        assert (wheel.slots.owner_words(wheel.view) != 0).sum() >= 11
        assert untouched(wheel)
        assert backed(wheel) < CAPACITY // SLAB
        schedule(wheel, successor, CAPACITY - 12)


def test_a_slot_without_memory_is_nobodys() -> None:
    with a_wheel() as wheel:
        bad = wheel.worker(0)
        schedule(wheel, bad, 1)
        slab = backed(wheel) + 1
        wheel.scribbled = True
        wheel.slots.owners[slab] = wheel.slots.owners[0]
        submit(wheel, 0, 1 << 32 | slab * SLAB + 7)
        wheel.settle()
        assert wheel.view.ports["offences"][0] == 1
        wheel.restart_clock()
        assert "has an owner, and no memory" in str(damaged(check(wheel)))
        wheel.depart(0, DROP)
        wheel.settle()
        assert untouched(wheel)


def test_no_room() -> None:
    with a_wheel() as wheel:
        timers = wheel.worker(0)
        there = wheel.growing
        closed = os.open("/dev/null", os.O_RDONLY)  # fallocate fails, as on a full file system
        wheel.growing = closed, closed
        wheel.restart_clock()
        ids = schedule(wheel, timers, 2 * SLAB)
        with clock_beside(wheel, timers), pytest.raises(WheelFull, match="enlarge /dev/shm"):
            timers.schedule(3600.0)
        assert backed(wheel) == 2
        with clock_beside(wheel, timers):
            assert timers.cancel(ids[0])
            timers.schedule(3600.0)
        wheel.growing = there
        os.close(closed)
        wheel.restart_clock()
        schedule(wheel, timers, 1)
        assert backed(wheel) == 2 + STEP


def test_no_room_without_waiting() -> None:
    with a_wheel() as wheel:
        timers = wheel.worker(0)
        closed = os.open("/dev/null", os.O_RDONLY)
        there, wheel.growing = wheel.growing, (closed, closed)
        wheel.restart_clock()
        schedule(wheel, timers, 2 * SLAB)
        for expected in ("try again", "enlarge /dev/shm", "enlarge /dev/shm"):
            with pytest.raises(WheelFull, match=expected):
                timers.schedule(3600.0, block=False)
            wheel.settle()
        wheel.growing = there
        os.close(closed)


def test_a_clock_that_has_not_answered() -> None:
    with a_wheel() as wheel:
        timers = wheel.worker(0)
        wait = re.escape("has not answered yet; try again")
        schedule(wheel, timers, 2 * SLAB)  # all that has memory
        for _ in range(2):
            with pytest.raises(WheelFull, match=wait):
                timers.schedule(3600.0, block=False)
        wheel.settle()
        timers.schedule(3600.0, block=False)


def test_killed_before_it_is_said() -> None:
    with a_wheel() as wheel:
        timers = wheel.worker(0)
        for fd, spans in zip(wheel.growing, _native.spans(2, 4, **wheel.config), strict=True):
            for offset, size in spans:
                os.posix_fallocate(fd, offset, size)
        wheel.restart_clock()
        assert backed(wheel) == 2
        schedule(wheel, timers, 4 * SLAB)
        assert backed(wheel) == 2 + STEP
        wheel.settle()
        assert damaged(check(wheel)) == {}


# -- with a daemon -------------------------------------------------------------------------------


daemon = daemon_process(started=False)


SMALL = """
mount --make-rprivate / 2>/dev/null || exit 77
mount -t tmpfs -o size=32m tmpfs /dev/shm || exit 77
exec "$0" "$1"
"""
IN_SMALL = """
import wheeld
from wheeld.fsck import run as fsck
from wheeld_client import WheelFull, connect
with wheeld.embedded(capacity=1_000_000) as name, connect(name) as timers:
    ids = []
    try:
        while True:
            ids.append(timers.schedule(3600.0))
    except WheelFull as error:
        print(error)
    assert 100_000 < len(ids) < 1_000_000, len(ids)
    assert timers.pending == len(ids)
    assert fsck.run(str(name)).damage == 0
    assert timers.cancel_many(ids[::2]).all()
    for _ in ids[::2]:
        timers.schedule(3600.0)
    with connect(name, worker="late") as late:
        late.schedule(3600.0)
    print("went on with", timers.pending)
"""


def test_dev_shm_that_fills(tmp_path: Path) -> None:
    program = tmp_path / "fills.py"
    program.write_text(IN_SMALL)
    command = ["unshare", "-m", "sh", "-c", SMALL, sys.executable, str(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    if done.returncode == 77 or "unshare" in done.stderr:
        pytest.skip(f"no private mounts here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    assert "enlarge /dev/shm" in done.stdout
    assert "went on with" in done.stdout


def test_a_start_is_not_a_full_one(daemon: Daemon) -> None:
    for options, least, most in ((), 0.0, 0.5), (("--reserve",), 1.0, 1.0):
        daemon.start(*options, capacity=1_000_000)
        status = daemon.status()
        share = status["shared_bytes"] / status["shared_bytes_at_most"]
        assert least <= share <= most
        assert (status["slots_with_memory"] == 1_000_000) == bool(options)
        daemon.stop()


def test_reserved_when_it_is_taken_over(daemon: Daemon) -> None:
    daemon.start(capacity=1_000_000)
    with connect(str(daemon.directory), reconnect_for=20.0) as timers:
        timers.schedule(3600.0)
        daemon.kill()
        daemon.start("--reserve", capacity=1_000_000)
        assert daemon.status()["slots_with_memory"] == 1_000_000
        assert daemon.status()["pending"] == 1
        assert len(timers.schedule_many(np.full(500_000, 3600.0))) == 500_000


def test_restored_where_it_stood(tmp_path: Path, daemon: Daemon) -> None:
    states = ("--state-dir", str(tmp_path / "states"))
    daemon.start(*states, capacity=1_000_000)
    with connect(str(daemon.directory), worker="kept", on_death="keep") as timers:
        timers.schedule_many(np.full(400_000, 3600.0))
        last = timers.schedule(3600.0)
        assert (last & 0x3FFFFFFF) >= 400_000
    daemon.stop()
    daemon.start(*states, capacity=1_000_000)
    with connect(str(daemon.directory), worker="kept") as timers:
        assert timers.pending == 400_001
        assert daemon.status()["slots_with_memory"] > 400_000
        assert timers.cancel(last)
