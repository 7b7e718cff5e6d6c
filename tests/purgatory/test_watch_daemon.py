"""The daemon's part in the watch directory, and damage to the two segments that all
workers write."""

import contextlib
import mmap
import os
import signal
import subprocess
import sys

import pytest

from commands import well, wheeld_command
from common_fixtures import daemon_process
from daemons import Daemon, map_segment, until
from remotes import Remote
from shared_words import Shared
from strangers import group_name
from wheeld.config.pools import Pool
from wheeld.tables import sharing
from wheeld_client import WheelError, connect
from wheeld_core import _native, control
from wheeld_core.views import record

POOLS = ("--pool", "requests=64K", "--pool", "small=1000,strict,largest=100")
KINDS = (("watch", _native.KIND_WATCH), ("pools", _native.KIND_POOLS))


daemon = daemon_process(started=False, max_workers=70)


# -- what is told ------------------------------------------------------------------------------


def test_welcome_names_the_segments(daemon: Daemon) -> None:
    daemon.start(*POOLS)
    connection = control.Connection(daemon.directory)
    hello = {"layout": _native.LAYOUT_VERSION, "fingerprint": _native.FINGERPRINT}
    answer = connection.request("hello", worker="a", **hello)
    assert set(answer["segments"]) == {
        "wheel",
        "slots",
        "registry",
        "watch",
        "keys",
        "pools",
        "worker",
    }
    for kind, number in (("watch", _native.KIND_WATCH), ("pools", _native.KIND_POOLS)):
        memory = map_segment(answer["segments"][kind], number)
        assert int(record(memory, "head")["token"]) == answer["token"]
        assert daemon.segment_path(kind).name == answer["segments"][kind]
        assert daemon.segment_path(kind).stat().st_mode & 0o777 == 0o600
    connection.close()


def test_modes_for_a_group(daemon: Daemon) -> None:
    daemon.start(group=group_name())
    for kind, _ in KINDS:
        assert daemon.segment_path(kind).stat().st_mode & 0o777 == 0o660


def test_watched_buckets_are_told(daemon: Daemon) -> None:
    daemon.start()
    with contextlib.ExitStack() as stack:
        all_timers = [
            stack.enter_context(connect(str(daemon.directory), worker=f"w{i}")) for i in range(66)
        ]
        shared = Shared.of(daemon)
        counts = {"w0": 3, "w1": 1, "w63": 2, "w64": 5, "w65": 1}
        for name, count in counts.items():
            for bucket in range(count):
                shared.watch_bucket(daemon.workers()[name]["row"], 1000 * bucket + 7)
        workers = daemon.workers()
        assert {name: workers[name]["watched_buckets"] for name in workers} == {
            f"w{i}": counts.get(f"w{i}", 0) for i in range(66)
        }
        where = ("--name", daemon.name, "--runtime-dir", str(daemon.base))
        lines = well("status", *where).splitlines()
        assert next(line for line in lines if "w64 " in line).endswith("watches 5 buckets")
        assert not [line for line in lines if "w2 " in line and "watches" in line]
        all_timers[64].close()
        until(lambda: "w64" not in daemon.workers(), "gone")
        left = shared.watch.watched()
        assert left.sum() == 7
        assert left[workers["w64"]["row"]] == 0
    until(lambda: daemon.workers() == {}, "all gone")
    assert not shared.watch.directory.any()
    assert not shared.watch.rows["tenant"].any()


def test_marks_for_a_worker_that_is_gone(daemon: Daemon) -> None:
    daemon.start()
    shared = Shared.of(daemon)
    shared.mark(0, 5)
    with connect(str(daemon.directory)):
        assert set(shared.traces(0)) == {"watcher"}
        shared.mark(0, 6)
        daemon.kill()
        shared.mark(1, 7)
        daemon.start()
        assert set(shared.traces(0)) == {"watcher", "any", "dirty"}
        assert shared.traces(1) == {}


def test_killed_between_the_two_segments(daemon: Daemon) -> None:
    daemon.start(*POOLS)
    with Remote(daemon, worker="a") as a, Remote(daemon, worker="b"):
        shared = Shared.of(daemon)
        shared.use(0)
        shared.use(1)
        os.kill(daemon.pid, signal.SIGSTOP)
        a.kill()
        daemon.kill()
        _native.seat_watcher(map_segment(daemon.segment("watch"), _native.KIND_WATCH), 0, 0)
        daemon.start(*POOLS)
        until(lambda: list(daemon.workers()) == ["b"], "gone")
        assert shared.traces(0) == {}
        assert shared.used() == [100, 100]


# -- damage ------------------------------------------------------------------------------------


