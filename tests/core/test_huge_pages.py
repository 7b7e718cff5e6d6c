"""Large wheels are in huge pages where the kernel makes them, and work without them."""

from __future__ import annotations

import ctypes
import mmap
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from common_fixtures import daemon_process
from daemons import Daemon, until
from wheeld_client import connect
from wheeld_core import _native

MIB, PAGE, COLLAPSE, THP_DISABLE = 1 << 20, 2 << 20, 25, 41
LARGE = _native.HUGE_CAPACITY
TIMERS = 300_000

daemon = daemon_process(started=False)


def kernel_makes_them() -> bool:
    """Asked without the code under test: a file of two pages somewhere has one that is aligned."""
    libc = ctypes.CDLL(None, use_errno=True)
    fd = os.memfd_create("huge")
    try:
        os.posix_fallocate(fd, 0, 2 * PAGE)
        with mmap.mmap(-1, 4 * PAGE) as room:
            begin = ctypes.addressof(view := ctypes.c_char.from_buffer(room))
            del view
            at = ctypes.c_void_p(-(-begin // PAGE) * PAGE)
            libc.mmap.restype = ctypes.c_void_p
            shared_fixed = mmap.MAP_SHARED | 0x10
            libc.mmap(at, ctypes.c_size_t(PAGE), 3, shared_fixed, fd, ctypes.c_long(0))
            return bool(libc.madvise(at, ctypes.c_size_t(PAGE), COLLAPSE) == 0)
    finally:
        os.close(fd)


needs_huge = pytest.mark.skipif(not kernel_makes_them(), reason="this kernel makes no huge pages")


@pytest.fixture
def file() -> Iterator[int]:
    fd = os.open("/dev/shm", os.O_TMPFILE | os.O_RDWR, 0o600)
    yield fd
    os.close(fd)


def reserved(fd: int) -> int:
    return 512 * os.fstat(fd).st_blocks


@pytest.mark.parametrize("size", [4096, PAGE - 4096, PAGE, PAGE + 4096, 5 * PAGE + 1])
def test_a_mapping_is_the_file_and_nothing_else(file: int, size: int) -> None:
    os.ftruncate(file, size)
    before = Path("/proc/self/maps").read_text().count("\n")
    memory = _native.Memory(file, size, True)
    words = np.frombuffer(memory, "u1")
    assert len(words) == size
    assert size < PAGE or words.ctypes.data % PAGE == 0
    words[-1] = 7
    assert os.pread(file, 1, size - 1) == b"\7"
    assert Path("/proc/self/maps").read_text().count("\n") <= before + 1
    del words, memory
    assert Path("/proc/self/maps").read_text().count("\n") <= before


@needs_huge
def test_pages_of_what_is_reserved_and_no_others(file: int) -> None:
    os.ftruncate(file, 9 * MIB)
    memory = _native.Memory(file, 9 * MIB, True)
    os.pwrite(file, b"kept", 3 * MIB)
    memory.make_huge(file, 3 * MIB, MIB + 1)  # touches the second and the third page
    assert reserved(file) == 2 * PAGE
    assert os.pread(file, 4, 3 * MIB) == b"kept"
    memory.make_huge(file, 8 * MIB, MIB)  # the last page has no 2 MiB
    assert reserved(file) == 2 * PAGE


HALF = """
mount --make-rprivate / 2>/dev/null || exit 77
mount -t tmpfs -o size=16m tmpfs /dev/shm || exit 77
exec "$0" -c "$1"
"""
IN_HALF = """
import os
from wheeld_core import _native
fd = os.open("/dev/shm/file", os.O_CREAT | os.O_RDWR)
os.ftruncate(fd, 14 << 20)
memory = _native.Memory(fd, 14 << 20, True)
memory.make_huge(fd, 0, 14 << 20)
print(512 * os.fstat(fd).st_blocks >> 20)
"""


@needs_huge
def test_half_of_the_file_system_is_left() -> None:
    command = ["unshare", "-m", "sh", "-c", HALF, sys.executable, IN_HALF]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    if done.returncode == 77 or "unshare" in done.stderr:
        pytest.skip(f"no private mounts here: {done.stderr.strip()}")
    assert (done.stdout, done.stderr) == ("10\n", "")  # the last one was made at exactly half


@needs_huge
def test_a_large_wheel_through_deaths(daemon: Daemon) -> None:
    daemon.start(capacity=2 * TIMERS)
    begun = daemon.status()
    more = (TIMERS - begun["slots_with_memory"]) * 64  # links and slots of these have more bytes
    least = begun["huge_bytes"] + more - 2 * PAGE
    assert begun["huge_bytes"] > 0
    assert more > 4 * PAGE
    with connect(str(daemon.directory), reconnect_for=20.0) as timers:
        ids = timers.schedule_many(np.full(TIMERS, 3600.0))
        until(lambda: daemon.status()["huge_bytes"] > least, "the clock to have linked")
        daemon.kill()
        daemon.start(capacity=2 * TIMERS)
        assert daemon.status()["huge_bytes"] > least
        assert daemon.status()["pending"] == TIMERS
        assert timers.cancel_many(ids).all()


def huge_kib_of_keys() -> int:
    """Of this process's mappings of the directory of keys."""
    parts = Path("/proc/self/smaps").read_text().split("/dev/shm/")
    keys = [part for part in parts if part.split(None, 1)[0].endswith("-keys")]
    return sum(int(part.split("ShmemPmdMapped:")[1].split()[0]) for part in keys)


@needs_huge
def test_the_directory_of_a_large_wheel(daemon: Daemon) -> None:
    daemon.start(capacity=2 * TIMERS)
    name = str(daemon.directory)
    with connect(name) as timers, connect(name) as other:
        head = huge_kib_of_keys()
        timers.schedule(3600.0, key="x" * 100)
        used, found = daemon.status()["shared_bytes"], huge_kib_of_keys()
        assert PAGE <= (found - head) << 10 <= 3 * PAGE, "two sets, and a room"
        assert other.find("x" * 100)
        assert daemon.status()["shared_bytes"] == used
        assert huge_kib_of_keys() - found >= PAGE >> 10, "it maps what is huge as that"
        assert timers.schedule_many([3600.0] * 1000, keys=list(range(1000))).all()


def test_a_small_wheel_has_none(daemon: Daemon) -> None:
    daemon.start(capacity=LARGE // 4)
    with connect(str(daemon.directory)) as timers:
        timers.schedule_many(np.full(LARGE // 8, 3600.0))
        timers.schedule(3600.0, key="k")
        assert daemon.status()["huge_bytes"] == huge_kib_of_keys() == 0


def test_a_kernel_that_refuses(daemon: Daemon) -> None:
    prctl, daemon.server = ctypes.CDLL(None).prctl, None
    assert prctl(THP_DISABLE, 1, 0, 0, 0) == 0  # the daemon inherits it, and its clock
    try:
        daemon.start(capacity=2 * TIMERS)
    finally:
        prctl(THP_DISABLE, 0, 0, 0, 0)
    with connect(str(daemon.directory)) as timers:
        ids = timers.schedule_many(np.full(TIMERS, 3600.0))
        assert daemon.status()["huge_bytes"] == 0
        assert timers.cancel_many(ids).all()
