"""fsck on segments: a dead daemon's, a running one's; exit codes, JSON, repair."""

import fcntl
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from commands import well, wheeld_command
from common_fixtures import daemon_process
from daemons import Daemon, until
from fsck_damage import CASES, link
from fsck_wheels import FullWheel, Remains, damaged, remains
from local_wheel import LocalWheel
from wheeld.fsck import repair, run as fsck
from wheeld_client import connect
from wheeld_core import _native, segments
from wheeld_core.errors import WheelError

CLEAN, FOUND, COULD_NOT = 0, 1, 2

LOAD = """
import random, sys, time
from wheeld_client import WheelFull, connect
me, other = sys.argv[2:]
r = random.Random(int(me == "left"))
timers = connect(sys.argv[1], worker=me)
print("ready", flush=True)
ids, until = [], time.monotonic() + 120
while time.monotonic() < until:
    try:
        ids += timers.schedule_many([r.expovariate(20) for _ in range(300)]).tolist()
        for _ in range(100):
            to = other if r.random() < .3 else None
            every = r.choice([None, None, .02])
            ids.append(timers.schedule(r.expovariate(5), interval=every, to=to))
    except (ValueError, WheelFull) as error:
        timers.poll(0.02)  # the other one is not there yet, or it is slow
    r.shuffle(ids)
    for id in ids[:150]:
        timers.reschedule(id, r.expovariate(10))
    timers.cancel_many(ids[:250] + ids[2000:])
    ids = ids[250:2000]
    if r.random() < .7:
        timers.poll(max_events=400)
"""


@pytest.fixture
def left(daemon_name: str, runtime_dir: Path) -> Iterator[Remains]:
    with FullWheel() as wheel, remains(wheel, daemon_name, runtime_dir) as left:
        yield left


daemon = daemon_process(capacity=20_000)


# -- a dead daemon's -------------------------------------------------------------------------------


def test_a_dead_daemons_wheel_is_clean(left: Remains) -> None:
    report = left.report()
    assert damaged(report) == {}
    assert (report.live, report.looks) == (False, 1)
    assert next(c for c in report.checks if c.name == "headers").looked_at == 8
    assert [worker["name"] for worker in report.workers] == ["a", "b"]


def test_exit_codes_and_output(left: Remains) -> None:
    """Clean: 0. Damaged: 1, with check, slot and owner, for people and as JSON. The memory stays as
    it is."""
    assert "clean" in well("fsck", *left.where)
    before = [bytes(memory) for memory in left.memories.values()]
    left.link(0)["gen"] = 77
    done = wheeld_command("fsck", *left.where)
    assert (done.returncode, done.stderr) == (FOUND, "")
    assert "slot 0, id " in done.stdout
    done = wheeld_command("fsck", "--json", *left.where)
    assert done.returncode == FOUND
    report = json.loads(done.stdout)
    assert (report["live"], report["damage"]) == (False, 1)
    (found,) = [check for check in report["checks"] if check["status"] == "damage"]
    assert found["name"] == "slots"
    assert found["examples"][0]["slot"] == 0
    left.link(0)["gen"] = 1
    assert before == [bytes(memory) for memory in left.memories.values()]


def test_no_daemon(daemon_name: str, runtime_dir: Path) -> None:
    where = ("--name", daemon_name, "--runtime-dir", str(runtime_dir))
    assert f"no wheeld daemon '{daemon_name}'" in could_not(*where)
    directory = runtime_dir / daemon_name
    directory.mkdir()
    (directory / "daemon.json").write_text("{")
    assert "names no shared memory" in could_not(*where)
    (directory / "daemon.json").write_text(
        json.dumps({"segment_prefix": "wheeld-none-0123456789ab-"})
    )
    assert "is gone" in could_not(*where)


def could_not(*arguments: str) -> str:
    done = wheeld_command("fsck", *arguments)
    assert (done.returncode, done.stdout) == (COULD_NOT, ""), done
    assert done.stderr.startswith("wheeld fsck: could not check: ")
    assert done.stderr.count("\n") == 1
    return done.stderr


def test_another_layout(left: Remains) -> None:
    for kind in left.memories:
        left.head(kind)["layout_version"] = 99
    message = could_not(*left.where)
    assert "version 99" in message
    assert f"version {_native.LAYOUT_VERSION}" in message


def header_faults(left: Remains) -> list[str]:
    found = damaged(left.report())
    assert list(found) == ["headers"], found
    return found["headers"]


