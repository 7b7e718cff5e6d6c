"""The scans of a report in this process: with fewer than some million rows Spark takes longer just
to start.

Spark's tasks call the same functions.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any, Final, TypeVar

import pandas as pd

from wheeld_core.progress import show_progress
from wheeld_pipeline import trace_files
from wheeld_pipeline.report.counts import counters as daemon, herds, scan, tried_wheels, wheels
from wheeld_pipeline.report.counts.rows import COLUMNS, WHEEL
from wheeld_pipeline.trace_files import TraceFiles

T = TypeVar("T")
R = TypeVar("R")
_WORTH_A_PROCESS: Final = 3
"""The number of tasks from which on starting processes pays."""


class LocalEngine:
    """See `analyse.Engine`. `counters` has all rows of `counters.COLUMNS`; `window` selects the
    rows that count.
    """

    def __init__(self, files: TraceFiles, counters: Any, window: daemon.RowWindow) -> None:
        self._files, self.window = files, window
        self._wheels = list(_by_wheel(counters)) if counters is not None else []
        self._growth: Any = None

    def __enter__(self) -> LocalEngine:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def period(self) -> tuple[int, int]:
        import pyarrow as pa
        import pyarrow.compute as pc

        found = []
        for task in range(len(self._files.tasks)):
            for batch in trace_files.batches(self._files, task, ["time"]):
                if batch.num_rows:
                    times = batch.column("time").cast(pa.timestamp("us", "UTC"), safe=False)
                    both = pc.min_max(times.cast(pa.int64()))
                    found += [both["min"].as_py(), both["max"].as_py()]
        return (min(found), max(found)) if found else (0, 0)

    def settings(self) -> Any:
        if not self._wheels:
            return None
        rows = [daemon.settings_of(own, self.window).to_pandas() for own in self._wheels]
        return pd.concat(rows, ignore_index=True)

    def scan(self, step_seconds: int, tried: wheels.Candidates) -> None:
        self._tried = tried
        self._tables, self._met = scan.split(self._lines(step_seconds, tried))
        if self._wheels:
            growth = [daemon.growth_of(own, self.window, step_seconds) for own in self._wheels]
            self._growth = pd.concat([each.to_pandas() for each in growth], ignore_index=True)

    def _lines(self, step_seconds: int, tried: wheels.Candidates) -> list[Any]:
        function = partial(scan_task, files=self._files, step_seconds=step_seconds, tried=tried)
        lines: list[Any] = []
        tasks = range(len(self._files.tasks))
        with show_progress("report", len(tasks), "parts") as tell:
            for done, found in enumerate(each_of(function, tasks), 1):
                lines += found
                tell(done)
        return lines

    def growth(self) -> Any:
        return self._growth

    def counted(self) -> dict[str, Any]:
        return scan.tables(self._tables)

    def replayed(self) -> Any:
        """The result of each candidate, see `tried_wheels.try_block`."""
        rows = [
            tried_wheels.try_block(own, self._tried)
            for own in _groups(self._met, (*WHEEL, "block"))
        ]
        if not rows:
            return tried_wheels.nothing()
        whole = pd.concat([each.to_pandas() for each in rows], ignore_index=True)
        return whole.groupby(list(tried_wheels.KEY), as_index=False)[
            list(tried_wheels.NUMBERS[2:])
        ].sum()

    def makers(self, what: herds.Sought) -> Any:
        """Lines of `herds.count`, from the row groups that matter."""
        near = self._files.near(what.windows)
        batches = (
            batch
            for task in range(len(near.tasks))
            for batch in trace_files.batches(near, task, list(herds.READ))
        )
        found = [each.to_pandas() for each in herds.count(batches, what)]
        return pd.concat(found, ignore_index=True) if found else pd.DataFrame()


def scan_task(
    task: int, files: TraceFiles, step_seconds: int, tried: wheels.Candidates
) -> list[Any]:
    batches = trace_files.batches(files, task, list(COLUMNS))
    return list(scan.count(batches, step_seconds, tried))


def each_of(function: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
    """Apply a function to each item, in other processes if that pays."""
    cores = len(os.sched_getaffinity(0))
    if len(items) < _WORTH_A_PROCESS or cores == 1:
        yield from map(function, items)
        return
    with ProcessPoolExecutor(
        min(cores, len(items)), multiprocessing.get_context("spawn"), _ignore_interrupts
    ) as pool:
        try:
            yield from pool.map(function, items)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _ignore_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _by_wheel(table: Any) -> Iterator[Any]:
    return _groups(table, WHEEL)


def _groups(table: Any, keys: tuple[str, ...]) -> Iterator[Any]:
    """Groups of rows with equal keys."""
    if not table.num_rows:
        return
    found = table.select(list(keys)).to_pandas().groupby(list(keys), sort=True)
    for rows in found.indices.values():
        yield table.take(rows).combine_chunks()
