"""Jobs that run each second: how late, and at which cost, beside APScheduler's in one process.

Each has a moment of the second of its own, by one trigger of APScheduler's that both take. A job
notes when it begins; the rest of that time, divided by a second, is how late it is.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

import wheeld
from bench.cases import servers
from bench.processes import Background, Sample, family_cpu, ready

JOBS = 1_000
WORKERS = 4
SECONDS = 8.0
WARM_SECONDS = 2.0
THREADS = 4
EPOCH = datetime(2020, 1, 1, tzinfo=UTC)
Noted = list[int]


def _job(noted: Noted, moment_us: int) -> Callable[[], None]:
    def run() -> None:
        noted.append(time.time_ns() // 1000 - moment_us)

    return run


def _triggers(count: int) -> Iterator[tuple[int, Any]]:
    from apscheduler.triggers.interval import IntervalTrigger

    for number in range(count):
        moment = number * 1_000_000 // count
        start = EPOCH + timedelta(microseconds=moment)
        yield moment, IntervalTrigger(seconds=1, start_date=start, timezone=UTC)


def _of(noted: Noted) -> list[int]:
    """How late each run was, us. A run that is a second late or later counts as missed."""
    return [one % 1_000_000 for one in noted]


def _worker(name: str, count: int, pipe: Connection) -> None:
    """Tell, whenever asked, how late the runs since the last time were."""
    from wheeld_client import Jobs

    noted: Noted = []
    jobs = Jobs("bench", daemon=name, version=1, threads=THREADS)
    for number, (moment, trigger) in enumerate(_triggers(count)):
        jobs.on(trigger, name=f"job-{number}")(_job(noted, moment))
    jobs.start()
    _answer(noted, pipe)


def _scheduler(count: int, pipe: Connection) -> None:
    """APScheduler's, with its thread pool and its jobs in memory."""
    from apscheduler.schedulers.background import BackgroundScheduler

    noted: Noted = []
    scheduler = BackgroundScheduler(job_defaults={"misfire_grace_time": None})
    for moment, trigger in _triggers(count):
        scheduler.add_job(_job(noted, moment), trigger)
    scheduler.start()
    _answer(noted, pipe)


def _answer(noted: Noted, pipe: Connection) -> None:
    ready(pipe)
    while True:
        found, noted[:] = noted[:], []
        pipe.send((True, _of(found)))
        pipe.recv()


def _round(crew: list[Background], seconds: float, count: int) -> Sample:
    for one in crew:
        one.go()
        one.receive()
    before, begin = family_cpu().total(), time.monotonic()
    time.sleep(seconds)
    spent, lasted = family_cpu().total() - before, time.monotonic() - begin
    late: list[int] = []
    for one in crew:
        one.go()
        late += one.receive()
    runs = max(len(late), 1)
    p50, p99 = np.percentile(late or [0], (50, 99)) / 1e3
    return {
        "p50, ms": float(p50),
        "p99, ms": float(p99),
        "CPU, us": 1e6 * spent / runs,
        "not run, %": 100 * max(0.0, 1 - runs / (count * lasted)),
    }


def lateness(kind: str, quick: bool) -> Iterator[Sample]:
    servers.package("apscheduler")
    count, seconds = (50, 1.5) if quick else (JOBS, SECONDS)
    with ExitStack() as stack:
        if kind == "wheeld":
            name = stack.enter_context(wheeld.embedded(capacity=65_536))
            crew = [Background(_worker, name, count) for _ in range(WORKERS)]
        else:
            crew = [Background(_scheduler, count)]
        for one in crew:
            stack.callback(one.stop)
        for one in crew:
            one.receive()
            one.go()
            one.receive()
        time.sleep(0.5 if quick else WARM_SECONDS)  # until all are defined
        while True:
            yield _round(crew, seconds, count)


CONTENDERS = {kind: partial(lateness, kind) for kind in ("wheeld", "APScheduler")}
