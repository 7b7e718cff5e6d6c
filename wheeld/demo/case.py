"""One case, from requests to figures: daemon, workers, account."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from wheeld import embedded
from wheeld.demo import account, pipeline, processes, summary, workload
from wheeld.demo.account import Account
from wheeld_core.progress import show_progress

SPARE: Final = 4
"""Capacity over the pending timers of a punctual run, for workers that catch up."""
LEAST_CAPACITY: Final = 1 << 16
MOST_CAPACITY: Final = 1 << 24


@dataclass(frozen=True)
class Outcome:
    """A case that was run: `figures` as from `summarise`."""

    title: str
    account: Account
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
) -> Outcome:
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
        np.save(directory / "texts.npy", workload.payload_texts(seed, width))
        tick()
        with embedded(**config) as daemon, processes.running(directory, workers, daemon) as crew:
            spent = _watch(crew, daemon, title, requests, tick)
        logs = [account.load(directory / f"worker-{index}.npz") for index in range(workers)]
    merged = account.merge(requests, logs)
    verdict = account.check(merged)
    usage = summary.Usage(sum(log.facts["cpu_s"] for log in logs), *spent)
    figures = summary.summarise(name, merged, verdict, usage, crew.start_ns)
    return Outcome(title, merged, figures, crew.start_ns)


def _watch(
    crew: processes.Crew,
    daemon: str,
    title: str,
    requests: npt.NDArray[Any],
    tick: Callable[[], None],
) -> tuple[float, float, int]:
    """Let the workers run; returns CPU seconds of clock and supervisor, and shared bytes."""
    crew.wait_ready(tick)
    status = processes.facts(daemon)
    idle = {pid: processes.cpu_seconds(pid) for pid in (status["clock_pid"], status["pid"])}
    gaps = np.diff(requests["arrival_ns"], prepend=0)
    longest_wait_s = int(gaps.max() + requests["timeout_ns"].max()) / 1e9
    with show_progress(title, len(requests), "requests") as tell:

        def watch() -> None:
            tick()
            tell(crew.counts()["ended"])

        crew.go()
        crew.wait_done(watch, longest_wait_s)
    status = processes.facts(daemon)
    clock_s, supervisor_s = (  # of a clock that died on the way nothing is known any more
        processes.cpu_seconds(pid) - idle.get(pid, 0.0)
        for pid in (status["clock_pid"], status["pid"])
    )
    return clock_s, supervisor_s, status["shared_bytes"]
