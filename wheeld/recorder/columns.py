"""Trace records as columns: converts the clock's records into the columns of the Parquet files.

A chunk of records becomes one table with the columns of `wheeld_core.trace_schema.EVENT_COLUMNS`,
without a loop over its rows. Times in records are on the daemon's clocks; here they become Unix
time, with the offsets that were read together with the records. Only the recorder loads this: it
needs pyarrow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from wheeld.recorder.facts import Names, Offsets, Origin
from wheeld_core import _native
from wheeld_core.trace_schema import COUNTER_COLUMNS, EVENT_COLUMNS, EVENTS, Column
from wheeld_core.views.trace import NO_ROW, TRACE_FOUND, TRACE_LOST, TRACE_PERIODIC

FOREVER: Final = 2**63 - 1
_CLOCK: Final = 3
"""The bits of `flags` that say which clock is the timer's."""
HOUR_US: Final = 3600 * 10**6

Records = npt.NDArray[np.void]
Integers = npt.NDArray[np.int64]
Positions = npt.NDArray[np.uint64]

_POOL = pa.struct(
    [("name", pa.string()), *((name, pa.int64()) for name in ("size", "used", "depleted_ns"))]
)
_TYPES: Mapping[str, pa.DataType] = {
    "timestamp": pa.timestamp("us", "UTC"),
    "string": pa.string(),
    "bigint": pa.int64(),
    "int": pa.int32(),
    "boolean": pa.bool_(),
    "array<struct<name:string,size:bigint,used:bigint,depleted_ns:bigint>>": pa.list_(_POOL),
    "array<string>": pa.list_(pa.string()),
}


def _schema(columns: Sequence[Column], texts: pa.DataType) -> pa.Schema:
    types = {**_TYPES, "string": texts}
    return pa.schema(
        [pa.field(column.name, types[column.type], column.nullable) for column in columns]
    )


EVENT_SCHEMA: Final = _schema(EVENT_COLUMNS, pa.dictionary(pa.int32(), pa.string()))
COUNTER_SCHEMA: Final = _schema(COUNTER_COLUMNS, pa.string())


def event_table(
    records: Records, positions: Positions, origin: Origin, names: Names, offsets: Offsets
) -> pa.Table:
    """The table of some records, in their order."""
    kind, flags = records["kind"].astype(np.int8), records["flags"]
    lost = kind == TRACE_LOST
    there = None if not lost.any() else ~lost
    times = _Times(records, kind, there, offsets)
    expired = kind == _native.TRACE_EXPIRED
    counts = records["count"].astype(np.int64)
    counts[(kind != _native.TRACE_RESCHEDULED) & ~lost] = 1
    missed = np.where(expired, records["missed"], 0).astype(np.int64)
    values = {
        "time": _timestamps(times.time_us),
        "event": _texts(kind - 1, EVENTS),
        "host": _constant(len(records), origin.host),
        "daemon": _constant(len(records), origin.daemon),
        "run": _constant(len(records), origin.run),
        "worker": _owners(records, names, there),
        "receiver": _receivers(records, positions, names),
        "timer_id": _numbers(_zero_lost(records["id"], there).view(np.int64)),
        "cookie": _numbers(_zero_lost(records["cookie"], there).view(np.int64)),
        "scheduled": _timestamps(times.scheduled_us, times.has_scheduled),
        "deadline": _timestamps(times.deadline_us, times.has_deadline),
        "delay_ns": _numbers(times.delay_ns, times.has_scheduled),
        "lateness_ns": _numbers(times.lateness_ns, expired),
        "count": _numbers(counts),
        "missed": _numbers(missed),
        "pending": _numbers(records["pending"].astype(np.int64)),
        "payload_bytes": _numbers(records["payload_size"].astype(np.int32)),
        "periodic": _booleans(flags & TRACE_PERIODIC != 0),
        "found": _booleans(flags & TRACE_FOUND != 0),
        "lost_event": _lost_events(records, lost),
    }
    return pa.Table.from_arrays([values[name] for name in EVENT_SCHEMA.names], schema=EVENT_SCHEMA)


