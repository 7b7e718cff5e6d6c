"""One case, from requests to figures: daemon, workers, account."""

from __future__ import annotations

import json
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
from wheeld.demo import account, pipeline, summary, workload
from wheeld.demo.account import CaseAccount
from wheeld_client.replay import Crew, running
from wheeld_core import control
from wheeld_core.control.messages import Request
from wheeld_core.progress import show_progress

SPARE: Final = 4
"""Capacity over the pending timers of a punctual run, for workers that catch up."""
LEAST_CAPACITY: Final = 1 << 16
MOST_CAPACITY: Final = 1 << 24
HEAD_START_NS: Final = 100_000_000


@dataclass(frozen=True)
class CaseRun:
    """A case that was run: `figures` as from `summarise`."""

    title: str
    account: CaseAccount
    figures: dict[str, Any]
    start_ns: int


def run(
    name: str,
    title: str,
    requests: npt.NDArray[Any],
    workers: int,
    seed: int,
    tick: Callable[[], None],
    trace: Path | None = None,
) -> CaseRun:
    """Run one case on a daemon of its own.

    Parameters
    ----------
    name, title : str
        Of the case.
    requests : numpy.ndarray of REQUEST
        In the order of arrival.
    workers : int
        Processes to spread them over.
    seed : int
        For the payloads.
    tick : callable
        Called often while it runs; what it raises ends the case.
    trace : Path, optional
        Where the daemon records what it does.

    Raises
    ------
    WheelError
        The daemon did not start, or a worker died.
    """
    width = int(requests["payload_bytes"].max(initial=0))
    capacity = min(max(LEAST_CAPACITY, SPARE * workload.peak_pending(requests)), MOST_CAPACITY)
    config: dict[str, Any] = {
        "capacity": capacity,
        "payload_bytes": width or None,
        "max_workers": workers + 1,
    }
    if trace is not None:
        config |= {"trace": trace, "trace_ring": pipeline.RING}
    with tempfile.TemporaryDirectory(prefix="wheeld-demo-") as made:
        directory = Path(made)
        np.save(directory / "requests.npy", requests)
        tick()
        with embedded(**config) as daemon:
            (directory / "order.json").write_text(json.dumps({"daemon": daemon, "seed": seed}))
            with running(directory, workers, "wheeld.demo.worker") as crew:
                start_ns, usage = _watch(crew, daemon, title, len(requests), tick)
        logs = [account.load(directory / f"worker-{index}.npz") for index in range(workers)]
    merged = account.merge(requests, logs)
    verdict = account.check(merged)
    figures = summary.summarise(name, merged, verdict, usage, start_ns)
    return CaseRun(title, merged, figures, start_ns)


def _watch(
    crew: Crew, daemon: str, title: str, count: int, tick: Callable[[], None]
) -> tuple[int, summary.Usage]:
    """Let the workers run; returns when they began, and what the daemon took."""
    crew.wait_ready(tick)
    before = _cpu_seconds(_status(daemon))
    with show_progress(title, count, "requests") as tell:

        def watch(ended: int) -> None:
            tick()
            tell(ended)

        start_ns = time.monotonic_ns() + HEAD_START_NS
        crew.go(start_ns)
        crew.wait_done(watch)
    status = _status(daemon)
    # nothing is known about a clock that died on the way
    clock_s, supervisor_s = (
        used - before.get(pid, 0.0) for pid, used in _cpu_seconds(status).items()
    )
    return start_ns, summary.Usage(clock_s, supervisor_s, status["shared_bytes"])


def _cpu_seconds(status: dict[str, Any]) -> dict[int, float]:
    times = {pid: psutil.Process(pid).cpu_times() for pid in (status["clock_pid"], status["pid"])}
    return {pid: spent.user + spent.system for pid, spent in times.items()}


def _status(daemon: str) -> dict[str, Any]:
    status: dict[str, Any] = control.ask(Path(daemon), Request.STATUS)["status"]
    return status
