"""Reads a recorded trace, after checking everything that can be checked before Spark starts to
read.

Errors in a trace become a `PipelineError` that names the file and the column.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from wheeld_core.trace_schema import (
    ADDED_COLUMNS,
    COUNTER_COLUMNS,
    COUNTERS_FOLDER,
    EVENT_COLUMNS,
    EVENTS_FOLDER,
    POSITIONS_PER_MS,
    Column,
)
from wheeld_pipeline.errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_SPOOL: Final = "_spool"
_NAMED: Final = re.compile(r"([0-9a-f]{16})-([0-9a-f]{16})\.parquet")
_REMOTE: Final = re.compile(r"^(?!file:)[a-z][a-z0-9+.-]*://", re.IGNORECASE)
_OWN: Final = re.compile(rf"\b{PipelineError.__name__}: (.+)")
_FILE: Final = re.compile(r"(?:file:/+|[a-z0-9+.-]+://)?[^\s'\"\[\]]*\.parquet")


def read_events(spark: SparkSession, path: str | Path) -> DataFrame:
    """The events of a trace: `EVENT_COLUMNS`, and the partition columns `date` and `hour`.

    Parameters
    ----------
    spark : SparkSession
    path : str or Path
        The trace's directory, or a URL that Spark can read.

    Raises
    ------
    PipelineError
        There is no trace, none of its files is complete yet, a file is cut short or not Parquet,
        or a column is missing or of the wrong type.
    """
    return _read(spark, path, EVENTS_FOLDER, EVENT_COLUMNS)


def read_counters(spark: SparkSession, path: str | Path) -> DataFrame | None:
    """The daemon's counters in a trace: `COUNTER_COLUMNS`, `date` and `hour`; None: it has none.

    Raises
    ------
    PipelineError
        As `read_events`, except that counters may be missing.
    """
    folder = _join(path, COUNTERS_FOLDER)
    if is_local(path):
        if not _parquet_files(Path(_plain(folder))):
            return None
        return _read(spark, path, COUNTERS_FOLDER, COUNTER_COLUMNS)
    try:
        return _read(spark, path, COUNTERS_FOLDER, COUNTER_COLUMNS)
    except PipelineError as error:
        if "there is no" in str(error):
            return None
        raise


@contextmanager
def reading(path: str | Path) -> Iterator[None]:
    """Wraps code that makes Spark read a trace: turns its errors about files into
    `PipelineError`."""
    try:
        yield
    except Exception as error:
        if (known := _explained(error, path)) is None:
            raise
        raise known from error


def _read(
    spark: SparkSession, path: str | Path, folder: str, columns: tuple[Column, ...]
) -> DataFrame:
    whole = _join(path, folder)
    if is_local(path):
        _check_files(path, Path(_plain(whole)), columns)
        whole = Path(_plain(whole)).resolve().as_uri()  # or a cluster looks in its own file system
    with reading(path):
        frame = spark.read.parquet(whole)
        types = dict(frame.dtypes)
    for column in columns:
        _check_column(column, types.get(column.name), str(whole))
    return frame


def is_local(path: str | Path) -> bool:
    return _REMOTE.match(str(path)) is None


def _plain(path: str) -> str:
    return re.sub(r"^file:/*", "/", path)


def _join(path: str | Path, folder: str) -> str:
    return f"{str(path).rstrip('/')}/{folder}"


def check_trace(path: str | Path) -> None:
    """Check a trace's files without Spark: their footers, and that there is an event.

    Traces at remote URLs are not checked.

    Raises
    ------
    PipelineError
        As `read_events`.
    """
    if not is_local(path):
        return
    folder = Path(_plain(_join(path, EVENTS_FOLDER)))
    rows = _check_files(path, folder, EVENT_COLUMNS)
    _check_each(_parquet_files(folder.with_name(COUNTERS_FOLDER)), COUNTER_COLUMNS)
    if not rows:
        raise PipelineError(
            f"the trace {path} has no events: expected at least one row; has the daemon had a "
            f"timer yet?"
        )


def event_files(path: str | Path) -> list[Path] | None:
    return _files(path, EVENTS_FOLDER)


def counter_files(path: str | Path) -> list[Path] | None:
    return _files(path, COUNTERS_FOLDER)


def _files(path: str | Path, folder: str) -> list[Path] | None:
    if not is_local(path):
        return None
    return [each.resolve() for each in _parquet_files(Path(_plain(_join(path, folder))))]


def runs_cut_short(path: str | Path) -> frozenset[str]:
    """Runs whose beginning retention has removed.

    The recorder names a file after its run and the position of its first record. If a run is
    complete, its first file has the start position of a ring. Files with other names are ignored.
    """
    names = [_NAMED.fullmatch(file.name) for file in event_files(path) or ()]
    firsts: dict[str, int] = {}
    for run, place in (name.groups() for name in names if name):
        firsts[run] = min(int(place, 16), firsts.get(run, 1 << 64))
    return frozenset(run for run, place in firsts.items() if place % (1 << POSITIONS_PER_MS))


def _parquet_files(folder: Path) -> list[Path]:
    """Files that Spark will read, which excludes paths with a hidden part."""
    found = []
    for file in sorted(folder.rglob("*")):
        inside = file.relative_to(folder).parts
        if not any(part.startswith(("_", ".")) for part in inside) and file.is_file():
            found.append(file)
    return found


def _check_files(trace: str | Path, folder: Path, columns: tuple[Column, ...]) -> int:
    """Raise unless there are files and all of them are readable; returns their number of rows."""
    root = folder.parent
    if not root.exists():
        raise PipelineError(
            f"there is no trace {trace}: expected the directory given to `wheeld start --trace DIR`"
        )
    if not root.is_dir():
        raise PipelineError(f"{trace} is a file: expected the directory of a trace")
    files = _parquet_files(folder)
    if not files:
        raise PipelineError(_why_empty(trace, root, folder))
    return _check_each(files, columns)


def _check_each(files: list[Path], columns: tuple[Column, ...]) -> int:
    return sum(_check_file(file, columns) for file in files)


def _why_empty(trace: str | Path, root: Path, folder: Path) -> str:
    if any((root / _SPOOL).glob("*")):
        return (
            f"the trace {trace} has no complete file yet: the recorder still collects its first "
            f"one; wait for it (`wheeld start --trace-every`) or stop the daemon"
        )
    if any(root.glob("*.parquet")) or any(root.glob("*/*.parquet")):
        return f"{trace} has Parquet files but no folder {folder.name}/: it is not a trace"
    return f"the trace {trace} is empty: expected Parquet files in {folder.name}/date=.../hour=.../"


def _check_file(file: Path, columns: tuple[Column, ...]) -> int:
    """Check a file's footer; returns its number of rows."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        footer = pq.read_metadata(file)
        schema = footer.schema.to_arrow_schema()
    except FileNotFoundError as error:
        raise vanished(file) from error
    except pa.ArrowInvalid as error:
        raise PipelineError(
            f"{file} is cut short or not a Parquet file ({error}): move it away, the report then "
            f"goes without its rows"
        ) from error
    except (pa.ArrowException, OSError) as error:
        raise unreadable(file, error) from error
    for column in columns:
        here = column.name in schema.names
        got = _spark_name(schema.field(column.name).type) if here else None
        _check_column(column, got, str(file))
    return int(footer.num_rows)


