"""One batch of one shard: the state machine of a key, for all keys at once, in columns.

The order: reports of the wheel, commands of each key by sequence, wake-ups that are due. Nothing is
written here: `Step` holds the new contents of the rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from wheeld_pipeline.overflow.batch import closed_form
from wheeld_pipeline.overflow.batch.closed_form import CANCEL
from wheeld_pipeline.overflow.batch.intake import Commands
from wheeld_pipeline.overflow.columns.delta import FREE, RECORD, Changes, Expirations, Rejects
from wheeld_pipeline.overflow.columns.store import FREE_WAKE, Store
from wheeld_pipeline.overflow.machine import ENDED, HANDED, WAITING, Rules

if TYPE_CHECKING:
    import pyarrow as pa

Ints = npt.NDArray[np.int64]


class Heard(NamedTuple):
    """The expirations that a wheel has reported, in the order of its reports; shape (n,) each."""

    hints: Ints
    """Rows of the keys when they were handed out."""
    a: npt.NDArray[np.uint64]
    b: npt.NDArray[np.uint64]
    generations: Ints
    fired_us: Ints

    @classmethod
    def nothing(cls) -> Heard:
        none = np.zeros(0, np.int64)
        return cls(none, none.view(np.uint64), none.view(np.uint64), none, none)


class Step:
    """The effect of a batch on the rows that it touches.

    Parameters
    ----------
    store : Store
        Only read.
    commands : Commands
    heard : Heard
    now_ms : int
        Wall clock.
    rules : Rules

    Attributes
    ----------
    rows : numpy.ndarray of int64, shape (n,)
        Rows of commands come first, by key.
    records, wake_ms : numpy.ndarray, shape (n,)
        The new contents of these rows.
    expired : Expirations
    rejects : Rejects
    withdrawn : numpy.ndarray of int64
        Rows whose timer in the wheel is no longer wanted.
    handed : numpy.ndarray of int64
        Indices into `rows` of the timers to hand out.
    """

    def __init__(
        self, store: Store, commands: Commands, heard: Heard, now_ms: int, rules: Rules
    ) -> None:
        self._store, self._commands = store, commands
        self._now_ms, self._rules = now_ms, rules
        known = store.find(commands.a, commands.b)
        said = _rows_of(store, heard)
        self._touch(known, said)
        self._acknowledge(said, heard)
        self._obey(known)
        self._wake()

    def changes(self) -> Changes:
        """Rows of the delta, after `refuse`."""
        import pyarrow as pa

        kept = np.flatnonzero(self._changed)
        source = self._source[kept]
        blobs = self._commands.blobs.take(pa.array(source, mask=source < 0))
        return Changes(self.rows[kept], self.records[kept], self.wake_ms[kept], blobs)

    def refuse(self, places: Ints) -> None:
        """Note that no wheel took these (of `handed`): they are retried, near deadlines first."""
        rules, due_ms = self._rules, self.records["deadline_us"][places] // 1000
        wait = np.minimum(np.abs(due_ms - self._now_ms) // 4, rules.grace_ms)
        self.records["phase"][places] = WAITING
        self.wake_ms[places] = self._now_ms + np.maximum(wait, max(rules.retry_ms, 1))

    # -- in this order --------------------------------------------------------------------------

    def _touch(self, known: Ints, said: Ints) -> None:
        """The rows of commands, of reported expirations, and of keys that are due."""
        store = self._store
        mark = np.zeros(store.rows, np.bool_)
        mark[known[known >= 0]] = True
        others = np.concatenate([store.due(self._now_ms), said[said >= 0]])
        others = _distinct(others[~mark[others]])
        self.rows = np.concatenate([known, others])
        old = self.rows >= 0
        self.records = np.zeros(len(self.rows), RECORD)
        self.records["phase"], self.records["generation"] = FREE, -1
        self.wake_ms = np.full(len(self.rows), FREE_WAKE)
        self.records[old] = store.records.array[self.rows[old]]
        self.wake_ms[old] = store.wake.array[self.rows[old]]
        self._changed = np.zeros(len(self.rows), np.bool_)
        self._source = np.full(len(self.rows), -1, np.int64)
        self._place = np.empty(store.rows, np.int32)  # of a row; only those of `rows` are set
        self._place[self.rows[old]] = np.flatnonzero(old)

    def _acknowledge(self, said: Ints, heard: Heard) -> None:
        known = said >= 0
        at = self._place[said[known]].astype(np.int64)
        generations, fired_us = heard.generations[known], heard.fired_us[known]
        records = self.records
        true = (records["phase"][at] != ENDED) & (records["generation"][at] == generations)
        true &= fired_us >= records["deadline_us"][at]  # never early, whatever a wheel reports
        at, first = np.unique(at[true], return_index=True)
        gone = records[at]
        self.expired = Expirations(gone, fired_us[true][first], self._store.blobs_of(gone))
        self._end(at)

    def _obey(self, known: Ints) -> None:
        commands, records = self._commands, self.records
        keys = slice(0, len(known))
        was = records[keys]
        pending = (was["phase"] == WAITING) | (was["phase"] == HANDED)
        generation = was["generation"].copy()
        found = closed_form.outcome(commands, generation, pending)
        self._rejects(found, generation)
        done = np.flatnonzero(found.last >= 0)
        self._changed[done] = True
        in_wheel = done[was["phase"][done] == HANDED]
        self.withdrawn = self.rows[in_wheel]
        self._settle(done, found.last[done], found.schedule[done])
        fresh = done[known[done] < 0]
        self.rows[fresh] = self._store.places(len(fresh))
        records["a"][fresh] = commands.a[fresh]
        records["b"][fresh] = commands.b[fresh]

    def _settle(self, keys: Ints, last: Ints, schedule: Ints) -> None:
        """The last command of each key counts, and the last schedule's cookie and payload."""
        commands, records, rules = self._commands, self.records, self._rules
        records["generation"][keys] = commands.sequences[last]
        put = schedule >= 0
        some, by = keys[put], schedule[put]
        records["cookie"][some] = commands.cookies[by]
        records["key_bytes"][some] = commands.key_bytes[by]
        records["has_payload"][some] = commands.has_payload[by]
        self._source[some] = commands.order[by]
        cancelled = commands.ops[last] == CANCEL
        self._end(keys[cancelled])
        armed, by = keys[~cancelled], last[~cancelled]
        due_us = commands.deadlines_us[by]
        records["phase"][armed] = WAITING
        records["deadline_us"][armed] = due_us
        self.wake_ms[armed] = due_us // 1000 - rules.horizon_ms

    def _end(self, at: Ints) -> None:
        records = self.records
        for name in ("deadline_us", "cookie", "key_bytes", "has_payload"):
            records[name][at] = 0
        records["phase"][at] = ENDED
        self.wake_ms[at] = self._now_ms + max(self._rules.remember_ms, 1)
        self._source[at] = -1
        self._changed[at] = True

    def _wake(self) -> None:
        records, rules = self.records, self._rules
        due = self.wake_ms <= self._now_ms
        self._changed |= due
        gone = np.flatnonzero(due & (records["phase"] == ENDED))
        blank = np.zeros(1, RECORD)
        blank["phase"] = FREE
        records[gone] = blank
        self.wake_ms[gone] = FREE_WAKE
        self.handed = np.flatnonzero(due & (records["phase"] != FREE))
        records["phase"][self.handed] = HANDED
        due_ms = -(-records["deadline_us"][self.handed] // 1000)
        self.wake_ms[self.handed] = np.maximum(due_ms, self._now_ms) + max(rules.grace_ms, 1)

    def _rejects(self, found: closed_form.Effects, generation: Ints) -> None:
        import pyarrow as pa
        import pyarrow.compute as pc

        commands = self._commands
        over, idle = found.overtaken, found.idle
        mine, newer = commands.sequences[over], generation[commands.groups[over]]
        texts: list[Any] = [
            pc.binary_join_element_wise(
                "sequence", _text(mine), "was overtaken by", _text(newer), " "
            ),
            pa.array(["nothing is pending under this key"]).take(
                pa.array(np.zeros(len(idle), np.int64))
            ),
        ]
        some = np.concatenate([over, idle])
        sequences = pa.array(commands.sequences[some])
        bytes_of = commands.key_bytes[some].astype(np.int32)
        blobs = commands.keys_alone(some)
        bad = commands.bad
        self.rejects = Rejects(
            np.concatenate([commands.ops[some], bad.ops]),
            pa.concat_arrays([sequences, bad.sequences]),
            pa.concat_arrays([blobs, bad.blobs]),
            np.concatenate([bytes_of, bad.key_bytes]),
            pa.concat_arrays([*texts, bad.reasons]),
        )


def _distinct(rows: Ints) -> Ints:
    """Ascending, without duplicates, by sorting: the hash table of `numpy.unique` takes ten times
    as long."""
    rows = np.sort(rows)
    new = np.ones(len(rows), np.bool_)
    new[1:] = rows[1:] != rows[:-1]
    return rows[new]


def _text(numbers: Ints) -> pa.StringArray:
    import pyarrow as pa

    return pa.array(numbers).cast(pa.string())


def _rows_of(store: Store, heard: Heard) -> Ints:
    """The rows of the keys that a wheel reports; -1 if the key no longer has a row."""
    hints = np.where((heard.hints >= 0) & (heard.hints < store.rows), heard.hints, 0)
    if not store.rows:
        return np.full(len(hints), -1, np.int64)
    records = store.records.array
    right = (records["a"][hints] == heard.a) & (records["b"][hints] == heard.b)
    right &= records["phase"][hints] != FREE
    rows = np.where(right, hints, -1)
    lost = np.flatnonzero(~right)
    rows[lost] = store.find(heard.a[lost], heard.b[lost])
    return rows
