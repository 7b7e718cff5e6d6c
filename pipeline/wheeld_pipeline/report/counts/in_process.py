"""The scans of a report in this process: up to some million rows Spark takes longer to start."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd

from wheeld_core.progress import show_progress
from wheeld_pipeline.report.counts import counters as daemon, cube, tried_wheels, wheels
from wheeld_pipeline.report.counts.columns import WHEEL
from wheeld_pipeline.report.counts.counters import RowWindow
from wheeld_pipeline.report.counts.engine import Engine
from wheeld_pipeline.trace_files import TraceFiles, connection, errors_named, parquet

T = TypeVar("T")
R = TypeVar("R")


class LocalEngine(Engine):
    """By DuckDB. `counters` are files that have all rows; `window` says which count."""

    def __init__(self, files: TraceFiles, counters: Sequence[Path], window: RowWindow) -> None:
        self._files, self.window = files, window
        self._counter_files = [str(file) for file in counters]
        self._open = ExitStack()

    def __enter__(self) -> LocalEngine:
        if files := self._counter_files:
            base = self._open.enter_context(connection())
            with errors_named(files):
                base.execute(
                    f"CREATE TABLE counters AS SELECT {', '.join(daemon.COLUMNS)} FROM (FROM "
                    f"{parquet(files)} UNION ALL BY NAME SELECT NULL::VARCHAR[] AS full_rings, "
                    f"NULL::BIGINT AS run_delay_ns WHERE false)"
                )

            def ask(sql: str) -> Any:
                return base.execute(sql.format(counters="counters")).df()

            self.counters = daemon.Counters(ask, self.window)
        return self

    def __exit__(self, *exception: object) -> None:
        self._open.close()

    def ask(self, sql: str) -> Any:
        with self._files.opened(threads=cores()) as base:
            return base.execute(sql.format(events="events")).df()

    def scan(self, step_seconds: int, tried: wheels.Candidates) -> None:
        import pyarrow as pa

        self._tried = tried
        self._lines = pa.concat_tables([cube.schema().empty_table(),
                                        *self._parts(step_seconds, tried)])  # fmt: skip

    def _parts(self, step_seconds: int, tried: wheels.Candidates) -> list[Any]:
        function = partial(count_part, self._files, step_seconds, tried)
        parts = range(len(self._files.parts))
        with show_progress("report", len(parts), "parts") as tell:
            found = []
            for done, lines in enumerate(each_of(function, parts), 1):
                found.append(lines)
                tell(done)
        return found

    def counted(self) -> dict[str, Any]:
        return cube.tables(self._lines)

    def replayed(self) -> Any:
        import pyarrow.compute as pc

        met = self._lines.filter(pc.equal(self._lines["what"], cube.MET))
        blocks = met.select([*WHEEL, "block"]).to_pandas().groupby([*WHEEL, "block"]).indices
        tables = [tried_wheels.try_block(met.take(own), self._tried) for own in blocks.values()]
        if not tables:
            return tried_wheels.nothing()
        whole = pd.concat([each.to_pandas() for each in tables], ignore_index=True)
        sums = whole.groupby(list(tried_wheels.KEY), as_index=False)
        return sums[list(tried_wheels.NUMBERS[2:])].sum()


def count_part(files: TraceFiles, step_seconds: int, tried: wheels.Candidates, part: int) -> Any:
    spare = max(1, cores() // len(files.parts))
    with files.opened(part, spare) as base:
        return cube.count(base, step_seconds, tried)


def each_of(function: Callable[[T], R], items: Sequence[T]) -> Iterator[R]:
    """Apply a function to each item, in threads: DuckDB and numpy let each other run."""
    with ThreadPoolExecutor(cores()) as pool:
        try:
            yield from pool.map(function, items)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def cores() -> int:
    return len(os.sched_getaffinity(0))
