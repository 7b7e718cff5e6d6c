"""Daemons that record, the load on them, and what the trace says of it."""

import os
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import wheeld
from daemons import Daemon, until
from recorder_records import read
from wheeld_client import Timers, connect

TICK = 10**6


class Recording:
    """A daemon with a trace.

    Parameters
    ----------
    daemon : Daemon
        It is started by the test.
    trace : Path
        Where it records.
    """

    def __init__(self, daemon: Daemon, trace: Path) -> None:
        self.daemon, self.trace = daemon, trace

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self.daemon.status()["trace"]
        return found

    @property
    def recorder_pid(self) -> int:
        return int(until(lambda: self.status()["recorder_pid"], "a recorder"))

    def kill_recorder(self) -> int:
        pid = self.recorder_pid
        os.kill(pid, signal.SIGKILL)
        until(lambda: self.status()["recorder_pid"] not in (None, pid), "another recorder")
        return pid

    def advance(self, ns: int) -> None:
        wheeld.advance(str(self.daemon.directory), ns / 1e9)

    @contextmanager
    def worker(self, name: str) -> Iterator[Timers]:
        with connect(str(self.daemon.directory), worker=name) as timers:
            yield timers

    def rows(self) -> list[dict[str, Any]]:
        return read(self.trace)

    def counts(self) -> dict[str, int]:
        found: Counter[str] = Counter()
        for row in self.rows():
            found[row["lost_event"] or row["event"]] += row["count"]
        return dict(found)

    def last(self) -> dict[str, Any]:
        rows = [row for row in read(self.trace, "counters") if row["last"]]
        assert len(rows) == 1
        return rows[0]

    def spooled(self) -> list[str]:
        return sorted(path.name for path in (self.trace / "_spool").iterdir())


@contextmanager
def made_to_record(name: str, runtime_dir: Path, trace: Path) -> Iterator[Recording]:
    options = {"virtual_clock": True, "capacity": 20_000, "max_workers": 3}
    with Daemon(runtime_dir, name, trace=trace, **options) as daemon:
        yield Recording(daemon, trace)


def load(timers: Timers, rng: np.random.Generator, count: int) -> None:
    ids = timers.schedule_many(rng.uniform(0.001, 0.2, count))
    timers.cancel_many(rng.choice(ids, count // 4, replace=False))
    for id in rng.choice(ids, count // 10, replace=False).tolist():
        timers.reschedule(id, float(rng.uniform(0.001, 0.4)))
    drain(timers)


def drain(timers: Timers) -> None:
    while len(timers.poll()):
        pass


def account(*workers: Timers) -> dict[str, int]:
    totals: Counter[str] = Counter()
    for timers in workers:
        stats = timers.stats()
        for kind in ("scheduled", "rescheduled", "cancelled"):
            totals[kind] += stats[kind]
        totals["expired"] += stats["received"]
    return {kind: count for kind, count in totals.items() if count}
