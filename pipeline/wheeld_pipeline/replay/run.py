"""A whole replay: check the files and the daemon, run the workers, add up the results."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from wheeld_client import Timers, connect
from wheeld_client.replay import FLAT_OUT, Outcome, running
from wheeld_pipeline.errors import PipelineError, UsageError
from wheeld_pipeline.replay import source
from wheeld_pipeline.replay.source import Source, parse_speed

_WORKER: Final = "wheeld_pipeline.replay.worker"
HEAD_START_NS: Final = 100_000_000
MOST_WORKERS: Final = 256


def check(speed: str | float, workers: int) -> float:
    """The factor of a speed; raises the errors that `replay` raises before it reads anything."""
    factor = parse_speed(str(speed))
    if not 1 <= workers <= MOST_WORKERS:
        raise UsageError(f"workers: got {workers}, expected 1 to {MOST_WORKERS}")
    return factor


def replay(
    path: str | os.PathLike[str],
    daemon: str = "default",
    *,
    speed: str | float = 1.0,
    workers: int = 2,
    payloads: bool = True,
    worker: str = "replay",
    runtime_dir: str | os.PathLike[str] | None = None,
    tell: Callable[[int], object] = lambda ended: None,
) -> Outcome:
    """Replay a workload against a daemon, and account for each request.

    A request is a timer, scheduled with its timeout when it arrives, and cancelled when it is done
    earlier. The files are streamed; memory grows only with the requests in flight.

    Parameters
    ----------
    path : path
        A workload's Parquet: a file or a folder, columns as in `wheeld_pipeline.workload.COLUMNS`.
    daemon : str
        Name of the daemon, or path of its runtime directory.
    speed : float or 'max'
        How much faster than recorded requests arrive; latencies and timeouts do not change.
        'max': as fast as they can be scheduled.
    workers : int
        Processes; each takes every `workers`-th request.
    payloads : bool
        Schedule payloads of the recorded sizes, too.
    worker : str
        Prefix of the workers' names in the daemon: `worker`-0, `worker`-1 ...
    runtime_dir : path, optional
        As in `wheeld_client.connect`.
    tell : callable
        Called from time to time with the number of requests that have ended.

    Returns
    -------
    Outcome

    Raises
    ------
    PipelineError
        The files cannot be used, or a worker failed: nothing of the replay stays in the daemon.
    DaemonNotRunning
    """
    factor = check(speed, workers)
    workload = source.look(Path(path))
    order = {
        "path": os.path.abspath(path),
        "daemon": str(daemon),
        "runtime_dir": None if runtime_dir is None else os.fspath(runtime_dir),
        "speed": str(speed),
        "flat_out": factor == FLAT_OUT,
        "payloads": payloads,
        "seed": 0,
        "worker": worker,
    }
    with tempfile.TemporaryDirectory(prefix="wheeld-replay-") as made:
        directory = Path(made)
        with connect(daemon, worker=worker, runtime_dir=runtime_dir) as timers:
            _check_room(workload, timers, payloads)
            with running(directory, workers, _WORKER, order, PipelineError) as crew:
                crew.wait_ready()
                crew.go(timers.now_ns() + HEAD_START_NS)
                crew.wait_done(tell)
            return crew.outcome(workload.rows, _asked(workload, factor))


def _asked(workload: Source, speed: float) -> float | None:
    if speed == FLAT_OUT or not workload.lasts_ns:
        return None
    return workload.rows / workload.lasts_ns * 1e9 * speed


def _check_room(workload: Source, timers: Timers, payloads: bool) -> None:
    names = timers.expiration_dtype.names or ()
    room = timers.expiration_dtype["payload"].itemsize if "payload" in names else 0
    if payloads and workload.largest > room:
        raise PipelineError(
            f"{workload.path}: got payloads of up to {workload.largest} bytes, and the daemon in "
            f"{timers.directory} holds {room} per timer; start it with --payload-bytes "
            f"{workload.largest}, or replay with --no-payloads"
        )
