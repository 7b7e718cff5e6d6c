"""The checks of `wheeld doctor` on a running daemon: its clock, workers and free slots.

`gather` takes two readings, a third of a second apart; the checks are functions of these.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from wheeld.doctor import jobs as doctor_jobs, pools as doctor_pools, shared as doctor_shared
from wheeld.doctor.machine import Finding, ok
from wheeld.fsck.image import ARMED, EXPIRED, NEVER, OFFERED, WheelImage
from wheeld.processes.identity import stat_fields
from wheeld.resources import maps
from wheeld.resources.remains import Memories
from wheeld.tables import sharing
from wheeld.tables.registry import RowState
from wheeld_core import _native
from wheeld_core.packing import FLAGS_CLOCK, ID_KIND, id_slot
from wheeld_core.units import KIB, mebibytes
from wheeld_core.views import DirectoryView, PoolsView, RegistryView, WheelView, record

LOOK_SECONDS = 0.3
LATE_NOTE_NS, LATE_WARNING_NS = 5_000_000, 50_000_000
FULL_WARNING, FULL_FAILURE = 0.9, 0.98
LARGE_SHARE = 0.5
HOARD_SHARE = 0.25
HOARD_AFTER_NS = 60 * 10**9


@dataclass(frozen=True)
class ProcStat:
    """A process as /proc/PID/stat describes it; state "" when it has ended."""

    state: str
    start_time: int


@dataclass(frozen=True)
class ObservedWorker:
    """One row of the worker table, with the state of its rings and slots in both readings."""

    row: int
    name: str
    pid: int
    row_state: int
    start_time: int
    process: ProcStat
    backlog: bool
    heads: tuple[tuple[int, int], tuple[int, int]]
    """Consumed completions and returns, in both readings."""
    fulls: int
    offences: int
    held: int
    idle: int
    """Its slots whose last timers were due more than a minute ago."""
    unheard: int = 0  # overdue timers that the clock sleeps on

    def __str__(self) -> str:
        return f"{self.name} (row {self.row}, pid {self.pid})"


@dataclass(frozen=True)
class Clock:
    pid: int
    process: ProcStat
    trouble: str | None
    wake_late_ns: int
    restarts: int
    timer_slack_ns: int | None
    swapped_kib: int | None
    locked_kib: int | None
    mapped_kib: int | None
    huge_kib: int


@dataclass(frozen=True)
class ObservedWheel:
    capacity: int
    """As in `wheeld status`, without the additional slabs of the workers."""
    held: int
    armed: int
    clock: Clock
    workers: list[ObservedWorker]
    pools: tuple[doctor_pools.ObservedPool, ...] = ()
    directory: doctor_shared.ObservedDirectory | None = None
    queues: tuple[doctor_jobs.Queue, ...] = ()
    wall_ns: int = 0
    """Its wall clock."""


# -- reading ---------------------------------------------------------------------------------------


def process(proc: Path, pid: int) -> ProcStat:
    try:
        fields = stat_fields(proc / str(pid))
        return ProcStat(fields[0], int(fields[19]))
    except (OSError, IndexError, ValueError):
        return ProcStat("", 0)


def _heads(memories: Memories) -> dict[int, tuple[int, int]]:
    return {
        row: (int(segment["comp_head"]), int(segment["ret_head"]))
        for row, memory in memories.workers.items()
        for segment in (record(memory, "worker"),)
    }


def _pools(memories: Memories) -> PoolsView:
    view = WheelView(memories.wheel)
    return sharing.copies(view.max_workers, view.capacity, memories.watch, memories.pools)[1]


def gather(
    status: dict[str, Any],
    memories: Memories,
    prefix: str,
    proc: Path = Path("/proc"),
    sleep: Callable[[float], None] = time.sleep,
) -> ObservedWheel:
    first, waiting = _heads(memories), doctor_pools.tickets(_pools(memories))
    seats, then = doctor_shared.seats(DirectoryView(memories.read_keys())), _now(memories)
    sleep(LOOK_SECONDS)
    second = _heads(memories)
    snapshot = WheelImage(memories, True)
    pid = int(status["clock_pid"] or 0)
    smaps = maps.mapped_memory(proc / str(pid), prefix)
    slack = _text(proc / str(pid) / "timerslack_ns").strip()
    clock = Clock(
        pid,
        process(proc, pid),
        status["clock_trouble"],
        int(snapshot.view.header["wake_late_ns"]),
        int(status.get("clock_restarts", 0)),
        int(slack) if slack.isdigit() else None,
        smaps.get("Swap"),
        smaps.get("Locked"),
        smaps.get("Rss"),
        maps.huge_kib(smaps),
    )
    workers = [
        _worker(snapshot, row, proc, (first.get(row, (0, 0)), second.get(row, (0, 0))))
        for row in np.flatnonzero(snapshot.rows["state"] > 1).tolist()
    ]
    armed = int((snapshot.phases == ARMED).sum())
    names = {worker.row: str(worker) for worker in workers}
    pools = doctor_pools.gather(snapshot.pools, waiting, names, time.monotonic_ns())
    states = {worker.row: worker.process.state for worker in workers}
    times = (then, _now(memories))
    return ObservedWheel(
        int(status["capacity"]),
        snapshot.capacity - int(snapshot.unowned.sum()),
        armed,
        clock,
        workers,
        tuple(pools),
        doctor_shared.gather(snapshot, seats, times, names, states),
        tuple(doctor_jobs.queues(snapshot, RegistryView(memories.registry), names, times[1])),
        times[1] - int(snapshot.clock_offsets[_native.CLOCK_REALTIME]),
    )


def _now(memories: Memories) -> int:
    """The wheel's base clock, ns."""
    header = WheelView(memories.wheel).header
    if header["virtual_clock"]:
        return int(header["virtual_now"])
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC)


