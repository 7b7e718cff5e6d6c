"""Rows: the columns and values of a DataFrame that can become timers, and the file for them.

Columns and types are checked when the writer is made, values as they arrive: all before anything is
sealed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from wheeld_core.timer_options import Clock
from wheeld_pipeline.errors import PipelineError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import DataType, StructType

CHUNK_ROWS: Final = 1 << 14
"""Rows that are staged and armed at once."""
_INTEGERS: Final = ("byte", "short", "integer", "long")
_NUMBERS: Final = ("double", "float", "decimal", *_INTEGERS)
_WANTED: Final = {
    "delay": ("double", (*_NUMBERS, "day-time interval")),
    "deadline": ("timestamp", ("timestamp",)),
    "cookie": ("bigint", (*_INTEGERS, "decimal")),
    "payload": ("binary", ("binary",)),
    "target": ("string", ("string",)),
}
"""For each column the type to cast to and the types accepted; names are case-insensitive, as in
Spark."""
_LEAST_BITS, _MOST_BITS = -(2**63), 2**64
PARKED_NS: Final = 2**63 - 1
"""A deadline that no row has."""
_LAST_NS: Final = PARKED_NS - 1
_MIX: Final = np.uint64(0x9E3779B97F4A7C15)


def staged_schema() -> pa.Schema:
    """The schema of the file of rows: `deadline` is ns on the stage's clock."""
    import pyarrow as pa

    fields = [("deadline", pa.int64()), ("cookie", pa.uint64()), ("payload", pa.large_binary())]
    return pa.schema([*fields, ("target", pa.string())])


def check_columns(schema: StructType) -> Clock:
    """Raise unless rows of that schema can be timers; returns the clock of their deadlines.

    Raises
    ------
    PipelineError
        A column is unknown or of a wrong type, or there is not exactly one of delay and deadline.
    """
    names = [field.name.lower() for field in schema.fields]
    for name, field in zip(names, schema.fields, strict=True):
        if name not in _WANTED:
            raise PipelineError(
                f"column {field.name!r}: expected delay or deadline, and cookie, payload, target; "
                "select what is to be written"
            )
        wanted, allowed = _WANTED[name]
        if _kind(field.dataType) not in allowed:
            raise PipelineError(
                f"column {field.name!r} is {field.dataType.simpleString()}: expected {wanted}; "
                f"CAST({field.name} AS {wanted.upper()}) makes one"
            )
    times = {"delay", "deadline"} & set(names)
    if len(times) != 1:
        got = "both delay and deadline" if times else f"the columns {', '.join(schema.names)}"
        raise PipelineError(f"got {got}: expected exactly one of delay and deadline")
    if len(set(names)) != len(names):
        raise PipelineError(f"columns {', '.join(schema.names)}: one of them occurs twice")
    return "monotonic" if times == {"delay"} else "realtime"


def _kind(data_type: DataType) -> str:
    name = data_type.typeName()
    return "day-time interval" if name == "daytimeinterval" else name


class Digest:
    """Identifies the rows of a repeated partition: their number, and a digest of their cookies."""

    def __init__(self) -> None:
        self.rows = 0
        self.cookies = 0

    def add(self, cookies: npt.NDArray[np.uint64]) -> None:
        """Take in some rows."""
        self.rows += len(cookies)
        mixed = (cookies + _MIX) * _MIX
        mixed ^= mixed >> np.uint64(29)
        mixed *= _MIX
        self.cookies = (self.cookies + int(mixed.sum(dtype=np.uint64))) % 2**64


