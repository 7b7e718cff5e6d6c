"""The rows of a trace as numpy arrays: one batch, decoded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from wheeld_core.trace_schema import CANCELLED, DROPPED, EVENTS, EXPIRED, LOST, SCHEDULED
from wheeld_pipeline.report.counts import bins

Array = Any
WHEEL: Final = ("host", "daemon", "run")
"""The columns that name one wheel."""
OWNER: Final = (*WHEEL, "worker")
PERIODIC_CODE: Final = 32
"""Added to the code in rows of periodic timers."""
LOST_CODE: Final = 10
"""A row of kind `lost` counts as this plus the code of the lost kind."""
CODES: Final = 2 * PERIODIC_CODE
"""All codes are below this."""
EVENT_CODES: Final = {name: code for code, name in enumerate(EVENTS, 1)}
EXPIRED_CODE: Final = EVENT_CODES[EXPIRED]
COLUMNS: Final = (
    *("time", "event", *OWNER, "timer_id", "scheduled", "deadline", "delay_ns", "lateness_ns"),
    *("count", "missed", "pending", "periodic", "found", "lost_event"),
)
"""The columns that are read from a trace."""
_ENDS: Final = tuple(EVENT_CODES[name] for name in (EXPIRED, CANCELLED, DROPPED))


class Rows(NamedTuple):
    """One batch; arrays of one length."""

    owners: list[tuple[Any, ...]]
    """The names of OWNER; a worker may be None."""
    wheels: list[tuple[Any, ...]]
    owner: Array
    wheel: Array
    code: Array
    """1, 2, ...: the event's position in EVENTS; see PERIODIC_CODE and LOST_CODE."""
    time: Array
    """Microseconds since 1970, as all times here."""
    generation: Array
    """How many timers the slot has had."""
    delay: Array
    """Delay class, or bins.NO_DELAY."""
    placed: Array
    """Indices of rows in which a timer was scheduled."""
    wait: Array
    """Their delays, in the buckets of lateness."""
    expired: Array
    """Indices of rows with a lateness."""
    late: Array
    """Lateness buckets of these."""
    lateness: Array
    """Their lateness in ns."""
    count: Array
    missed: Array
    pending: Array
    found: Array
    ended: Ended


class Ended(NamedTuple):
    """Rows in which a timer, or a tick of a periodic one, ended."""

    row: Array
    scheduled: Array
    due: Array
    """The deadline, or the time of scheduling if that is later."""
    time: Array
    fired: Array
    periodic: Array


def decode(batch: Any) -> Rows:
    """Converts a pyarrow.RecordBatch with COLUMNS to arrays."""
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    owners, owner = _owners([columns[name] for name in OWNER])
    names = sorted({each[:-1] for each in owners})
    wheel = np.array([names.index(each[:-1]) for each in owners], np.int64)[owner]
    event = _codes(columns["event"])
    periodic = _flags(columns["periodic"])
    code = np.where(periodic, event + PERIODIC_CODE, event)
    gone = np.flatnonzero(event == EVENT_CODES[LOST])
    if len(gone):
        code[gone] = LOST_CODE + _codes(columns["lost_event"])[gone]
    expired = np.flatnonzero(_known(columns["lateness_ns"]))
    lateness = numbers(columns["lateness_ns"])[expired]
    delay_ns = numbers(columns["delay_ns"])
    placed = np.flatnonzero((event == EVENT_CODES[SCHEDULED]) & _known(columns["delay_ns"]))
    time = numbers(columns["time"])
    return Rows(
        owners,
        names,
        owner,
        wheel,
        code,
        time,
        numbers(columns["timer_id"]).view(np.uint64) >> np.uint64(32),
        np.where(_known(columns["delay_ns"]), bins.delay_class(delay_ns), bins.NO_DELAY),
        placed,
        bins.lateness_bucket(delay_ns[placed]),
        expired,
        bins.lateness_bucket(lateness),
        lateness,
        numbers(columns["count"]),
        numbers(columns["missed"]),
        numbers(columns["pending"]),
        _flags(columns["found"]),
        _ended(columns, event, time, periodic),
    )


def _ended(columns: dict[str, Any], event: Array, time: Array, periodic: Array) -> Ended:
    known = _known(columns["scheduled"]) & _known(columns["deadline"])
    row = np.flatnonzero(np.isin(event, _ENDS) & known)
    scheduled = numbers(columns["scheduled"])[row]
    due = np.maximum(numbers(columns["deadline"])[row], scheduled)
    fired = event[row] == EXPIRED_CODE
    return Ended(row, scheduled, due, time[row], fired, periodic[row])


def combined(keys: Sequence[Array], sizes: Sequence[int]) -> tuple[list[Array], Array]:
    """Distinct combinations of several keys, and the combination of each row.

    Each key is an array with values from 0 to below its size. Returns, for each key, its value in
    each combination; and for each row, the index of its combination.
    """
    key = np.zeros(len(keys[0]), np.int64)
    space = 1
    for each, size in zip(keys, sizes, strict=True):
        if size > 1:
            key = key * size + each
            space *= size
    if space <= max(4 * len(key), 1 << 12):  # counting is several times faster than sorting
        distinct = np.flatnonzero(np.bincount(key, minlength=space))
        place = np.zeros(space, np.int64)
        place[distinct] = np.arange(len(distinct))
        which = place[key]
    else:
        distinct, which = np.unique(key, return_inverse=True)
    values = []
    for size in reversed(sizes):
        distinct, value = np.divmod(distinct, size)
        values.append(value)
    return values[::-1], which


def _owners(columns: Sequence[Any]) -> tuple[list[tuple[Any, ...]], Array]:
    """The distinct owners, and the owner of each row."""
    names, keys = zip(*(_coded(column) for column in columns), strict=True)
    values, owner = combined(keys, [len(each) for each in names])
    named: Iterator[Any] = (map(own.__getitem__, at) for own, at in zip(names, values, strict=True))
    return list(zip(*named, strict=True)), owner


def _coded(column: Any) -> tuple[list[Any], Array]:
    """The distinct values of a column of strings, followed by None if it has nulls; and the index
    of each row's value."""
    import pyarrow as pa

    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    values = column.dictionary.to_pylist()
    index = column.indices
    if index.null_count:
        index = index.fill_null(len(values))
        values.append(None)
    return values, index.to_numpy(zero_copy_only=False)


def _codes(column: Any) -> Array:
    values, index = _coded(column)
    return np.array([EVENT_CODES.get(name, 0) for name in values], np.int64)[index]


def numbers(column: Any) -> Array:
    """A column of integers or times as int64; 0 for null."""
    import pyarrow as pa

    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("us", "UTC"), safe=False).cast(pa.int64())
    if column.null_count:
        column = column.fill_null(0)
    return column.to_numpy(zero_copy_only=False)


def _known(column: Any) -> Array:
    if not column.null_count:
        return np.ones(len(column), bool)
    return column.is_valid().to_numpy(zero_copy_only=False)


def _flags(column: Any) -> Array:
    return column.to_numpy(zero_copy_only=False)
