"""One run of the workload in a fresh process: rate, CPU, memory, collections."""

from __future__ import annotations

import os
import resource
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import wheeld
from bench import processes
from bench.purgatory import workload
from bench.purgatory.designs.contenders import CONTENDERS, USES_DAEMON
from bench.result import Row

CAPACITY = 1 << 19
MEBIBYTE = 1 << 20
CAP = 200 * MEBIBYTE
"""What a process may take beyond what it has at its start; as large as the original's JVM heap."""


EXCESS = 0.01
"""By so much the share of expired requests may differ from what was drawn for a run to count."""


@dataclass(frozen=True)
class Point:
    """What is measured: a contender, a case, a target rate over all processes, so many requests."""

    contender: str
    case: str
    rate: float
    requests: int
    processes: int = 1


def _status(field: str) -> int:
    """A size of this process from /proc, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {field}")


def _limit_memory(cap: int) -> None:
    """Allow `cap` bytes of private memory more than now (stacks of threads count with their
    whole size, so they are made small)."""
    threading.stack_size(MEBIBYTE)
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    resource.setrlimit(resource.RLIMIT_DATA, (_status("VmData") + cap, hard))


def one_process(
    contender: str,
    daemon_name: str,
    case: str,
    rate: float,
    count: int,
    seed: int,
    pipe: Connection,
) -> dict[str, Any]:
    """The workload once, in this process."""
    plan = workload.make_plan(workload.CASES[case], rate, count, seed)
    tested = CONTENDERS[contender](daemon_name)
    warm_up = workload.make_plan(workload.CASES["low"], np.inf, 500, 1)
    workload.run(warm_up, tested.operation, tested.purgatory, tested.expires)
    collector = workload.CollectorWatch()
    processes.ready(pipe)
    _limit_memory(CAP)
    resident, helper = _status("VmRSS"), tested.helper_cpu()
    before, switched = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw
    times = workload.run(plan, tested.operation, tested.purgatory, tested.expires)
    cpu, helper = time.process_time() - before, tested.helper_cpu() - helper
    collector.close()
    found = {
        "enqueued": times.enqueued,
        "finished": times.finished,
        "completed": times.completed,
        "expired": times.expired,
        "drawn": len(plan) - plan.to_complete if tested.expires else 0,
        "cpu": cpu,
        "helper_cpu": helper,
        "gc": collector.seconds,
        "switches": resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw - switched,
        "peak": _status("VmHWM") - resident,
        "purges": getattr(tested.purgatory, "purges", 0),
    }
    tested.close()
    return found


def _failed(point: Point, reason: str) -> Row:
    return {"achieved": 0.0, "failed": reason, "load": os.getloadavg()[0]}


def measure(point: Point, seed: int) -> Row:
    """One run; if it broke (out of memory, say), `failed` says why."""
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # numpy's, unused: they would spin, and take memory
    share = point.requests // point.processes
    with ExitStack() as stack:
        name = ""
        if point.contender in USES_DAEMON:
            name = stack.enter_context(wheeld.embedded(capacity=CAPACITY))
        tasks = [
            (
                one_process,
                (point.contender, name, point.case, point.rate / point.processes, share, seed + n),
            )
            for n in range(point.processes)
        ]
        try:
            found = processes.together(*tasks)
        except RuntimeError as error:
            return _failed(point, str(error).strip().splitlines()[-1])
    return _row(found, share * point.processes)


def _row(found: list[dict[str, Any]], count: int) -> Row:
    """What the processes of one run found, as one."""
    # Nobody gets a better rate by leaving the expirations for later: the last request may take
    # its timeout, no more.
    spans = [max(one["enqueued"], one["finished"] - workload.TIMEOUT_MS / 1000) for one in found]
    helper = max(one["helper_cpu"] for one in found)  # all of them see the same clock
    cpu = sum(one["cpu"] for one in found) + helper
    millions = count / 1e6
    return {
        "achieved": count / max(spans),
        "enqueued": count / max(one["enqueued"] for one in found),
        "cpu_per_million": cpu / millions,
        "helper_per_million": helper / millions,
        "cores_used": cpu / max(one["finished"] for one in found),
        "gc_per_million": sum(one["gc"] for one in found) / millions,
        "peak_mb": sum(one["peak"] for one in found) / MEBIBYTE,
        "expired": sum(one["expired"] for one in found) / count,
        "drawn": sum(one["drawn"] for one in found) / count,
        "purges": sum(one["purges"] for one in found),
        "switches": sum(one["switches"] for one in found),
        "load": os.getloadavg()[0],
        "failed": None,
    }


def judged(row: Row) -> Row:
    """The row; a failed one if not as many expired as were drawn to: its completions were late."""
    if row["failed"] is None and abs(row["expired"] - row["drawn"]) > EXCESS:
        late = f"{row['expired']:.1%} expired, {row['drawn']:.1%} were drawn to"
        return {**row, "failed": late}
    return row


def middle(rows: list[Row]) -> Row:
    """The median of each number over repeated runs; broken runs count as such."""
    good = [row for row in rows if row["failed"] is None]
    if 2 * len(good) <= len(rows):
        return next(row for row in rows if row["failed"] is not None)
    numbers = [key for key, value in good[0].items() if isinstance(value, int | float)]
    return {**{key: median(row[key] for row in good) for key in numbers}, "failed": None}
