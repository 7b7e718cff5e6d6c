"""The log of one shard in the checkpoint: deltas and snapshots of segments, and recovery from them.

    CHECKPOINT/shards/3/000000012-TOKEN.arrow            what batch 12 did
    CHECKPOINT/shards/3/segment-0-000000012-TOKEN.arrow  rows 0 to 131,071 after batch 12

Rows are absolute, so a snapshot need not be of one moment: each segment has its own batch, and all
deltas after the oldest of them are redone. Rows of newer segments go back by that, and forth again.
A batch writes the segments that have waited longest, as many rows as it changed itself at most, or
one segment: nothing stops for a snapshot.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from wheeld_pipeline.overflow.checkpoint.places import Place
from wheeld_pipeline.overflow.columns import delta, store as stores
from wheeld_pipeline.overflow.columns.delta import FREE, Changes
from wheeld_pipeline.overflow.columns.store import Store

Name = tuple[int, int]
"""Batch and token."""
NOTHING: Final = (-1, 0)
MOST_DELTAS: Final = 64
"""With more deltas than this, or more rows in them than in the store, segments are written."""


class Position(NamedTuple):
    """A shard's state after a batch, as in the driver's manifest."""

    at: Name = NOTHING
    """The last delta."""
    chain: tuple[tuple[int, int, int], ...] = ()
    """Deltas that a rebuilt store redoes: batch, token, rows."""
    segments: tuple[Name, ...] = ()
    """Snapshots; NOTHING: that segment has no snapshot."""
    rows: int = 0


def bring(store: Store, log: Place, position: Position) -> str | None:
    """Bring the store to a position.

    Returns
    -------
    str or None
        None: it was. "redo": it was behind. "rebuild": it was made anew.
    """
    names = [(batch, token) for batch, token, _ in position.chain]
    if store.at == position.at:
        return None
    if store.at in names:
        for name in names[names.index(store.at) + 1 :]:
            redo(store, log, name)
        return "redo"
    _rebuild(store, log, position, names)
    return "rebuild"


def redo(store: Store, log: Place, name: Name) -> None:
    store.apply(_joined(log.read(delta_name(name))), *name)


def delta_name(name: Name) -> str:
    return f"{name[0]:09d}-{name[1]:016x}.arrow"


def segment_name(number: int, name: Name) -> str:
    return f"segment-{number}-{delta_name(name)}"


def snapshot(store: Store, log: Place, position: Position) -> dict[int, Name]:
    """Write the segments whose turn it is, from the store's present state, which is at `position`,
    with the delta of this batch at the end of its chain. Returns the snapshot's name by segment.
    """
    rows = sum(count for _, _, count in position.chain)
    most = max(store.rows, stores.SEGMENT)
    if rows <= most and len(position.chain) <= MOST_DELTAS:
        return {}
    waiting = _waiting(store, position)
    share = -(-len(waiting) * position.chain[-1][2] // most)
    count = max(1, share, -(-2 * len(waiting) // MOST_DELTAS))
    made = {}
    for number in waiting[:count]:
        changes = _segment(store, number)
        log.write(segment_name(number, store.at), [delta.of_changes(changes)])
        made[number] = store.at
    return made


def trimmed(store: Store, position: Position) -> Position:
    """Drop the deltas that all segments include."""
    waiting = _waiting(store, position)
    if not waiting:
        return position._replace(chain=())
    oldest = min(_snapshotted(position, number) for number in waiting)
    return position._replace(chain=tuple(d for d in position.chain if d[0] > oldest))


def _rebuild(store: Store, log: Place, position: Position, names: list[Name]) -> None:
    store.clear()
    found = [
        (name[0], _joined(log.read(segment_name(number, name))))
        for number, name in enumerate(position.segments)
        if name != NOTHING
    ]
    store.load(found, position.rows)
    store.reindex()
    for name in names:
        redo(store, log, name)
    store.head["batch"], store.head["token"] = position.at
    store.head["busy"] = 0


def _waiting(store: Store, position: Position) -> list[int]:
    """Segments that changed since their snapshots, those with the oldest first."""
    count = -(-store.rows // stores.SEGMENT)
    changed = store.changed.array[:count].tolist()
    waiting = [n for n in range(count) if changed[n] > _snapshotted(position, n)]
    return sorted(waiting, key=lambda number: _snapshotted(position, number))


def _snapshotted(position: Position, number: int) -> int:
    return position.segments[number][0] if number < len(position.segments) else NOTHING[0]


def _segment(store: Store, number: int) -> Changes:
    begin = number * stores.SEGMENT
    records = store.records.array[begin : min(begin + stores.SEGMENT, store.rows)]
    held: npt.NDArray[Any] = np.flatnonzero(records["phase"] != FREE)
    chosen, rows = records[held], held + begin
    return Changes(rows, chosen, store.wake.array[rows], store.blobs_of(chosen))


def _joined(batches: list[Any]) -> Changes:
    import pyarrow as pa

    rows = [b for b in batches if b.num_rows and b["kind"][0].as_py() == delta.ROW]
    if len(rows) == 1:
        return delta.changes_in(rows[0])
    empty = pa.RecordBatch.from_pylist([], schema=delta.schema())
    return delta.changes_in(pa.concat_batches(rows) if rows else empty)
