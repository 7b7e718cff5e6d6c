"""One case: its requests are replayed against a daemon of its own."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import psutil

from wheeld import embedded
from wheeld.demo import pipeline, workload
from wheeld_client.replay import Crew, Outcome, percentile_row, running, verdict_lines
from wheeld_core import control
from wheeld_core.control.messages import Request
from wheeld_core.progress import show_progress

SPARE: Final = 4
"""Ratio of the capacity to the pending timers of a punctual run; leaves room for workers that catch
up."""
LEAST_CAPACITY: Final = 1 << 16
MOST_CAPACITY: Final = 1 << 24
HEAD_START_NS: Final = 100_000_000


@dataclass(frozen=True)
class CaseRun:
    """A completed case; `pending`: seconds since the start, and the number of pending timers at
    that time."""

    name: str
    title: str
    outcome: Outcome
    pending: list[tuple[float, int]]
    clock_s: float
    supervisor_s: float
    shared_bytes: int

    def as_json(self) -> dict[str, Any]:
        found = self.outcome.as_json()
        return {
            **found,
            "case": self.name,
            "completed": self.outcome.cancelled,
            "timed_out": self.outcome.expired,
            "late_completions": self.outcome.late,
            "exactly_once": self.outcome.exactly_once,
            "fired_early": self.outcome.early,
            "offered_per_s": self.outcome.asked_per_s,
            "saturated": not self.outcome.kept_up,
            "scheduling_lag_ms": found["behind_ms"],
            "receive_lateness_ms": found["receipt_ms"],
            "run_s": self.outcome.seconds,
            "cpu_s": {
                "workers": self.outcome.cpu_s,
                "clock": self.clock_s,
                "supervisor": self.supervisor_s,
            },
            "shared_bytes": self.shared_bytes,
        }

    def text(self) -> str:
        found = self.outcome
        early = found.early + found.deadline_wrong
        lines = [
            f"scheduled       {found.scheduled:>11,}  of {found.requests:,} requests",
            f"completed       {found.cancelled:>11,}  cancelled before their timeout",
            f"timed out       {found.expired:>11,}  delivered"
            f" ({found.late:,} of them completed too late)",
            f"exactly once    {found.exactly_once:>11,}  of {found.requests:,}, checked one by one",
            f"lost {found.lost:,}, doubled {found.doubled:,}, early {early:,}, payload mismatches"
            f" {found.payload_wrong:,}",
            percentile_row("lateness", found.lateness, "fired - deadline", 15),
            percentile_row("  as received", found.receipt, "poll returned - deadline", 15),
            percentile_row("scheduling lag", found.behind, "scheduled - arrival", 15),
            f"rate            offered {self._offered()}, reached {found.reached_per_s:,.0f}/s in"
            f" {found.seconds:.1f} s; at most {found.peak_pending:,} pending",
            f"CPU             workers {found.cpu_s:.1f} s, clock {self.clock_s:.1f} s,"
            f" supervisor {self.supervisor_s:.2f} s",
            f"shared memory   {self.shared_bytes / 2**20:.1f} MiB",
        ]
        if not found.kept_up:
            lines.append(self.saturated())
        if found.wheel_full:
            lines.append(f"the wheel was full {found.wheel_full:,} times; workers tried again")
        lines += verdict_lines(found.faults)
        return "\n".join([self.title, *(f"  {line}" for line in lines)])

    def _offered(self) -> str:
        offered = self.outcome.asked_per_s
        return "all at once" if offered is None else f"{offered:,.0f}/s"

    def saturated(self) -> str:
        """Warn that the run fell behind its open loop, so that its lateness is that of an
        overloaded machine."""
        return (
            f"SATURATED: asked for {self._offered()}, reached {self.outcome.reached_per_s:,.0f}/s,"
            f" up to {self.outcome.behind.most / 1e6:,.0f} ms behind; lower --rate to see lateness"
            " of a machine that keeps up"
        )


def run(
    name: str,
    title: str,
    requests: npt.NDArray[Any],
    workers: int,
    seed: int,
    tick: Callable[[], None],
    trace: Path | None = None,
) -> CaseRun:
    width = int(requests["payload_bytes"].max(initial=0))
    capacity = min(max(LEAST_CAPACITY, SPARE * workload.peak_pending(requests)), MOST_CAPACITY)
    config: dict[str, Any] = {
        "capacity": capacity,
        "payload_bytes": width or None,
        "max_workers": workers + 1,
    }
    if trace is not None:
        config |= {"trace": trace, "trace_ring": pipeline.RING}
    pending: list[tuple[float, int]] = []
    with tempfile.TemporaryDirectory(prefix="wheeld-demo-") as made:
        directory = Path(made)
        order: dict[str, Any] = {
            "requests": str(directory / "requests.npy"),
            "runtime_dir": None,
            "worker": "demo",
            "flat_out": False,
            "payloads": True,
            "seed": seed,
        }
        np.save(order["requests"], requests)
        tick()
        with embedded(**config) as daemon:
            order["daemon"] = str(daemon)
            with running(directory, workers, "wheeld.demo.worker", order) as crew:
                crew.wait_ready(tick)
                before = _cpu_seconds(_status(daemon))
                _watch(crew, title, len(requests), tick, pending)
                outcome = crew.outcome(len(requests), workload.offered_rate(requests))
            status = _status(daemon)
            after = _cpu_seconds(status)
            # nothing is known about a clock that died on the way
            clock_s, supervisor_s = (
                used - (was if process == earlier else 0.0)
                for (process, used), (earlier, was) in zip(after, before, strict=True)
            )
    shared = status["shared_bytes"]
    return CaseRun(name, title, outcome, pending, clock_s, supervisor_s, shared)


def _watch(
    crew: Crew, title: str, count: int, tick: Callable[[], None], pending: list[tuple[float, int]]
) -> None:
    with show_progress(title, count, "requests") as tell:
        start_ns = time.monotonic_ns() + HEAD_START_NS
        crew.go(start_ns)

        def watch(ended: int) -> None:
            tick()
            tell(ended)
            pending.append(((time.monotonic_ns() - start_ns) / 1e9, crew.pending()))

        crew.wait_done(watch)


def _cpu_seconds(status: dict[str, Any]) -> list[tuple[psutil.Process | None, float]]:
    """CPU time of the clock and of the supervisor; None if there is no such process now."""
    found: list[tuple[psutil.Process | None, float]] = []
    for pid in (status["clock_pid"], status["pid"]):
        process, used = None, 0.0
        with contextlib.suppress(psutil.NoSuchProcess):
            if pid is not None:  # else it would be this process
                there = psutil.Process(pid)  # equal to another one if number and start are
                spent = there.cpu_times()
                process, used = there, spent.user + spent.system
        found.append((process, used))
    return found


def _status(daemon: str) -> dict[str, Any]:
    status: dict[str, Any] = control.ask(Path(daemon), Request.STATUS)["status"]
    return status
