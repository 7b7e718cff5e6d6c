"""A workload's Parquet: checked, put in order, and streamed in batches."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from wheeld_client.replay import FLAT_OUT, Columns
from wheeld_core import extras
from wheeld_pipeline.errors import PipelineError, UsageError

COLUMNS: Final = ("arrival_ns", "latency_ns", "timeout_ns", "payload_bytes")
"""The columns that a replay reads; each holds whole numbers, 0 or more, in the order of
`arrival_ns`."""
BATCH_ROWS: Final = 1 << 16


@dataclass(frozen=True)
class WorkloadFile:
    """One file; `first_ns` is when its first request arrives."""

    path: str
    rows: int
    first_ns: int
    last_ns: int
    largest: int
    longest_ns: int


@dataclass(frozen=True)
class Source:
    """A workload on disk; `parts` are in order of arrival."""

    path: str
    parts: tuple[WorkloadFile, ...]

    @property
    def rows(self) -> int:
        return sum(part.rows for part in self.parts)

    @property
    def lasts_ns(self) -> int:
        return self.parts[-1].last_ns

    @property
    def largest(self) -> int:
        return max(part.largest for part in self.parts)

    @property
    def longest_ns(self) -> int:
        return max(part.longest_ns for part in self.parts)


def look(path: Path) -> Source:
    """Check a workload, a file or a folder of them: its files and their footers, not all their
    rows.

    `PipelineError`: there is none, a file is cut short or no Parquet, or lacks columns; it is
    named.
    """
    try:
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise PipelineError(f"a replay needs pyarrow: {extras.command('parquet')}") from error
    parts = [part for file in _files(path) if (part := _part(file)).rows]
    if not parts:
        raise PipelineError(f"{path}: got no rows, expected at least one request")
    parts.sort(key=lambda part: (part.first_ns, part.last_ns))
    return Source(str(path), tuple(parts))


def _files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise PipelineError(
            f"{path}: nothing is there; expected a workload's Parquet, as `wheeld pipeline "
            "generate` writes it"
        )
    if (path / "_temporary").exists():
        raise PipelineError(
            f"{path}: got a workload that is still being written, or was interrupted (it has a "
            "folder _temporary); wait, or generate it again with --overwrite"
        )
    files = sorted(file for file in path.glob("*.parquet") if not file.name.startswith((".", "_")))
    if not files:
        raise PipelineError(f"{path}: got a folder without *.parquet, expected a workload")
    return files


def _part(path: Path) -> WorkloadFile:
    import pyarrow
    from pyarrow import parquet

    try:
        with parquet.ParquetFile(path) as file:
            _check_columns(path, file.schema_arrow)
            ranges = {name: _range(file.metadata, name) for name in COLUMNS}
            rows = file.metadata.num_rows
    except (pyarrow.ArrowException, OSError) as error:
        raise PipelineError(f"{path}: not a complete Parquet file ({error})") from error
    arrival = ranges["arrival_ns"]
    largest, longest = ranges["payload_bytes"][1], ranges["timeout_ns"][1]
    return WorkloadFile(str(path), rows, *arrival, largest, longest)


def _check_columns(path: Path, schema: Any) -> None:
    from pyarrow import types

    for name in COLUMNS:
        if name not in schema.names:
            raise PipelineError(
                f"{path}: column {name} is missing; got {', '.join(schema.names) or 'no columns'}; "
                f"expected {', '.join(COLUMNS)}"
            )
        type = schema.field(name).type
        if not types.is_integer(type):
            raise PipelineError(f"{path}: column {name}: got type {type}, expected whole numbers")


def _range(metadata: Any, name: str) -> tuple[int, int]:
    """Smallest and largest value according to the footer; 0 and 0 if it does not have them."""
    column = metadata.schema.names.index(name)
    found = []
    for group in range(metadata.num_row_groups):
        statistics = metadata.row_group(group).column(column).statistics
        if statistics is None or not statistics.has_min_max:
            return 0, 0
        found += [statistics.min, statistics.max]
    return (min(found), max(found)) if found else (0, 0)


def stream(source: Source, index: int, of: int) -> Iterator[Columns]:
    """Every `of`-th request from request `index` on, in batches, each column int64.

    Raises
    ------
    PipelineError
        A value is null or negative, or arrivals go back in time; file and column are named.
    """
    import pyarrow
    from pyarrow import parquet

    position, last = 0, 0
    for part in source.parts:
        try:
            with parquet.ParquetFile(part.path) as file:
                for batch in file.iter_batches(BATCH_ROWS, columns=list(COLUMNS)):
                    columns = _checked(part.path, batch, last)
                    last = int(columns["arrival_ns"][-1])
                    skip = (index - position) % of
                    position += len(columns["arrival_ns"])
                    yield {name: values[skip::of] for name, values in columns.items()}
        except (pyarrow.ArrowException, OSError) as error:
            raise PipelineError(f"{part.path}: not a complete Parquet file ({error})") from error


def _checked(path: str, batch: Any, last: int) -> Columns:
    columns = {}
    for name in COLUMNS:
        column = batch.column(batch.schema.get_field_index(name))
        if column.null_count:
            raise PipelineError(f"{path}: column {name}: got a null, expected whole numbers")
        columns[name] = column.to_numpy(zero_copy_only=False).astype(np.int64, copy=False)
        if columns[name].min() < 0:
            raise PipelineError(
                f"{path}: column {name}: got {columns[name].min()}, expected whole numbers, "
                "0 or more"
            )
    arrivals = columns["arrival_ns"]
    if arrivals[0] < last or (np.diff(arrivals) < 0).any():
        raise PipelineError(
            f"{path}: column arrival_ns goes back in time; expected requests in the order of "
            "arrival: sort the workload by it"
        )
    return columns


def parse_speed(text: str) -> float:
    """A factor above 0, or `max`.

    Raises
    ------
    PipelineError
        It is something else.
    """
    if text == "max":
        return FLAT_OUT
    try:
        speed = float(text)
    except ValueError:
        speed = math.nan
    if not (math.isfinite(speed) and speed > 0):
        raise UsageError(f"speed: got {text!r}, expected a number above 0, or max")
    return speed
