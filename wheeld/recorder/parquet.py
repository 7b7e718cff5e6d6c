"""Converts spools to Parquet files, which appear by rename, whole and durable.

    TRACE/events/date=2026-11-21/hour=16/RUN-POSITION.parquet

A file is named after the run and the position of its chunk's first record, and its folders after
the hour: converting a spool again, after a kill at any instruction, makes the same files.
A fresh file is written in the spool's folder, which is on the same file system.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from wheeld.recorder import columns
from wheeld.recorder.facts import Facts
from wheeld.recorder.spool import SpoolName, chunks, counter_rows, read_facts
from wheeld_core import durable
from wheeld_core.trace_schema import COUNTERS_FOLDER, EVENTS_FOLDER
from wheeld_core.views.trace import TRACE_LOST

GROUP_ROWS: Final = 1 << 20
"""Most rows of a file, which is one row group."""
_FRESH = ".new"
_LEVEL = 1
_GROWING = ("time", "scheduled", "deadline", "delay_ns", "timer_id", "cookie", "pending")
"""Columns whose values change little from row to row: stored as differences."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

Written = Callable[[Path, int], None]


def folder_of(dataset: Path, hour: int) -> Path:
    when = _EPOCH + timedelta(hours=hour)
    return dataset / f"date={when:%Y-%m-%d}" / f"hour={when:%H}"


def convert_records(path: Path, trace: Path, written: Written, warn: Callable[[str], None]) -> None:
    """Make the Parquet files of a spool of records, which stays; calls `written` with each finished
    file and its rows, and `warn` with faults of the spool that do not prevent the conversion.

    OSError: a system error; the call can be repeated. ValueError: the spool does not name the
    daemon of its records.
    """
    facts = read_facts(path)
    for position, records in chunks(path, GROUP_ROWS):
        known = (records["kind"] >= 1) & (records["kind"] <= TRACE_LOST)
        if not known.all():  # the host went down while they were on their way to the disk
            warn(f"{path.name}: {int((~known).sum()):,} records of no known kind were left out")
        table = _events(records, position, known, facts)
        name = f"{facts.origin.run}-{position:016x}"
        _write_hours(table, trace / EVENTS_FOLDER, path.parent, name, written)
        del table
        pa.default_memory_pool().release_unused()


def _events(records: Any, position: int, known: Any, facts: Facts) -> pa.Table:
    parts = []
    for start, count, offsets in facts.pieces(position, len(records)):
        which = slice(start - position, start - position + count)
        part, good = records[which], known[which]
        where = np.arange(start, start + count, dtype=np.uint64)
        if not good.all():
            part, where = part[good], where[good]
        parts.append(columns.event_table(part, where, facts.origin, facts.names, offsets))
    return pa.concat_tables(parts) if len(parts) > 1 else parts[0]


def convert_counters(path: Path, trace: Path, written: Written) -> None:
    """Make the Parquet files of a spool of counters; raises OSError as `convert_records`."""
    name = SpoolName.parse(path.name)
    assert name is not None
    if rows := counter_rows(path):
        stem = f"{name.run}-{name.position:016x}"
        table = columns.counter_table(rows)
        _write_hours(table, trace / COUNTERS_FOLDER, path.parent, stem, written)


def _write_hours(table: pa.Table, dataset: Path, spool: Path, name: str, written: Written) -> None:
    for hour, part in _by_hour(table):
        folder = folder_of(dataset, hour)
        make_folders(folder, dataset.parent)
        path = folder / f"{name}.parquet"
        # Its own: recorders of two daemons may convert what a third one left.
        fresh = spool / f"{dataset.name}-{name}-{hour}-{secrets.token_hex(4)}{_FRESH}"
        _write_durably(part, fresh)
        durable.rename(fresh, path)
        written(path, len(part))


def _by_hour(table: pa.Table) -> Iterator[tuple[int, pa.Table]]:
    if not len(table):
        return
    time_us = table["time"].cast(pa.int64()).to_numpy()
    hours = columns.hours(time_us)
    first, last = int(hours.min()), int(hours.max())
    if first == last:
        yield first, table
        return
    for hour in np.unique(hours).tolist():
        yield hour, table.filter(pa.array(hours == hour))


def _write_durably(table: pa.Table, path: Path) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o640)
    try:
        with open(fd, "wb", closefd=False) as file, _writer(file, table.schema) as writer:
            writer.write_table(table, row_group_size=GROUP_ROWS)
        os.fsync(fd)
    except BaseException:
        with contextlib.suppress(OSError):
            path.unlink()
        raise
    finally:
        os.close(fd)


def _writer(file: Any, schema: pa.Schema) -> pq.ParquetWriter:
    texts = [field.name for field in schema if pa.types.is_dictionary(field.type)]
    return pq.ParquetWriter(
        file,
        schema,
        compression="zstd",
        compression_level=_LEVEL,
        use_dictionary=texts,
        column_encoding={
            name: "DELTA_BINARY_PACKED" for name in _GROWING if texts and name in schema.names
        },
        store_schema=False,  # readers get plain strings, however they are stored here
    )


def make_folders(folder: Path, root: Path) -> None:
    """Make a folder durably, with its parents up to `root`, which exists."""
    if folder.is_dir():
        return
    if folder.parent != root:
        make_folders(folder.parent, root)
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o750)
    durable.sync(folder.parent)


def remove_fresh(spool: Path, run: str) -> None:
    """Remove the files that killed recorders of a run did not finish."""
    with contextlib.suppress(FileNotFoundError):
        for path in spool.iterdir():
            if path.name.endswith(_FRESH) and re.search(rf"-{run}-[0-9a-f]{{16}}-", path.name):
                path.unlink(missing_ok=True)
