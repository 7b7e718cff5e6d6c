"""The columns of the overflow beside the machine of one key."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from pipeline import one_key
from pipeline.one_key import Command, Entry
from wheeld_pipeline.overflow.batch import intake
from wheeld_pipeline.overflow.batch.step import Heard, Step
from wheeld_pipeline.overflow.columns import delta
from wheeld_pipeline.overflow.columns.store import Store, new_token
from wheeld_pipeline.overflow.machine import Rules

SECRET = bytes(range(16))
Said = tuple[str, int, int]
"""Key, generation, when it fired in microseconds."""


class Oracle:
    """All keys of one shard, by the machine of one key."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.entries: dict[str, Entry] = {}
        self.expired: list[tuple[Any, ...]] = []
        self.rejected: list[tuple[Any, ...]] = []
        self.handed: dict[str, int] = {}
        """In the batch that was last: key to generation."""

    def batch(self, commands: list[Command], said: list[Said], now_ms: int) -> None:
        rules, self.handed = self.rules, {}
        for key, generation, fired_us in said:
            entry = self.entries.get(key)
            self._take(key, one_key.acknowledge(entry, generation, fired_us, now_ms, rules))
        for one in sorted(commands, key=lambda command: command.sequence):
            self._take(one.key, one_key.obey(self.entries.get(one.key), one, now_ms, rules))
        for key, entry in list(self.entries.items()):
            self._take(key, one_key.wake(entry, now_ms, rules))

    def refuse(self, key: str, now_ms: int) -> None:
        done = one_key.refuse(self.entries[key], self.handed[key], now_ms, self.rules)
        self._take(key, done)

    def _take(self, key: str, done: one_key.Step) -> None:
        entry, outputs = done
        for output in outputs:
            if isinstance(output, one_key.HandOut):
                self.handed[key] = output.generation
            elif isinstance(output, one_key.Withdraw):
                self.handed.pop(key, None)
            elif isinstance(output, one_key.Expired):
                was = output.entry
                self.expired.append((key, was.generation, was.deadline_us, output.fired_us,
                                     was.cookie, was.payload))  # fmt: skip
            else:
                bad = output.command
                self.rejected.append((output.reason, bad.op, key, bad.sequence))
        if entry is None:
            self.entries.pop(key, None)
        else:
            self.entries[key] = entry


class Columns:
    """The same by a store and `Step`."""

    def __init__(self, folder: Path, rules: Rules) -> None:
        self.store, self.rules = Store(folder), rules
        self.expired: list[tuple[Any, ...]] = []
        self.rejected: list[tuple[Any, ...]] = []
        self.deltas: list[tuple[int, int, pa.Table]] = []

    def begin(self, commands: list[Command], said: list[Said], now_ms: int) -> Step:
        rows = [(c.op, c.key, c.sequence, c.deadline_us, c.cookie, c.payload) for c in commands]
        orders = intake.read([intake.make(rows)], SECRET)
        return Step(self.store, orders, self.heard(said), now_ms, self.rules)

    def end(self, step: Step, batch: int) -> None:
        changes, token = step.changes(), new_token()
        parts = [delta.of_changes(changes), delta.of_expirations(step.expired),
                 delta.of_rejects(step.rejects)]  # fmt: skip
        self.deltas.append((batch, token, pa.Table.from_batches(parts)))
        names = ("key", "generation", "deadline", "fired", "cookie", "payload")
        for row in delta.expired_rows(parts[1]).to_pylist():
            self.expired.append(tuple(micros(row[name]) for name in names))
        for row in delta.rejected_rows(parts[2]).to_pylist():
            assert row["command"] is None
            self.rejected.append(tuple(row[name] for name in ("reason", "op", "key", "sequence")))
        self.store.apply(changes, batch, token)

    def heard(self, said: list[Said], chance: random.Random | None = None) -> Heard:
        if not said:
            return Heard.nothing()
        a, b = places([key for key, _, _ in said])
        hints = self.store.find(a, b)
        hints[::3] = 7  # a hint is no more than that
        numbers = np.array([(g, f) for _, g, f in said], np.int64)
        return Heard(hints, a, b, numbers[:, 0].copy(), numbers[:, 1].copy())

    def handed(self, step: Step) -> set[tuple[str, int]]:
        before = {place: key for key, place in self.names.items()}
        records = step.records[step.handed]
        return {(before[int(r["a"]), int(r["b"])], int(r["generation"])) for r in records}

    names: dict[str, tuple[int, int]]


def places(keys: list[str]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    from wheeld_pipeline.overflow.columns.digests import digests

    texts = [key.encode() for key in keys]
    sizes = np.array([len(text) for text in texts], np.int64)
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int64)
    return digests(np.frombuffer(b"".join(texts), np.uint8), starts, sizes, SECRET)


def micros(value: Any) -> Any:
    return int(value.timestamp() * 1_000_000 + 0.5) if hasattr(value, "timestamp") else value


def entries(store: Store) -> dict[tuple[int, int], Entry]:
    found = {}
    records = store.records.array[: store.rows]
    held = np.flatnonzero(records["phase"] != delta.FREE)
    texts = store.blobs_of(records[held]).to_pylist()
    for row, text in zip(held, texts, strict=True):
        one = records[row]
        a, b, size = int(one["a"]), int(one["b"]), int(one["key_bytes"])
        key = None if text is None else text[:size].decode()
        payload = text[size:] if text is not None and one["has_payload"] else None
        if text is not None and not one["has_payload"]:
            assert len(text) == size
        wake_ms = int(store.wake.array[row])
        numbers = [int(one[name]) for name in ("phase", "generation", "deadline_us", "cookie")]
        found[a, b] = Entry(*numbers[:3], wake_ms, key, numbers[3], payload)
    return found


def check_store(store: Store) -> None:
    records = store.records.array[: store.rows]
    held = np.flatnonzero(records["phase"] != delta.FREE)
    assert (store.find(records["a"][held], records["b"][held]) == held).all()
    counts = np.bincount(records["phase"], minlength=4)
    assert store.head["keys"][0].tolist() == counts.tolist()
    free = np.flatnonzero(records["phase"] == delta.FREE)
    assert (store.wake.array[free] == 2**63 - 1).all()
    assert (records["blob"][free] == -1).all()
    assert np.count_nonzero(store.slots.array >= 0) == len(held)