def scribble_heads(daemon: Daemon) -> None:
    for kind, number in (("watch", _native.KIND_WATCH), ("pools", _native.KIND_POOLS)):
        memory = map_segment(daemon.segment(kind), number)
        memory[:256] = b"\xff" * 256
        if kind == "pools":
            memory[256:384] = b"\xff" * 128


def test_heads_that_a_worker_has_overwritten(daemon: Daemon) -> None:
    daemon.start(*POOLS)
    with Remote(daemon, worker="a") as a, Remote(daemon, worker="b") as b:
        shared = Shared.of(daemon)
        shared.use(0)
        shared.use(1)
        scribble_heads(daemon)
        a.kill()
        until(lambda: list(daemon.workers()) == ["b"], "gone")
        assert (shared.used(), shared.traces(0)) == ([100, 100], {})
        scribble_heads(daemon)
        with connect(str(daemon.directory), worker="c"):
            assert Shared.of(daemon).pools.names() == ["requests", "small"]
        b.kill()
        until(lambda: daemon.workers() == {}, "gone, too")
        assert shared.used() == [0, 0]
    assert daemon.said().count("repaired") >= 4
    assert "Traceback" not in daemon.said()


@pytest.mark.parametrize("kind", ["watch", "pools"])
def test_removed_segment(daemon: Daemon, kind: str) -> None:
    daemon.start(*POOLS)
    daemon.segment_path(kind).unlink()
    with pytest.raises(Exception, match=f"{kind} was removed"):
        daemon.status()
    assert daemon.wait() == 1
    assert daemon.nothing_left()


SCRIBBLE = """
import sys, time
import numpy as np
from wheeld_client import connect
timers = connect(sys.argv[1], worker="hostile")
rng = np.random.default_rng(int(sys.argv[2]))
maps = [np.memmap(f"/dev/shm/{name}", "u8", "r+") for name in sys.argv[3:]]
print("ready", flush=True)
while True:
    for words in maps:
        for area in (words[:80], words):  # the head, and all of it
            area[rng.integers(0, len(area), 20)] = rng.integers(0, 2**64, 20, np.uint64)
"""


def test_worker_that_scribbles_over_all_of_it(daemon: Daemon, rng_seed: int) -> None:
    """The daemon serves on: workers come, die and go, commands answer. When the scribbler is gone
    the rows of those who leave are cleared as ever."""
    daemon.start(*POOLS)
    names = [daemon.segment(kind) for kind, _ in KINDS]
    command = [sys.executable, "-c", SCRIBBLE, str(daemon.directory), str(rng_seed), *names]
    hostile = subprocess.Popen(command, stdout=subprocess.PIPE)
    try:
        assert hostile.stdout is not None
        assert hostile.stdout.readline() == b"ready\n"
        for _ in range(2):
            with contextlib.suppress(WheelError):  # the head changes under its look
                connect(str(daemon.directory)).close()
            with Remote(daemon) as victim:
                victim.ask("timers.schedule(1000.0)")
            daemon.status()
            for check in ("fsck", "doctor"):
                done = wheeld_command(check, "--json", "--name", str(daemon.directory))
                assert "Traceback" not in done.stderr
    finally:
        hostile.kill()
        hostile.communicate()
    until(lambda: daemon.workers() == {}, "gone")
    assert daemon.process is not None
    assert daemon.process.poll() is None
    shared = Shared.of(daemon)
    shared.watch_bucket(0, 5)
    with connect(str(daemon.directory), worker="a"):
        row = daemon.workers()["a"]["row"]
        shared.watch_bucket(row, 9)
    until(lambda: daemon.workers() == {}, "gone, too")
    assert shared.traces(row) == {}
    assert "Traceback" not in daemon.said()


def test_heads_that_are_overwritten_again_and_again() -> None:
    segments = {k: mmap.mmap(-1, size) for k, size in sharing.sizes(4, 64, 1).items()}
    sharing.create(segments, 4, 64, 7, [Pool("p", 1000, 1000, False)])
    heads, calls = [bytes(memory[:256]) for memory in segments.values()], []
    spoil = [2]

    def mend() -> None:
        calls.append(spoil[0])
        for memory, head in zip(segments.values(), heads, strict=True):
            memory[:256] = bytes(256) if spoil[0] > 0 else head
        spoil[0] -= 1

    host = sharing.Sharing(segments, 64, mend, lambda row: None)
    host.seat(2, 5)
    assert calls == [2, 1, 0, -1]
    shared = Shared(*(segments[kind] for kind in ("watch", "pools", "keys")))
    shared.change(2, 300)
    spoil[0] = 1000
    with pytest.raises(WheelError, match="overwritten repeatedly"):
        host.clear(2)
    spoil[0] = 0
    assert (host.clear(2), host.clear(2), host.returned) == (300, 0, 300)
    assert (shared.traces(2), shared.used()) == ({}, [0])