def counter_table(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    added = {"full_rings": [], "run_delay_ns": 0}  # a spool of an earlier version lacks them
    whole = [{**added, **row} for row in rows]
    return pa.Table.from_pylist(whole, schema=COUNTER_SCHEMA)


def hours(time_us: Integers) -> npt.NDArray[np.int64]:
    found: npt.NDArray[np.int64] = np.floor_divide(time_us, HOUR_US)
    return found


# -- times -----------------------------------------------------------------------------------------


class _Times:
    """All columns that are times, or differences of them."""

    def __init__(
        self,
        records: Records,
        kind: npt.NDArray[np.int8],
        there: npt.NDArray[np.bool_] | None,
        offsets: Offsets,
    ) -> None:
        time, deadline = records["time_ns"].copy(), records["deadline_ns"].copy()
        scheduled = records["scheduled_ns"].copy()
        offset: Any = np.int64(offsets.base)
        clocks = records["flags"] & _CLOCK
        if clocks.any():  # an expiration's times are of its timer's own clock
            by_clock = np.array(offsets.of_clocks(), np.int64)
            offset = by_clock[np.where(kind == _native.TRACE_EXPIRED, clocks, 0)]
        self.lateness_ns = _minus(time, deadline)
        self.time_us = np.floor_divide(_plus(time, offset), 1000)
        unix = _plus(deadline, offset)
        self.has_deadline = (deadline != FOREVER) & (unix != FOREVER)
        self.has_scheduled = None if offsets.base == 0 else scheduled != 0
        if there is not None:
            self.has_deadline &= there
            self.has_scheduled = there if self.has_scheduled is None else self.has_scheduled & there
        delay = _plus(_minus(deadline, scheduled), offset - np.int64(offsets.base))
        self.delay_ns = np.maximum(delay, 0)
        self.deadline_us = np.floor_divide(unix, 1000)
        self.scheduled_us = np.floor_divide(_plus(scheduled, np.int64(offsets.base)), 1000)


def _plus(values: Integers, more: Any) -> Integers:
    """The sum, saturated to 64 bits."""
    sums: Integers = values + more
    wrapped = (values ^ sums) & (more ^ sums) < 0
    if wrapped.any():
        sums[wrapped] = np.where(values[wrapped] < 0, -FOREVER, FOREVER)
    return sums


def _minus(values: Integers, less: Integers) -> Integers:
    """The difference, saturated to 64 bits."""
    found: Integers = values - less
    wrapped = (values ^ less) & (values ^ found) < 0
    if wrapped.any():
        found[wrapped] = np.where(values[wrapped] < 0, -FOREVER, FOREVER)
    return found


# -- columns ---------------------------------------------------------------------------------------


def _bits(valid: npt.NDArray[np.bool_] | None) -> pa.Buffer | None:
    if valid is None or valid.all():
        return None
    return pa.py_buffer(np.packbits(valid, bitorder="little"))


def _column(type_: pa.DataType, values: Any, valid: npt.NDArray[np.bool_] | None) -> pa.Array:
    buffers = [_bits(valid), pa.py_buffer(np.ascontiguousarray(values))]
    return pa.Array.from_buffers(type_, len(values), buffers)


def _timestamps(values: Integers, valid: npt.NDArray[np.bool_] | None = None) -> pa.Array:
    return _column(_TYPES["timestamp"], values, valid)


def _numbers(values: Any, valid: npt.NDArray[np.bool_] | None = None) -> pa.Array:
    type_ = pa.int32() if values.dtype == np.int32 else pa.int64()
    return _column(type_, values, valid)


def _booleans(values: npt.NDArray[np.bool_]) -> pa.Array:
    packed = pa.py_buffer(np.packbits(values, bitorder="little"))
    return pa.Array.from_buffers(pa.bool_(), len(values), [None, packed])


def _texts(
    codes: Any, words: Sequence[str], valid: npt.NDArray[np.bool_] | None = None
) -> pa.Array:
    indices = _column(pa.int32(), codes.astype(np.int32), valid)
    return pa.DictionaryArray.from_arrays(indices, pa.array(words, pa.string()))


def _constant(count: int, word: str) -> pa.Array:
    return _texts(np.zeros(count, np.int32), [word])


def _zero_lost(values: Any, there: npt.NDArray[np.bool_] | None) -> Any:
    return values.copy() if there is None else np.where(there, values, np.uint64(0))


def _owners(records: Records, names: Names, there: npt.NDArray[np.bool_] | None) -> pa.Array:
    rows, incarnations = records["worker"].copy(), records["incarnation"].copy()
    valid = rows != NO_ROW
    if there is not None:
        valid &= there
    last = np.zeros(NO_ROW + 1, np.uint32)
    last[rows] = incarnations
    if (last[rows] == incarnations).all():  # no row changed hands: no need to sort
        present = np.flatnonzero(np.bincount(rows, minlength=NO_ROW + 1))
        codes = np.zeros(NO_ROW + 1, np.int32)
        codes[present] = np.arange(len(present))
        words = [names.owner(row, int(last[row])) for row in present.tolist()]
        return _texts(codes[rows], words, valid)
    keys = rows.astype(np.uint64) << np.uint64(32) | incarnations
    found, inverse = np.unique(keys, return_inverse=True)
    words = [names.owner(key >> 32, key & 0xFFFFFFFF) for key in found.tolist()]
    return _texts(inverse, words, valid)


def _receivers(records: Records, positions: Positions, names: Names) -> pa.Array:
    rows = records["receiver"]
    elsewhere = (rows != NO_ROW) & (records["kind"] == _native.TRACE_EXPIRED)
    if not elsewhere.any():
        return pa.nulls(len(records), EVENT_SCHEMA.field("receiver").type)
    at = np.flatnonzero(elsewhere)
    codes = np.zeros(len(records), np.int32)
    words: list[str] = []
    for row in np.unique(rows[at]).tolist():
        here = at[rows[at] == row]
        came = names.arrivals(row) or [(0, f"worker-{row}")]
        starts = np.array([position for position, _ in came], np.uint64)
        # the last arrival before the record; a record from before all of them is the first one's
        which = np.searchsorted(starts, positions[here], "right") - 1
        codes[here] = len(words) + np.maximum(which, 0)
        words += [name for _, name in came]
    return _texts(codes, words, elsewhere)


def _lost_events(records: Records, lost: npt.NDArray[np.bool_]) -> pa.Array:
    if not lost.any():
        return pa.nulls(len(records), EVENT_SCHEMA.field("lost_event").type)
    kinds = np.where(lost, records["id"], 1).astype(np.int64)
    known = lost & (kinds >= 1) & (kinds <= len(EVENTS))
    return _texts(np.where(known, kinds - 1, 0), EVENTS, known)
