"""CPU time per firing in steady traffic: a million pending timers with random deadlines.

Random deadlines scatter the timers of a bucket over all of memory. That is what a server's timers
look like, and what a burst (throughput.py arms in order, and fires in order) does not show. The
clock starts after all are armed, so that its CPU time is that of cascades and firings alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

import wheeld
import wheeld_client
from bench import daemon, processes
from bench.result import Options, Result, Row, Target

LEAD_SECONDS = 1.0
"""Before the first deadline: time to arm all."""
SPREAD_SECONDS = 2.0
MODULUS = 2**64
REACH_NS = 250
"""Of clock and worker together, for one worker."""


def work(name: str, timers: int, pipe: Connection) -> dict[str, Any]:
    """One worker process: arm `timers`, then receive all of them."""
    rng = np.random.default_rng()
    with wheeld_client.connect(name) as client:
        start = time.monotonic() + LEAD_SECONDS
        processes.ready(pipe)
        begin_ns, spread_ns = int(start * 1e9), int(SPREAD_SECONDS * 1e9)
        deadlines = begin_ns + rng.integers(0, spread_ns, timers)
        ids = client.schedule_at_many(deadlines)
        late_to_arm = time.monotonic() > start
        expected = int(ids.sum())
        lateness = []
        received, cpu = 0, time.process_time()
        give_up = start + SPREAD_SECONDS + 20
        while received < timers and time.monotonic() < give_up:
            events = client.poll(0.1)
            received += len(events)
            expected -= int(events["timer_id"].sum())
            lateness.append(events["fired"] - events["deadline"])
        late = np.concatenate(lateness)
        return {
            "exact": received == timers and expected % MODULUS == 0 and int(late.min()) >= 0,
            "cpu": time.process_time() - cpu,
            "late": late,
            "late to arm": late_to_arm,
        }


def measure(workers: int, timers: int) -> Row:
    """One configuration, as a row of the table."""
    with wheeld.embedded(capacity=max(4096, timers + timers // 8)) as name:
        clock, header = daemon.facts(name)["clock_pid"], daemon.wheel_view(name).header
        kept = processes.kept_waiting(clock)
        before = processes.cpu_seconds(clock)
        found = processes.together(*[(work, (name, timers // workers))] * workers)
        clock_cpu = processes.cpu_seconds(clock) - before
        kept = processes.kept_waiting(clock) - kept
        cascaded = int(header["cascaded"])
    late = np.concatenate([one["late"] for one in found]) / 1e6
    clock_ns = 1e9 * clock_cpu / timers
    worker_ns = 1e9 * sum(one["cpu"] for one in found) / timers
    return {
        "workers": workers,
        "clock ns": clock_ns,
        "worker ns": worker_ns,
        "together ns": clock_ns + worker_ns,
        "cascades/timer": cascaded / timers,
        "late p50 ms": float(np.median(late)),
        "late p99 ms": float(np.quantile(late, 0.99)),
        "exact": "yes" if all(one["exact"] for one in found) else "NO",
        "armed in time": "NO" if any(one["late to arm"] for one in found) else "yes",
        "kept waiting ms": 1e3 * kept,
    }


def run(options: Options, say: Callable[[str], None]) -> Result:
    """The whole measurement; of each configuration the round with the median cost counts."""
    timers, rounds = (50_000, 1) if options.quick else (1_000_000, min(5, options.rounds))
    rows = []
    for workers in (1, 2):
        found = []
        for number in range(rounds):
            say(f"firing: {workers} workers, round {number + 1}")
            found.append(measure(workers, timers))
        middle = sorted(found, key=lambda row: row["together ns"])[len(found) // 2]
        inexact = any(row["exact"] == "NO" for row in found)
        rows.append({**middle, "exact": "NO" if inexact else "yes"})
    targets = [
        Target("rounds whose account is not exact", sum(row["exact"] == "NO" for row in rows), 0),
        Target("one worker: clock and worker per firing", rows[0]["together ns"], REACH_NS,
               unit="ns"),
    ]  # fmt: skip
    notes = [f"{timers:,} timers, random deadlines over {SPREAD_SECONDS:g} s; drain included"]
    return Result("firing in steady traffic", rows, targets, notes)