def _worker(
    s: WheelImage, row: int, proc: Path, heads: tuple[tuple[int, int], tuple[int, int]]
) -> ObservedWorker:
    fields, pid = s.rows[row], int(s.rows["pid"][row])
    memory = s.memories.workers.get(row)
    mine = s.owned & (s.owner_row == row)
    now = _now(s.memories)
    rest = mine & s.same & (s.stages >= EXPIRED) & (s.phases != ARMED) & (s.phases != NEVER)
    rest &= s.stages != OFFERED
    rest &= s.links["due"][: s.capacity] < now - HOARD_AFTER_NS
    return ObservedWorker(
        row,
        bytes(fields["name"]).decode(errors="replace"),
        pid,
        int(fields["state"]),
        int(fields["start_time"]),
        process(proc, pid),
        bool(s.ports["backlog"][row]),
        heads,
        int(record(memory, "worker")["fulls"]) if memory is not None else 0,
        int(s.ports["offences"][row]),
        int(mine.sum()),
        int(rest.sum()),
        unheard(s, row, now),
    )


def _text(path: Path) -> str:
    with contextlib.suppress(OSError, UnicodeDecodeError):
        return path.read_text("utf-8")
    return ""


# -- the clock -------------------------------------------------------------------------------------


def clock_runs(v: ObservedWheel) -> Finding:
    name, clock = "clock", v.clock
    found = f"pid {clock.pid}"
    if clock.trouble is not None:
        seen, _, advice = clock.trouble.partition(": ")
        advice = advice or "see the daemon's log"
        return Finding(name, "failure", seen, "running, and passes while timers are due", advice)
    if clock.process.state == "D":
        advice = "it waits for a disk: does the wheel swap?"
        return Finding(name, "warning", f"{found} is in state D", "running or asleep", advice)
    return ok(name, found)


def clock_restarts(v: ObservedWheel) -> Finding:
    if v.clock.restarts:
        return Finding(
            "clock restarts", "warning", f"{v.clock.restarts}", "0",
            "see the daemon's messages for why: out of memory, a signal, a truncated segment",
        )  # fmt: skip
    return ok("clock restarts", "0")


def lateness(v: ObservedWheel) -> Finding:
    late, name = v.clock.wake_late_ns, "lateness"
    found = f"latest wake-up {late / 1e6:.3f} ms after it was due"
    if late < LATE_NOTE_NS:
        return ok(name, found)
    return Finding(
        name, "warning" if late >= LATE_WARNING_NS else "note", found,
        f"less than {LATE_NOTE_NS / 1e6:g} ms",
        "the machine was busy, asleep, or swapping: give the clock a CPU (pin_cpu) "
        "or CPUSchedulingPolicy=fifo",
    )  # fmt: skip