class Staging:
    """Turns Spark's Arrow batches into staged rows.

    Parameters
    ----------
    room : int
        Bytes of payload that a timer of this wheel holds.
    now_ns : callable
        The time of the wheel's base clock.
    """

    def __init__(self, room: int, now_ns: Callable[[], int]) -> None:
        self._room, self._now_ns = room, now_ns
        self.digest = Digest()
        self.targets: set[str] = set()

    def staged(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield checked batches of one target each, of about `CHUNK_ROWS` rows where possible.

        Raises
        ------
        PipelineError
            A value is not allowed; column and row (of this partition, from 0) are named.
        """
        import pyarrow as pa

        waiting: list[pa.RecordBatch] = []
        rows = 0
        for batch in batches:
            waiting.append(self._convert(batch))
            rows += batch.num_rows
            if rows >= CHUNK_ROWS:
                yield from _by_target(pa.Table.from_batches(waiting))
                waiting, rows = [], 0
        if rows:
            yield from _by_target(pa.Table.from_batches(waiting))

    def check(self, batches: Iterator[pa.RecordBatch]) -> None:
        for batch in batches:
            self._convert(batch)

    def _convert(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        import pyarrow as pa

        first, count = self.digest.rows, batch.num_rows
        names = [name.lower() for name in batch.schema.names]
        batch = batch.rename_columns(names)
        if "delay" in names:
            deadlines = self._from_delays(_column(batch, "delay", first), first)
        else:
            deadlines = self._from_deadlines(_column(batch, "deadline", first))
        cookies = np.zeros(count, np.uint64)
        if "cookie" in names:
            cookies = _bits(_column(batch, "cookie", first), first)
        self.digest.add(cookies)
        columns = [
            pa.array(deadlines),
            pa.array(cookies),
            self._payloads(batch, first) if "payload" in names else _empty(count),
            batch.column("target") if "target" in names else pa.nulls(count, pa.string()),
        ]
        if "target" in names:
            self.targets.update(batch.column("target").drop_null().unique().to_pylist())
        return pa.RecordBatch.from_arrays(columns, schema=staged_schema())

    def _from_delays(self, delays: Any, first: int) -> npt.NDArray[np.int64]:
        seconds = _seconds(delays)
        wrong = ~((seconds >= 0) & np.isfinite(seconds))
        if wrong.any():
            row = int(wrong.argmax())
            raise PipelineError(
                f"column 'delay', row {first + row} of the partition: got {seconds[row]}, expected "
                "a finite number of seconds, 0 or more; nothing of the partition was scheduled"
            )
        now = self._now_ns()
        most = (_LAST_NS - now) / 1e9 - 1
        waits = (np.minimum(seconds, most) * 1e9).astype(np.int64)
        found: npt.NDArray[np.int64] = np.where(seconds < most, now + waits, _LAST_NS)
        return found

    def _from_deadlines(self, deadlines: Any) -> npt.NDArray[np.int64]:
        micros = deadlines.cast("int64").to_numpy()
        found: npt.NDArray[np.int64] = np.where(
            micros < _LAST_NS // 1000, np.clip(micros, 0, _LAST_NS // 1000) * 1000, _LAST_NS
        )
        return found

    def _payloads(self, batch: pa.RecordBatch, first: int) -> Any:
        import pyarrow as pa
        import pyarrow.compute as pc

        payloads = pc.fill_null(batch.column("payload").cast(pa.large_binary()), b"")
        sizes = pc.binary_length(payloads).to_numpy()
        if len(sizes) and sizes.max() > self._room:
            row = int((sizes > self._room).argmax())
            raise PipelineError(
                f"column 'payload', row {first + row} of the partition: {sizes[row]} bytes; this "
                f"wheel holds {self._room} per timer (wheeld start --payload-bytes); nothing of "
                "the partition was scheduled"
            )
        return payloads


def _column(batch: pa.RecordBatch, name: str, first: int) -> Any:
    """A column that may have no nulls."""
    column = batch.column(name)
    if column.null_count:
        row = column.is_null().to_numpy(zero_copy_only=False).argmax()
        raise PipelineError(
            f"column {name!r}, row {first + int(row)} of the partition: got null, expected a "
            "value; nothing of the partition was scheduled"
        )
    return column


def _seconds(delays: Any) -> npt.NDArray[np.float64]:
    """Numbers, decimals and intervals as seconds."""
    import pyarrow as pa

    if pa.types.is_duration(delays.type):
        micros = delays.cast(pa.duration("us")).cast("int64").to_numpy()
        exact: npt.NDArray[np.float64] = micros / 1e6
        return exact
    found: npt.NDArray[np.float64] = delays.cast("float64").to_numpy()
    return found


def _bits(cookies: Any, first: int) -> npt.NDArray[np.uint64]:
    """Whole numbers as 64 bits; a decimal may also be one without sign."""
    import pyarrow as pa

    if not pa.types.is_decimal(cookies.type):
        found: npt.NDArray[np.uint64] = cookies.cast("int64").to_numpy().view(np.uint64)
        return found
    values = cookies.to_pylist()
    for row, value in enumerate(values):
        if value % 1 or not _LEAST_BITS <= value < _MOST_BITS:
            raise PipelineError(
                f"column 'cookie', row {first + row} of the partition: got {value}, expected a "
                "whole number of 64 bits; nothing of the partition was scheduled"
            )
    return np.array([int(value) % _MOST_BITS for value in values], np.uint64)


def _empty(count: int) -> Any:
    import pyarrow as pa

    offsets = pa.py_buffer(np.zeros(count + 1, np.int64))
    return pa.LargeBinaryArray.from_buffers(
        pa.large_binary(), count, [None, offsets, pa.py_buffer(b"")]
    )


def _by_target(table: pa.Table) -> Iterator[pa.RecordBatch]:
    """Batches whose rows have a single target."""
    import pyarrow.compute as pc

    targets = table.column("target")
    if targets.null_count == len(targets):
        yield from table.combine_chunks().to_batches(CHUNK_ROWS)
        return
    for target in pc.unique(targets).to_pylist():
        chosen = pc.is_null(targets) if target is None else pc.equal(targets, target)
        part = table.filter(pc.fill_null(chosen, False))
        yield from part.combine_chunks().to_batches(CHUNK_ROWS)


class StagedRows:
    """Some rows of a stage, from `first` to `end`, as `Timers.schedule_at_many` takes them."""

    def __init__(self, batch: Any, first: int, key: str) -> None:
        self.first, self.count, self.end = first, batch.num_rows, first + batch.num_rows
        self._key = key
        self.deadlines = batch.column("deadline").to_numpy()
        self.cookies = batch.column("cookie").to_numpy()
        self.to: str | None = batch.column("target")[0].as_py()
        payloads = batch.column("payload")
        offsets = np.frombuffer(payloads.buffers()[1], np.int64)
        self.offsets = offsets[payloads.offset : payloads.offset + self.count + 1]
        self.data = payloads.buffers()[2] or b""
        self.has_payloads = bool(self.offsets[-1] > self.offsets[0])

    def keys(self) -> list[str]:
        return [f"{self._key}{place}" for place in range(self.first, self.end)]
