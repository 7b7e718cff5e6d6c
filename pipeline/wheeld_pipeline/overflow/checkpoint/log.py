"""The log of one shard in the checkpoint: deltas and snapshots of segments, and recovery from them.

    CHECKPOINT/shards/3/000000012-TOKEN.arrow            what batch 12 did
    CHECKPOINT/shards/3/segment-0-000000012-TOKEN.arrow  rows 0 to 131,071 after batch 12

Rows are absolute, so a snapshot need not be of one moment: each segment has its own batch, and
recovery redoes all deltas after the oldest of them. Rows of newer segments first go back in time by
that, and then forward again. A batch writes the segments that have waited longest, with at most as
many rows as it changed itself, or one segment: nothing stops for a snapshot.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from wheeld_pipeline.errors import PipelineError
from wheeld_pipeline.overflow.checkpoint.places import Place, Torn
from wheeld_pipeline.overflow.columns import delta, store as stores
from wheeld_pipeline.overflow.columns.delta import FREE, Changes
from wheeld_pipeline.overflow.columns.store import Store

Name = tuple[int, int]
"""Batch and token."""
NOTHING: Final = (-1, 0)
MOST_DELTAS: Final = 64
"""Segments are written if there are more deltas than this, or more rows in them than in the
store."""


class Position(NamedTuple):
    """A shard's state after a batch, in the form of the driver's manifest."""

    at: Name = NOTHING
    """The last delta."""
    chain: tuple[tuple[int, int, int], ...] = ()
    """Deltas that a rebuilt store redoes: batch, token, rows."""
    segments: tuple[Name, ...] = ()
    """Snapshots; NOTHING: the segment has no snapshot."""
    rows: int = 0


class Brought(NamedTuple):
    how: str | None = None
    """None: it was up to date. "redo": it was behind. "rebuild": it was made again."""
    lost: tuple[str, ...] = ()
    """A sentence for each torn delta."""


def bring(store: Store, log: Place, position: Position) -> Brought:
    """Bring the store to a position. A torn delta is left out: its rows keep their earlier
    contents."""
    names = [(batch, token) for batch, token, _ in position.chain]
    if store.at == position.at:
        return Brought()
    behind = store.at in names
    if not behind:
        _load(store, log, position)
    ahead = position.chain[names.index(store.at) + 1 :] if behind else position.chain
    lost = []
    for batch, token, rows in ahead:
        try:
            redo(store, log, (batch, token))
        except Torn as error:
            lost.append(_lost(error, batch, rows))
    if lost:
        store.mend(position.at[0])
    store.head["batch"], store.head["token"] = position.at
    store.head["busy"] = 0
    return Brought("redo" if behind else "rebuild", tuple(lost))


def _lost(torn: Torn, batch: int, rows: int) -> str:
    return (
        f"{torn}: the changes of batch {batch} to {rows:,} keys of this shard are lost. Send "
        "the commands of that batch again: timers that they scheduled are not pending, timers "
        "that they cancelled are pending again, and timers that expired then may be in the "
        "sink twice"
    )


def redo(store: Store, log: Place, name: Name) -> None:
    store.apply(_joined(log.read(delta_name(name))), *name)


def delta_name(name: Name) -> str:
    return f"{name[0]:09d}-{name[1]:016x}.arrow"


def segment_name(number: int, name: Name) -> str:
    return f"segment-{number}-{delta_name(name)}"


def snapshot(store: Store, log: Place, position: Position) -> dict[int, Name]:
    """Write the segments that are next, from the store's present state, which is at `position`,
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
    """Drop deltas that all segments include."""
    waiting = _waiting(store, position)
    if not waiting:
        return position._replace(chain=())
    oldest = min(_snapshotted(position, number) for number in waiting)
    return position._replace(chain=tuple(d for d in position.chain if d[0] > oldest))


def _load(store: Store, log: Place, position: Position) -> None:
    """Start over from the snapshots."""
    store.clear()
    found = [
        (name[0], _joined(_snapshot_of(log, number, name)))
        for number, name in enumerate(position.segments)
        if name != NOTHING
    ]
    store.load(found, position.rows)
    store.reindex()


def _snapshot_of(log: Place, number: int, name: Name) -> list[Any]:
    try:
        return log.read(segment_name(number, name))
    except Torn as error:
        first, last = number * stores.SEGMENT, (number + 1) * stores.SEGMENT - 1
        raise PipelineError(
            f"{error}: it is the only copy of rows {first:,} to {last:,} of this shard after "
            f"batch {name[0]}. Restore checkpoint and sink from a backup before the loss"
        ) from error


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