def timer_slack(v: ObservedWheel) -> Finding:
    slack = v.clock.timer_slack_ns
    if slack is None:
        return ok("timer slack", "not readable")
    if slack > 1:
        return Finding(
            "timer slack", "warning", f"{slack:,} ns for pid {v.clock.pid}", "1 ns",
            "something changed it after the clock had set it: find what writes timerslack_ns",
        )  # fmt: skip
    return ok("timer slack", f"{slack} ns")


def swapped(v: ObservedWheel) -> Finding:
    if v.clock.swapped_kib is None:
        return ok("swap", "not readable")
    locked = f", {mebibytes((v.clock.locked_kib or 0) * KIB)} locked"
    if v.clock.swapped_kib:
        found = f"{mebibytes(v.clock.swapped_kib * KIB)} of the wheel{locked}"
        advice = "timers wait for disk reads: add memory, lower the capacity, or use swapoff"
        return Finding("swap", "warning", found, "none", advice)
    return ok("swap", f"nothing of the wheel{locked}")


def huge_pages(v: ObservedWheel) -> Finding:
    """Check that a large wheel is in huge pages."""
    clock, name = v.clock, "huge pages"
    if clock.mapped_kib is None:
        return ok(name, "not readable")
    found = f"{mebibytes(clock.huge_kib * KIB)} of {mebibytes(clock.mapped_kib * KIB)}"
    if v.capacity < _native.HUGE_CAPACITY or clock.huge_kib:
        return ok(name, found)
    return Finding(
        name, "note", found, f"most of a wheel of {_native.HUGE_CAPACITY:,} slots or more",
        "page tables cost the clock a part of each firing: run Linux 6.1 or newer, keep half of "
        "/dev/shm free, or mount it with huge=within_size",
    )  # fmt: skip


# -- the workers -----------------------------------------------------------------------------------

_STATES = {
    "T": ("stopped", "kill -CONT {pid}, or end it"),
    "t": ("stopped by a debugger", "resume it"),
    "Z": ("a zombie", "its parent must wait() for it"),
    "D": ("in state D", "it waits for a disk or a network file system"),
}


def worker_processes(v: ObservedWheel) -> Finding:
    """Check that the workers' processes exist, are still the same ones, and run."""
    name, texts, advice, status = "worker processes", [], [], "ok"
    for worker in v.workers:
        state = worker.process.state
        if worker.row_state != RowState.ACTIVE:
            continue
        if not state or state == "X":
            texts.append(f"{worker} is gone")
            advice.append("the supervisor should have reaped it: see its messages")
            status = "failure"
        elif worker.process.start_time != worker.start_time:
            texts.append(f"{worker}: that process id now belongs to another process")
            advice.append("the supervisor should have reaped it: see its messages")
            status = "failure"
        elif state in _STATES:
            what, help = _STATES[state]
            texts.append(f"{worker} is {what}")
            advice.append(help.format(pid=worker.pid))
            status = "warning" if status == "ok" else status
    if not texts:
        return ok(name, f"{len(v.workers)} workers")
    return Finding(
        name, status, "; ".join(texts), "alive and running", "; ".join(dict.fromkeys(advice))
    )


def stuck(v: ObservedWheel) -> Finding:
    """Check that every worker receives its events."""
    name = "stuck workers"
    bad = [
        worker
        for worker in v.workers
        if worker.row_state == RowState.ACTIVE
        and worker.backlog
        and worker.heads[0] == worker.heads[1]
    ]
    if not bad:
        return ok(name, "none")
    return Finding(
        name, "warning", "; ".join(f"{w} has full rings and reads nothing" for w in bad),
        "poll() often enough", "its expirations wait and keep their slots: it must call poll()",
    )  # fmt: skip


def doorbell(v: ObservedWheel) -> Finding:
    """Check that the clock does not sleep although it was rung."""
    bad = [f"{worker}: {worker.unheard:,} timers" for worker in v.workers if worker.unheard]
    if not bad:
        return ok("doorbell", "nothing overdue while the clock sleeps")
    return Finding(
        "doorbell", "failure", "; ".join(bad), "a clock that wakes when a timer is due",
        "some process of this user reads from clock.fifo and swallows the clock's wake-ups",
    )  # fmt: skip


