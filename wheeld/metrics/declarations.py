"""Each metric, declared once: its name, kind, meaning, and where it is in a daemon's status.

The table in docs/metrics.md repeats this list; a test compares them. Names and units follow the
conventions of Prometheus: base units, counters end with `_total`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from wheeld.metrics import series

NS: Final = 1e-9


@dataclass(frozen=True)
class Metric:
    name: str
    kind: str
    help: str
    key: tuple[str, ...]
    """Its path in the status, or in the entry of one worker, pool or purgatory."""
    label: str = ""
    """worker, group, pool, purgatory or job_name, in addition to `daemon`; empty: it is about the
    daemon."""
    scale: float = 1
    """The factor by which values there are multiplied."""
    unit: str = ""
    """The thing that it counts, in the singular; empty: its name ends with the unit, or it has
    none."""


def _gauge(
    name: str, help: str, *key: str, label: str = "", scale: float = 1, unit: str = ""
) -> Metric:
    return Metric(f"wheeld_{name}", "gauge", help, key, label, scale, unit)


def _counter(name: str, help: str, *key: str, label: str = "", unit: str) -> Metric:
    return Metric(f"wheeld_{name}_total", "counter", help, key, label, unit=unit)


def _histogram(
    name: str, help: str, key: str, label: str = "", scale: float = NS, unit: str = ""
) -> Metric:
    return Metric(f"wheeld_{name}", "histogram", help, ("histograms", key), label, scale, unit)


UP: Final = _gauge("up", "1 if the daemon answers, else 0.")
"""Also exported if the daemon does not answer; not one of `METRICS`."""

METRICS: Final = (
    _gauge("clock_ok", "1 if the clock makes progress, else 0.", "clock_ok"),
    _gauge("uptime_seconds", "Time since the daemon started.", "uptime_s"),
    _gauge("timers_pending", "Timers that are armed.", "pending", unit="timer"),
    _gauge("slots_capacity", "How many timers can be pending.", "capacity", unit="slot"),
    _gauge("slots_free", "Slots that no worker holds.", "free", unit="slot"),
    _gauge("shared_memory_bytes", "Shared memory in use.", "shared_bytes"),
    _gauge("payload_bytes", "Payloads in the heap.", "payload_heap", "bytes"),
    _gauge("payload_heap_bytes", "Memory of the payload heap.", "payload_heap", "memory"),
    _gauge(
        "payload_heap_limit_bytes", "Most memory for the payload heap.", "payload_heap",
        "memory_at_most",
    ),
    _counter("timers_fired", "Expirations delivered.", "counters", "fired", unit="timer"),
    _counter(
        "timers_dropped",
        "Timers that ended with their dead owner: armed, or expired and unread (these are among "
        "the fired, too).",
        "counters",
        "dropped", unit="timer",
    ),
    _counter(
        "timers_redirected", "Expirations whose target was gone.", "counters", "redirected",
        unit="timer",
    ),
    _counter(
        "slots_returned", "Slots returned after a cancel or a loan.", "counters", "returned",
        unit="slot",
    ),
    _counter("clock_passes", "Passes of the clock's loop.", "counters", "passes", unit="pass"),
    _counter(
        "clock_wakes", "How often the clock slept and woke.", "counters", "wakes", unit="wake",
    ),
    _counter("clock_cascades", "Timers moved down a level.", "counters", "cascaded", unit="timer"),
    _counter(
        "clock_restarts", "Clock processes that were replaced.", "clock_restarts", unit="restart",
    ),
    _histogram("timer_lateness_seconds", "From a timer's deadline to its delivery.", "lateness_ns"),
    _histogram("clock_pass_seconds", "Duration of a pass of the clock.", "pass_ns"),
    _histogram("clock_oversleep_seconds", "How long the clock overslept.", "overslept_ns"),
    _histogram(
        "pass_expirations", "Expirations per pass, if any.", "fired_per_pass", scale=1,
        unit="expiration",
    ),
    _histogram(
        "pass_submissions", "Submissions per pass, if any.", "drained_per_pass", scale=1,
        unit="submission",
    ),
    _gauge(
        "worker_timers_pending", "Timers that are armed.", "pending", label="worker", unit="timer",
    ),
    _gauge(
        "worker_slots_held", "Slots that the worker holds.", "held", label="worker", unit="slot",
    ),
    _gauge(
        "worker_events_unread", "Expirations in its ring.", "unread", label="worker", unit="event",
    ),
    _gauge(
        "worker_ring_size", "How many expirations its ring can hold.", "ring", label="worker",
        unit="event",
    ),
    _gauge(
        "worker_backlogged", "1 if expirations wait because its ring is full.",
        "backlog", label="worker",
    ),
    _gauge(
        "worker_buckets_watched", "Buckets it watches.", "watched_buckets", label="worker",
        unit="bucket",
    ),
    _counter("worker_timers_scheduled", "Timers armed.", "scheduled", label="worker", unit="timer"),
    _counter("worker_timers_cancelled", "Cancels won.", "cancelled", label="worker", unit="timer"),
    _counter(
        "worker_timers_rescheduled", "Reschedules won.", "rescheduled", label="worker",
        unit="timer",
    ),
    _counter(
        "worker_events_received", "Expirations received.", "received", label="worker", unit="event",
    ),
    _counter(
        "worker_wheel_full", "Calls refused with WheelFull.", "fulls", label="worker", unit="call",
    ),
    _counter(
        "worker_offences", "Submissions that a correct client never makes.", "offences",
        label="worker", unit="offence",
    ),
    _histogram(
        "worker_lateness_seconds", "From a timer's deadline until its record is in the ring.",
        "lateness_ns", "worker",
    ),
    _histogram(
        "worker_schedule_to_fire_seconds", "From schedule to firing, of the timers it receives.",
        "schedule_to_fire_ns", "worker",
    ),
    _histogram(
        "worker_fire_to_poll_seconds", "From firing until the worker polls the record.",
        "fire_to_poll_ns", "worker",
    ),
    _gauge("group_workers", "Members that are connected.", "workers", label="group", unit="worker"),
    _gauge(
        "group_timers_pending", "Armed timers of its members.", "pending", label="group",
        unit="timer",
    ),
    _gauge(
        "group_events_unread", "Expirations in the rings of its members.", "unread", label="group",
        unit="event",
    ),
    _counter(
        "group_timers_scheduled", "Timers that its members have armed.", "scheduled", label="group",
        unit="timer",
    ),
    _counter(
        "group_events_received", "Expirations that its members have received.", "received",
        label="group", unit="event",
    ),
    _counter(
        "group_wheel_full", "Calls of its members that were refused with WheelFull.", "fulls",
        label="group", unit="call",
    ),
    _histogram(
        "group_fire_to_poll_seconds", "From firing until a member polls the record.",
        "fire_to_poll_ns", "group",
    ),
    _gauge("pool_size_bytes", "Size of the memory pool.", "size", label="pool"),
    _gauge("pool_used_bytes", "Bytes of the pool in use.", "used", label="pool"),
    _gauge(
        "pool_waiting_workers", "Workers that wait for memory.", "waiters", label="pool",
        unit="worker",
    ),
    _gauge(
        "pool_depleted_ratio", "Share of the time in which requests were refused.",
        "depleted_percent", label="pool", scale=0.01,
    ),
    _gauge(
        "purgatory_operations", "Operations that wait.", "delayed", label="purgatory",
        unit="operation",
    ),
    _gauge(
        "purgatory_watches", "Keys that operations wait under.", "watched", label="purgatory",
        unit="watch",
    ),
    _counter("job_runs", "Runs that ended.", "runs", label="job_name", unit="run"),
    _counter("job_failures", "Runs that raised.", "failures", label="job_name", unit="run"),
    _counter(
        "job_left_out", "Occurrences that came too late for their grace, or fell due "
            "while the job was paused.", "missed",
        label="job_name", unit="occurrence",
    ),
    _gauge(
        "job_failing", "Runs that have failed since one succeeded.", "failing", label="job_name",
        unit="run",
    ),
    _gauge("job_paused", "1 if it is paused.", "paused", label="job_name"),
    _gauge(
        "job_late_seconds", "From the planned time of its last run to its start.", "late_s",
        label="job_name",
    ),
    _gauge("job_lasted_seconds", "Duration of its last run.", "lasted_s", label="job_name"),
    _gauge(
        "jobs_unnamed", "Jobs beyond the first 200 by name, which have no metrics.", "jobs_unnamed",
        unit="job",
    ),
    _counter("trace_events_recorded", "Events in the trace.", "trace", "recorded", unit="event"),
    _counter("trace_events_lost", "Events lost: its ring was full.", "trace", "lost", unit="event"),
)  # fmt: skip


LISTS: Final = {"purgatory": "purgatories", "pool": "pools", "job_name": "jobs"}
"""Where the status has the entries of a label. `job` is a label of Prometheus itself."""


def label_names(metric: Metric) -> list[str]:
    """For Prometheus; OpenTelemetry names the daemon in its resource."""
    if metric.label == "worker":
        return ["daemon", "group", "worker"]
    return ["daemon", metric.label] if metric.label else ["daemon"]


def values(metric: Metric, status: dict[str, Any]) -> Iterator[tuple[list[str], Any]]:
    """(labels, value as in the status) of each entry; none if the daemon has no such entries."""
    for entry in _entries(metric, status):
        found: Any = entry
        for key in metric.key:
            found = found.get(key) if found is not None else None
        if found is not None:
            names = {"": (), "worker": ("group", "name")}.get(metric.label, ("name",))
            yield [str(entry[name]) for name in names], found


def _entries(metric: Metric, status: dict[str, Any]) -> list[dict[str, Any]]:
    if not metric.label:
        return [status]
    if metric.label not in ("worker", "group"):
        return list(status.get(LISTS[metric.label], ()))
    made = status.setdefault("series", {})  # once for all metrics
    if metric.label not in made:
        made[metric.label] = (
            series.workers(status) if metric.label == "worker" else series.groups(status)
        )
    return list(made[metric.label])


def classic_buckets(metric: Metric, found: dict[str, Any]) -> list[tuple[float, int]]:
    """(bound, how many values are no larger) of a histogram of the status.

    Each power of two is a bound; it is one of the live histogram's, too, so the counts are exact.
    """
    first = 10 if metric.scale != 1 else 0
    counts, at, below = found["buckets"], 0, 0
    rows: list[tuple[float, int]] = []
    for bound in [(1 << power) - 1 for power in range(first, first + 31)]:
        while at < len(counts) and counts[at][0] <= bound:
            below += counts[at][1]
            at += 1
        rows.append((bound * metric.scale, below))
    return rows


def table() -> str:
    lines = ["| metric | kind | label | meaning |", "| --- | --- | --- | --- |"]
    lines += [
        f"| `{m.name}` | {m.kind} | {', '.join(label_names(m)[1:])} | {m.help} |" for m in METRICS
    ]
    return "\n".join(lines) + "\n"


SCHEMA: Final = 3
"""There are 2**3 buckets from each power of two to the next."""
MOST: Final = 1 << 48
"""Counts that workers can write are clamped to this, so that sums and differences fit into 64
bits."""


def rebucketed(buckets: Iterable[tuple[int, int]], scale: float) -> tuple[int, dict[int, int]]:
    """Count the zeros, and the values in each bucket, by index, in order, of a live histogram's
    (largest value, count) times `scale`.

    Bucket i has values over 2**((i - 1) / 8) and up to 2**(i / 8), as Prometheus numbers them.
    """
    zero, counts = 0, dict[int, int]()
    for upper, said in buckets:
        count = min(said, MOST)
        if upper == 0:
            zero += count
        else:
            index = math.ceil(math.log2(upper * scale) * (1 << SCHEMA))
            counts[index] = counts.get(index, 0) + count
    return zero, counts
