"""doctor's checks of a running daemon: over made-up figures, over memory, and over a real one."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_doctor import assert_bad, put

from commands import wheeld_command
from common_fixtures import daemon_process
from daemons import Daemon
from fsck_wheels import FullWheel, Local, remains
from wheeld.doctor import live, run as doctor
from wheeld.doctor.live import Clock, ObservedWheel, ObservedWorker, ProcStat
from wheeld.resources import maps
from wheeld.resources.remains import DaemonMemory
from wheeld.tables.registry import RowState
from wheeld_client import connect

CLOCK = Clock(7, ProcStat("S", 50), None, 100_000, 0, 1, 0, 1024, 4096, 2048)
WORKER = ObservedWorker(
    0, "web-1", 8, RowState.ACTIVE, 60, ProcStat("S", 60), False, ((5, 5), (5, 5)), 0, 0, 64, 0
)
WELL = ObservedWheel(1000, 100, 50, CLOCK, [WORKER, replace(WORKER, row=1, name="web-2")])


def with_clock(**changes: Any) -> ObservedWheel:
    return replace(WELL, clock=replace(CLOCK, **changes))


def with_worker(**changes: Any) -> ObservedWheel:
    return replace(WELL, workers=[replace(WORKER, **changes), *WELL.workers[1:]])


def test_all_well() -> None:
    assert {check(WELL).status for check in live.CHECKS} == {"ok"}


Check = Callable[[ObservedWheel], Any]
ILL: list[tuple[Check, ObservedWheel, str, str]] = [
    (live.clock_runs, with_clock(trouble="the clock is stopped: cure"), "failure", "cure"),
    (live.clock_runs, with_clock(process=ProcStat("D", 50)), "warning", "state D"),
    (live.clock_restarts, with_clock(restarts=2), "warning", "messages"),
    (live.lateness, with_clock(wake_late_ns=6_000_000), "note", "6.000 ms"),
    (live.lateness, with_clock(wake_late_ns=60_000_000), "warning", "60.000 ms"),
    (live.timer_slack, with_clock(timer_slack_ns=50_000), "warning", "50,000 ns"),
    (live.swapped, with_clock(swapped_kib=2048), "warning", "2.0 MiB of the wheel"),
    (live.huge_pages, replace(with_clock(huge_kib=0), capacity=1 << 17), "note", "0.0 MiB of 4.0"),
    (live.worker_processes, with_worker(process=ProcStat("", 0)), "failure", "pid 8) is gone"),
    (live.worker_processes, with_worker(process=ProcStat("S", 61)), "failure", "another process"),
    (live.worker_processes, with_worker(process=ProcStat("T", 60)), "warning", "kill -CONT 8"),
    (live.worker_processes, with_worker(process=ProcStat("t", 60)), "warning", "debugger"),
    (live.worker_processes, with_worker(process=ProcStat("Z", 60)), "warning", "wait()"),
    (live.worker_processes, with_worker(process=ProcStat("D", 60)), "warning", "state D"),
    (live.stuck, with_worker(backlog=True), "warning", "web-1 (row 0, pid 8) has full rings"),
    (live.doorbell, with_worker(unheard=3), "failure", "web-1 (row 0, pid 8): 3 timers"),
    (live.kept, with_worker(row_state=RowState.KEPT), "note", "64 slots"),
    (live.offences, with_worker(offences=3), "warning", "web-1 (row 0, pid 8): 3"),
    (live.room, replace(WELL, armed=900), "warning", "900 of 1,000 armed"),
    (live.room, replace(WELL, armed=990), "failure", "990 of 1,000 armed"),
    (live.room, with_worker(fulls=4), "warning", "WheelFull: web-1 (row 0, pid 8) 4"),
    (live.shares, with_worker(held=500), "note", "50%"),
    (live.hoarders, with_worker(held=300, idle=250), "warning", "250 of its 300 slots unused"),
]  # fmt: skip


@pytest.mark.parametrize(("check", "observed", "status", "words"), ILL)
def test_what_is_ill_is_said(
    check: Check, observed: ObservedWheel, status: str, words: str
) -> None:
    assert_bad(check(observed), status, words)
    others = [other(observed).status for other in live.CHECKS if other is not check]
    assert set(others) == {"ok"}


@pytest.mark.parametrize(
    ("check", "observed"),
    [
        (live.stuck, with_worker(backlog=True, heads=((5, 5), (6, 5)))),
        (live.stuck, with_worker(backlog=True, heads=((5, 5), (5, 6)))),
        (live.stuck, with_worker(backlog=True, row_state=RowState.KEPT)),
        (live.worker_processes, with_worker(process=ProcStat("", 0), row_state=RowState.KEPT)),
        (live.shares, replace(WELL, workers=[replace(WORKER, held=900)])),
        (live.timer_slack, with_clock(timer_slack_ns=None)),
        (live.timer_slack, with_clock(timer_slack_ns=0)),
        (live.swapped, with_clock(swapped_kib=None)),
        (live.huge_pages, with_clock(huge_kib=0)),
        (live.huge_pages, replace(WELL, capacity=1 << 17)),
        (live.huge_pages, with_clock(mapped_kib=None)),
    ],
)
def test_what_is_not_ill(check: Check, observed: ObservedWheel) -> None:
    assert check(observed).status == "ok"


def test_every_live_check_has_a_case() -> None:
    assert {check for check, *_ in ILL} == set(live.CHECKS)


def test_processes_are_read(tmp_path: Path) -> None:
    put(tmp_path / "8/stat", "8 (a ) b (c) T " + " ".join(str(n) for n in range(1, 40)))
    assert live.process(tmp_path, 8) == ProcStat("T", 19)
    assert live.process(tmp_path, 9) == ProcStat("", 0)
    assert live.process(Path("/proc"), os.getpid()).state == "R"


def test_smaps_are_summed(tmp_path: Path) -> None:
    put(
        tmp_path / "smaps",
        "7f00-7f10 rw-s 0 00:01 5 /dev/shm/wheeld-a-1-wheel\nSize: 64 kB\nSwap: 12 kB\n"
        "7f10-7f20 rw-p 0 00:00 0 [heap]\nSwap: 999 kB\n"
        "7f20-7f30 rw-s 0 00:01 5 /dev/shm/wheeld-a-1-slots\nSwap: 8 kB\nLocked: 4 kB\n",
    )
    found = maps.mapped_memory(tmp_path, "wheeld-a-1-")
    assert found == {"Size": 64, "Swap": 20, "Locked": 4}
    assert maps.mapped_memory(tmp_path, "wheeld-b-") == {}
    assert maps.mapped_memory(tmp_path / "none", "wheeld-a-1-") == {}


def test_what_is_observed_of_a_wheel(tmp_path: Path) -> None:
    put(tmp_path / "7/stat", "7 (clock) S " + " ".join(str(n) for n in range(1, 40)))
    put(tmp_path / "7/timerslack_ns", "1\n")
    with FullWheel() as wheel:
        status = {"clock_pid": 7, "clock_trouble": None, "clock_restarts": 1, "capacity": 1024}
        wheel.view.ports["offences"][1] = 3
        wheel.b.schedule(0.001)
        wheel.advance(70 * 10**9)
        for _ in range(3):
            wheel.b.poll()
        read = []

        def sleep(seconds: float) -> None:
            assert seconds <= 0.5
            read.append(len(wheel.b.poll(max_events=1)))

        memories = Local(wheel).memories()
        assert memories is not None
        observed = live.gather(status, memories, "none-", tmp_path, sleep)
        a, b = observed.workers
        assert observed.clock.process == ProcStat("S", 19)
        assert (observed.clock.restarts, observed.clock.timer_slack_ns) == (1, 1)
        assert (a.name, a.backlog, a.heads[0] == a.heads[1]) == ("a", True, True)
        assert live.stuck(observed).found == "a (row 0, pid 0) has full rings and reads nothing"
        assert (b.name, b.backlog, b.offences) == ("b", False, 3)
        assert a.held == int((wheel.slots.owner_rows(wheel.view) == 0).sum())
        assert a.idle >= 1024  # what it did not poll was due long ago
        assert observed.armed == wheel.a.pending + wheel.b.pending
        assert observed.held == int((wheel.slots.owners != 0).sum()) * 64
        assert read


# -- the command -----------------------------------------------------------------------------------

WELL_OR_NOTED, FOUND, COULD_NOT = 0, 1, 2


daemon = daemon_process(capacity=2000, max_workers=8)


def findings(*arguments: str) -> tuple[int, dict[str, dict[str, str]]]:
    done = wheeld_command("doctor", "--json", *arguments)
    assert done.stderr == ""
    found = json.loads(done.stdout)
    return done.returncode, {finding["name"]: finding for finding in found["findings"]}


LIVE_NAMES = {
    "daemon", "clock", "clock restarts", "lateness", "timer slack", "swap", "huge pages",
    "worker processes", "stuck workers", "doorbell", "kept workers", "offences", "room", "shares",
    "hoarders", "keys", "lease holders", "lease waiters",
}  # fmt: skip
MACHINE_NAMES = {
    "shm room", "shm mount", "memory limit", "file size", "locked memory", "open files",
    "clock source", "timer resolution", "processors", "kernel", "pid namespace", "RemoveIPC",
    "systemd unit", "runtime directory", "left segments", "left directories",
}  # fmt: skip


def test_doctor_of_a_running_daemon(daemon: Daemon) -> None:
    with connect(str(daemon.directory), worker="web-1") as timers:
        timers.schedule_many(np.full(10, 60.0))
        code, found = findings(*daemon.where)
        assert set(found) == MACHINE_NAMES | LIVE_NAMES
        assert found["room"]["found"].startswith("10 of 2,048 armed, 64 slots held")
        assert "of 2,048 timers" in wheeld_command("status", *daemon.where).stdout
        assert found["daemon"]["found"].startswith(f"pid {daemon.pid} answers")
        mine = LIVE_NAMES - {"lateness"}  # the machine may be busy
        assert {name: found[name]["found"] for name in mine if found[name]["status"] != "ok"} == {}
        worst = {finding["status"] for finding in found.values()}
        assert code == (FOUND if worst & {"warning", "failure"} else WELL_OR_NOTED)
        done = wheeld_command("doctor", *daemon.where)
        assert done.stderr == ""
        assert done.returncode in (WELL_OR_NOTED, FOUND)  # busy in one of the two
        assert "worker processes" in done.stdout
        assert "(34 checks)" in done.stdout


HOLD = """
import sys
from wheeld_client import connect
timers = connect(sys.argv[1], worker="web-1")
print("ready", flush=True)
sys.stdin.read()
"""


def test_doctor_of_a_stopped_worker(daemon: Daemon) -> None:
    command = [sys.executable, "-c", HOLD, str(daemon.directory)]
    worker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "ready\n"
        worker.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, worker.pid, os.WSTOPPED)
        code, found = findings(*daemon.where)
        assert code == FOUND
        assert found["worker processes"]["status"] == "warning"
        assert f"web-1 (row 0, pid {worker.pid}) is stopped" in found["worker processes"]["found"]
    finally:
        worker.kill()
        worker.communicate()


def test_doctor_without_a_daemon(daemon_name: str, runtime_dir: Path) -> None:
    where = ("--name", daemon_name, "--runtime-dir", str(runtime_dir))
    _, found = findings(*where)
    assert set(found) == MACHINE_NAMES
    assert "not running" in wheeld_command("doctor", *where).stdout


def test_doctor_of_a_dead_daemon(daemon_name: str, runtime_dir: Path) -> None:
    with FullWheel() as wheel, remains(wheel, daemon_name, runtime_dir) as left:
        left.memories.clear()  # nobody maps them
        code, found = findings(*left.where)
        assert code == FOUND
        assert set(found) == MACHINE_NAMES | {"daemon"}
        assert found["daemon"]["status"] == "failure"
        assert f"wheeld start --name {daemon_name}" in found["daemon"]["advice"]
        assert str(left.directory) in found["left directories"]["found"]
        assert left.prefix in found["left segments"]["found"]


def test_doctor_names_damaged_segments(daemon: Daemon) -> None:
    patient = DaemonMemory(daemon.directory)
    path = Path("/dev/shm") / f"{patient.prefix}slots"
    path.chmod(0o666)
    found = {finding.name: finding for finding in doctor.run(str(daemon.directory)).findings}
    assert_bad(found["segments"], "failure", "mode 0666")
    assert "room" in found  # what can be said is said


def test_doctor_could_not_look(tmp_path: Path) -> None:
    config = put(tmp_path / "a.toml", "capacity = 0\n")
    done = wheeld_command("doctor", "--config", str(config))
    assert (done.returncode, done.stdout) == (COULD_NOT, "")
    assert done.stderr.startswith(
        f"wheeld doctor: could not run the checks: {config}, line 1: capacity = 0"
    )