def kept(v: ObservedWheel) -> Finding:
    """Workers that have gone, and whose timers wait for a successor."""
    rows = [worker for worker in v.workers if worker.row_state == RowState.KEPT]
    if not rows:
        return ok("kept workers", "none")
    return Finding(
        "kept workers", "note", "; ".join(f"{w}: {w.held:,} slots" for w in rows), "none for long",
        "start a worker of that name; otherwise their timers are dropped after --keep-for",
    )  # fmt: skip


def offences(v: ObservedWheel) -> Finding:
    bad = [worker for worker in v.workers if worker.offences]
    if not bad:
        return ok("offences", "none")
    return Finding(
        "offences", "warning", "; ".join(f"{w}: {w.offences:,}" for w in bad), "none",
        "that client writes to memory it must not touch, or invents ids: run `wheeld fsck`",
    )  # fmt: skip


# -- room ------------------------------------------------------------------------------------------


def room(v: ObservedWheel) -> Finding:
    name = "room"
    found = f"{v.armed:,} of {v.capacity:,} armed, {v.held:,} slots held by workers"
    refused = [worker for worker in v.workers if worker.fulls]
    if refused:
        found += "; refused with WheelFull: " + ", ".join(f"{w} {w.fulls:,}" for w in refused)
    share = v.armed / v.capacity
    if share >= FULL_WARNING or refused:
        status = "failure" if share >= FULL_FAILURE else "warning"
        return Finding(
            name, status, found, f"armed timers below {FULL_WARNING:.0%} of the capacity",
            "start the daemon with a larger --capacity, or cancel timers that are not needed",
        )  # fmt: skip
    return ok(name, found)


def shares(v: ObservedWheel) -> Finding:
    """Check that no worker of several holds most of the wheel."""
    large = [w for w in v.workers if len(v.workers) > 1 and w.held >= LARGE_SHARE * v.capacity]
    if not large:
        return ok("shares", f"none holds {LARGE_SHARE:.0%} of the capacity")
    return Finding(
        "shares", "note", "; ".join(f"{w}: {w.held / v.capacity:.0%}" for w in large),
        f"less than {LARGE_SHARE:.0%} each", "the others may find no slot left",
    )  # fmt: skip


def hoarders(v: ObservedWheel) -> Finding:
    """Workers that hold many slots and have not used them for a minute."""
    bad = [worker for worker in v.workers if worker.idle >= HOARD_SHARE * v.capacity]
    if not bad:
        return ok("hoarders", "none")
    return Finding(
        "hoarders", "warning",
        "; ".join(f"{w}: {w.idle:,} of its {w.held:,} slots unused for a minute" for w in bad),
        f"less than {HOARD_SHARE:.0%} of the capacity each",
        "slots are returned only when the worker receives them: it must call poll()",
    )  # fmt: skip


CHECKS: tuple[Callable[[ObservedWheel], Finding], ...] = (
    clock_runs, clock_restarts, lateness, timer_slack, swapped, huge_pages, worker_processes, stuck,
    doorbell, kept, offences, room, shares, hoarders,
)  # fmt: skip


LATE_NS = 300_000_000
"""A timer is overdue after more time than a clock takes to wake."""


def unheard(s: WheelImage, row: int, now_ns: int) -> int:
    """Overdue timers that were submitted but that the sleeping clock has not seen.

    A clock may sleep although its rings hold submissions: cancels, and timers that are due after it
    wakes. Every other submission rings it.
    """
    ring = s.subs.get(row)
    if ring is None or not s.quiet:
        return 0
    ids = ring.entries & ~np.uint64(ID_KIND.mask)
    slots = id_slot(ids)
    known = slots < s.capacity
    ids, slots = ids[known], slots[known]
    met = (s.ids[slots] != ids) | (s.phases[slots] != ARMED)
    timers = s.slots[slots]
    overdue = (FLAGS_CLOCK.of(timers["flags"]) == _native.CLOCK_BASE) & (
        timers["deadline"] < now_ns - LATE_NS
    )
    return len(np.unique(slots[overdue & ~met]))