@pytest.mark.parametrize(
    ("kind", "field", "value", "words"),
    [
        ("wheel", "magic", 0, "its creator has not finished"),
        ("slots", "magic", 12345, "its magic"),
        ("worker-1", "magic", 12345, "its magic"),
        ("registry", "layout_version", 1, "another layout version"),
        ("slots", "fingerprint", 1, "the fingerprint differs"),
        ("slots", "bytes", 4096, "it says 4096 bytes"),
        ("slots", "token", 5, "token 5, expected 0 as in the others"),
        ("worker-0", "token", 6, "token 6, expected 0 as in the others"),
    ],
)
def test_a_head_that_is_wrong(left: Remains, kind: str, field: str, value: int, words: str) -> None:
    left.head(kind)[field] = value
    (fault,) = damaged(left.report())["headers"]
    assert fault.startswith(left.prefix + kind)
    assert words in fault


def test_a_file_that_is_wrong(left: Remains, tmp_path: Path) -> None:
    slots = left.path("slots")
    slots.chmod(0o644)
    assert "mode 0644, expected 0600" in header_faults(left)[0]
    slots.chmod(0o660)
    assert damaged(left.report()) == {}
    other = slots.with_name(slots.name + "-other")
    os.link(slots, other)
    try:
        assert damaged(left.report()) == {}
    finally:
        other.unlink()
    if os.getuid() == 0:
        os.chown(slots, 1, -1)
        assert "belongs to uid 1, expected 0" in header_faults(left)[0]
        os.chown(slots, 0, -1)
    os.truncate(slots, 8192)
    assert "it has 8192" in header_faults(left)[0]
    os.truncate(slots, 3)
    assert "3 bytes, too short for a segment" in header_faults(left)[0]
    slots.unlink()
    assert "No such file" in header_faults(left)[0]
    slots.symlink_to(left.path("wheel"))
    assert "symbolic links" in header_faults(left)[0]
    slots.unlink()
    os.mkfifo(slots, 0o600)
    assert header_faults(left) == [f"{slots.name}: not a regular file"]


def test_a_workers_segment_that_is_gone(left: Remains) -> None:
    left.path("worker-1").unlink()
    report = left.report()
    assert "worker-1: No such file" in damaged(report)["headers"][0]
    assert report.counts["owned"] > 0


# -- a running daemon's ----------------------------------------------------------------------------


def test_a_running_daemon_under_load_is_clean(daemon: Daemon) -> None:
    names = [("left", "right"), ("right", "left")]
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", LOAD, str(daemon.directory), *pair],
            stdout=subprocess.PIPE,
            text=True,
        )
        for pair in names
    ]
    try:
        for process in workers:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for _ in range(15):
            report = fsck.run(str(daemon.directory))
            assert damaged(report) == {}
            assert report.live
            assert {worker["name"] for worker in report.workers} == {"left", "right"}
        assert [process.poll() for process in workers] == [None, None]
    finally:
        for process in workers:
            process.kill()
            process.communicate()
    assert report.counts["pending"] > 0


def test_a_running_daemon_is_not_disturbed(daemon: Daemon) -> None:
    with connect(str(daemon.directory), worker="web-1") as timers:
        slot = timers.schedule(5000.0) & 0xFFFFFFFF
        timers.schedule(0.01)
        assert len(timers.poll(5.0)) == 1
        report = json.loads(well("fsck", "--json", *daemon.where))
        assert report["live"]
        assert report["counts"]["pending"] == 1
        names = json.loads(well("status", "--json", *daemon.where))["segments"]
        memory = segments.attach(names["wheel"], _native.KIND_WHEEL, writable=True)
        due = Remains.link_in(memory, slot)
        due["due"] += 10**18  # another level, whatever the machine's uptime
        done = wheeld_command("fsck", *daemon.where)
        assert done.returncode == FOUND
        assert "web-1 (row 0)" in done.stdout
        assert "does not fit" in done.stdout
        due["due"] -= 10**18
        assert "a daemon runs in" in could_not("--repair", *daemon.where)
        assert "clean" in well("fsck", *daemon.where)


HOLD = """
import sys
from wheeld_client import connect
timers = connect(sys.argv[1], worker="web-1")
print(timers.schedule(5000.0) & 0xFFFFFFFF, flush=True)
sys.stdin.read()
"""