def _check_column(column: Column, got: str | None, where: str) -> None:
    if got is None and column.name in ADDED_COLUMNS:
        return
    if got is None:
        raise PipelineError(
            f"{where} has no column {column.name}: expected {column.type} ({column.meaning}); is "
            f"it a trace of this version?"
        )
    if got != column.type:
        raise PipelineError(
            f"{where}: column {column.name} is {got}, expected {column.type} ({column.meaning})"
        )


def _spark_name(arrow: Any) -> str:
    import pyarrow as pa

    if pa.types.is_timestamp(arrow):
        return (
            "timestamp" if arrow.tz and arrow.unit in ("us", "ms", "ns") else f"timestamp {arrow}"
        )
    if pa.types.is_dictionary(arrow):
        return _spark_name(arrow.value_type)
    if pa.types.is_list(arrow) or pa.types.is_large_list(arrow):
        return f"array<{_spark_name(arrow.value_type)}>"
    if pa.types.is_struct(arrow):
        fields = (f"{field.name}:{_spark_name(field.type)}" for field in arrow)
        return f"struct<{','.join(fields)}>"
    simple = {"int64": "bigint", "int32": "int", "bool": "boolean", "large_string": "string"}
    return simple.get(str(arrow), str(arrow))


def vanished(file: object) -> PipelineError:
    return PipelineError(
        f"{file} vanished while it was read: retention removed it, or it was replaced; run it "
        f"again, with --from if the oldest hours are being removed"
    )


def unreadable(file: object, error: BaseException) -> PipelineError:
    return PipelineError(f"{file} cannot be read: {error}; move it away")


def _explained(error: Exception, path: str | Path) -> PipelineError | None:
    """Translate an error of Spark about files for users; None: it is about something else."""
    text = str(error)
    if own := _OWN.search(text):  # a task of this package that could not read a file
        return PipelineError(own[1].strip())
    named = _FILE.search(text)
    file = named[0] if named else str(path)
    if "PATH_NOT_FOUND" in text:
        return PipelineError(f"there is no {path} with a trace's folders: is the path right?")
    if "UNABLE_TO_INFER_SCHEMA" in text:
        return PipelineError(f"the trace {path} is empty: expected Parquet files of events")
    if "FILE_NOT_EXIST" in text or "FileNotFoundException" in text or "does not exist" in text:
        return vanished(file)
    if "is not a Parquet file" in text or "CANNOT_READ_FILE_FOOTER" in text:
        return PipelineError(f"{file} is cut short or not a Parquet file: move it away")
    if "FAILED_READ_FILE" in text or "SchemaColumnConvertNotSupportedException" in text:
        reason = text.strip().splitlines()[0]
        return PipelineError(f"{file} cannot be read: {reason}")
    return None