def test_a_killed_daemon_is_repaired(daemon: Daemon) -> None:
    command = [sys.executable, "-c", HOLD, str(daemon.directory)]
    worker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert worker.stdout is not None
    slot = int(worker.stdout.readline())
    until(lambda: fsck.run(str(daemon.directory)).checks[6].looked_at == 1, "it is linked")
    facts = json.loads((daemon.directory / "daemon.json").read_text())
    daemon.kill()
    worker.kill()
    worker.communicate()
    names = facts["segment_prefix"]
    memory = segments.attach(names + "wheel", _native.KIND_WHEEL, writable=True)
    record = Remains.link_in(memory, slot)
    record["list"], record["next"] = 3, slot
    done = wheeld_command("fsck", *daemon.where)
    assert done.returncode == FOUND, done
    assert "exact, 1 look" in done.stdout
    assert "repaired, exact, 1 look" in (text := well("fsck", "--repair", *daemon.where))
    assert "clean; 1 pending" in text
    assert "clean; 1 pending" in well("fsck", *daemon.where)


# -- repair ----------------------------------------------------------------------------------------

REPAIRED = [
    "own_next", "wild_next", "other_list", "circle_without_head", "bit_too_few", "summary_bit",
    "linked_count", "in_another_bucket", "orphaned", "never_submitted", "armed_and_over",
    "waits_nowhere", "unpublished_completion", "cancel_forgotten", "never_returned", "flag_off",
]  # fmt: skip


@pytest.mark.parametrize("name", REPAIRED)
def test_repair_makes_the_wheel_anew(name: str, daemon_name: str, runtime_dir: Path) -> None:
    with FullWheel() as wheel:
        CASES[name][2](wheel)
        with remains(wheel, daemon_name, runtime_dir) as left:
            before = left.report()
            assert before.damage
            report = fsck.run(str(left.directory), repair=True)
            assert damaged(report) == {}
            assert report.repaired
            lost = 64 if name == "orphaned" else 0
            assert before.counts["pending"] - report.counts["pending"] in range(lost + 1)


def test_repair_does_not_touch_a_locked_wheel(left: Remains) -> None:
    before = bytes(left.memories["wheel"])
    for path in (left.directory, left.directory / "clock.lock"):
        if not path.exists():
            path.touch()
        fd = os.open(path, os.O_RDONLY)
        fcntl.flock(fd, fcntl.LOCK_EX)
        with pytest.raises(WheelError, match=r"cannot repair: a (daemon|clock) runs"):
            fsck.run(str(left.directory), repair=True)
        os.close(fd)
    assert before == bytes(left.memories["wheel"])
    assert left.report().damage == 0


def test_repair_of_a_wheel_that_cannot_be_believed(left: Remains) -> None:
    left.head("slots")["magic"] = 1
    with pytest.raises(WheelError, match="--fresh"):
        fsck.run(str(left.directory), repair=True)


def test_a_clock_that_holds_its_lock_makes_it_live(left: Remains) -> None:
    lock = left.directory / "clock.lock"
    lock.touch()
    fd = os.open(lock, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_EX)
    assert left.report().live
    os.close(fd)
    assert not left.report().live


def test_a_million_slots(daemon_name: str, runtime_dir: Path) -> None:
    with LocalWheel(capacity=1 << 20) as wheel:
        timers = wheel.worker(0)
        rng = np.random.default_rng(1)
        for _ in range(8):
            timers.schedule_many(rng.uniform(1, 1e5, 1 << 17))
            wheel.settle()
        with remains(wheel, daemon_name, runtime_dir) as left:
            report = left.report()
            assert damaged(report) == {}
            assert report.counts["pending"] == 1 << 20
            slot = 777_777
            left.link(slot)["list"] = int(link(wheel, slot)["list"]) ^ 1
            assert list(damaged(left.report())) == ["lists"]


def test_a_repair_rings_nothing_but_a_fifo(tmp_path: Path) -> None:
    place = tmp_path / "worker-0.fifo"
    place.write_text("somebody's")
    fd = repair._open_bell(tmp_path, os.getuid(), place.name)
    os.write(fd, b"x")
    os.close(fd)
    assert place.read_text() == "somebody's"


def test_a_copy_of_a_living_daemons_directory_is_not_repaired(
    daemon: Daemon, tmp_path: Path
) -> None:
    tmp_path.chmod(0o700)
    (tmp_path / "daemon.json").write_bytes((daemon.directory / "daemon.json").read_bytes())
    (tmp_path / "daemon.json").chmod(0o600)
    with pytest.raises(WheelError, match=f"pid {daemon.pid} holds the wheel"):
        fsck.run(str(tmp_path), repair=True)
