"""The columns of the overflow: equal to the machine of one key, state, expiration and reject."""

from __future__ import annotations

import os
import random
from pathlib import Path

import numpy as np
import pytest

from pipeline.one_key import Command
from pipeline.overflow_oracle import Columns, Oracle, Said, check_store, entries, places
from wheeld_pipeline.overflow.columns import blobs, digests as hashing, index, store as stores
from wheeld_pipeline.overflow.columns.index import Index
from wheeld_pipeline.overflow.columns.mapped import Mapped
from wheeld_pipeline.overflow.machine import COMMANDS, ENDED, Rules

RULES = Rules(horizon_ms=2_000, grace_ms=900, retry_ms=50, remember_ms=3_000)
KEYS = [f"k{i}" for i in range(60)] + ["", "é" * 500]


class Trial:
    """Random batches for both sides."""

    def __init__(self, folder: Path, chance: random.Random) -> None:
        self.chance, self.now_ms = chance, 1_700_000_000_000
        self.oracle, self.columns = Oracle(RULES), Columns(folder, RULES)
        self.columns.names = dict(zip(KEYS, zip(*(x.tolist() for x in places(KEYS)), strict=True),
                                      strict=True))  # fmt: skip
        self._last = dict.fromkeys(KEYS, 0)

    def commands(self) -> list[Command]:
        chance = self.chance
        some = [chance.choice(KEYS) for _ in range(chance.choice([0, 3, 30, 60]))]
        some += [chance.choice(KEYS)] * chance.choice([0, 0, 0, 300])
        found = []
        for key in some:
            self._last[key] = max(0, self._last[key] + chance.choice([1, 1, 1, 0, -1]))
            due_us = self.now_ms * 1000 + chance.randrange(-2_000_000, 8_000_000)
            payload = chance.choice([None, b"", b"16 bytes of user", bytes(range(256))])
            found.append(Command(chance.choice(COMMANDS), self._last[key], due_us, key,
                                 chance.randrange(-9, 9), payload))  # fmt: skip
        chance.shuffle(found)
        return found

    def said(self) -> list[Said]:
        found = []
        for key in self.chance.sample(KEYS, 25):
            entry = self.oracle.entries.get(key)
            generation = self._last[key] if entry is None else entry.generation
            fired = 0 if entry is None else entry.deadline_us
            generation += self.chance.choice([0, 0, 0, -1])
            fired += self.chance.choice([-1, 0, 5_000])
            found += [(key, generation, fired)] * self.chance.choice([1, 1, 2])
        return found

    def batch(self, number: int) -> None:
        commands, said = self.commands(), self.said()
        step = self.columns.begin(commands, said, self.now_ms)
        self.oracle.batch(commands, said, self.now_ms)
        assert self.columns.handed(step) == set(self.oracle.handed.items())
        refused = step.handed[np.array([self.chance.random() < 0.2 for _ in step.handed], bool)]
        names = {place: key for key, place in self.columns.names.items()}
        for record in step.records[refused]:
            self.oracle.refuse(names[int(record["a"]), int(record["b"])], self.now_ms)
        step.refuse(refused)
        self.columns.end(step, number)
        self.check()
        self.now_ms += self.chance.randrange(0, 2_500)

    def check(self) -> None:
        check_store(self.columns.store)
        truth = {self.columns.names[key]: entry for key, entry in self.oracle.entries.items()}
        assert entries(self.columns.store) == truth
        assert sorted(self.columns.expired, key=str) == sorted(self.oracle.expired, key=str)
        assert sorted(self.columns.rejected) == sorted(self.oracle.rejected)


@pytest.mark.parametrize("part", range(2))
def test_random_batches_equal_the_machine(
    tmp_path: Path, rng_seed: int, part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stores, "LEAST_GARBAGE", 500)
    monkeypatch.setattr(stores, "FIRST_ROWS", 4)
    monkeypatch.setattr(index, "LEAST_BITS", 3)
    monkeypatch.setattr(blobs, "FIRST_ELEMENTS", 2)
    trial = Trial(tmp_path / "shard", random.Random(rng_seed * 100 + part))
    for number in range(60):
        trial.batch(number)
    assert trial.oracle.expired
    assert len({reason.split()[0] for reason, *_ in trial.oracle.rejected}) == 2
    assert trial.columns.store.rows <= len(KEYS)  # forgotten ones are used again
    assert any(entry.phase == ENDED for entry in trial.oracle.entries.values())


def test_the_store_opens_as_it_was_left(tmp_path: Path, rng_seed: int) -> None:
    trial = Trial(tmp_path / "shard", random.Random(rng_seed))
    for number in range(10):
        trial.columns.store = stores.Store(tmp_path / "shard")
        trial.batch(number)


def reference(data: bytes, secret: bytes) -> bytes:
    mask = 2**64 - 1
    k0, k1 = (int.from_bytes(secret[i : i + 8], "little") for i in (0, 8))
    v = [0x736F6D6570736575 ^ k0, 0x646F72616E646F6D ^ k1 ^ 0xEE,
         0x6C7967656E657261 ^ k0, 0x7465646279746573 ^ k1]  # fmt: skip

    def rounds(count: int) -> None:
        def left(x: int, b: int) -> int:
            return (x << b | x >> (64 - b)) & mask

        for _ in range(count):
            v[0] = (v[0] + v[1]) & mask
            v[2] = (v[2] + v[3]) & mask
            v[1], v[3] = left(v[1], 13) ^ v[0], left(v[3], 16) ^ v[2]
            v[0] = left(v[0], 32)
            v[2] = (v[2] + v[1]) & mask
            v[0] = (v[0] + v[3]) & mask
            v[1], v[3] = left(v[1], 17) ^ v[2], left(v[3], 21) ^ v[0]
            v[2] = left(v[2], 32)

    tail = len(data) % 8
    words = [data[i : i + 8] for i in range(0, len(data) - tail, 8)]
    last = data[len(data) - tail :].ljust(7, b"\0") + bytes([len(data) & 255])
    for word in [*words, last]:
        number = int.from_bytes(word, "little")
        v[3] ^= number
        rounds(2)
        v[0] ^= number
    out = b""
    for at, mark in ((2, 0xEE), (1, 0xDD)):
        v[at] ^= mark
        rounds(4)
        out += (v[0] ^ v[1] ^ v[2] ^ v[3]).to_bytes(8, "little")
    return out


def test_digests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hashing, "BLOCK", 50)
    secret = bytes(range(16))
    assert reference(b"", secret).hex() == "a3817f04ba25a8e66df67214c7550293"
    assert reference(b"\0", secret).hex() == "da87c1d86b99af44347659119b22fc45"
    texts = [bytes(i % 251 for i in range(n)) for n in [*range(70), 1024, 0, 3, 300]]
    data = np.frombuffer(b"".join(texts), np.uint8)
    sizes = np.array([len(text) for text in texts], np.int64)
    starts = np.cumsum(sizes) - sizes
    a, b = hashing.digests(data, starts, sizes, secret)
    found = [x.tobytes() + y.tobytes() for x, y in zip(a, b, strict=True)]
    assert found == [reference(text, secret) for text in texts]


def test_keys_whose_slots_collide(tmp_path: Path) -> None:
    count = 300
    records = np.zeros(count, [("a", "<u8"), ("b", "<u8")])
    records["b"] = np.arange(count)
    slots = Mapped(tmp_path / "index", np.int32, 1024)
    slots.array[:] = index.NEVER
    made = Index(slots, records)
    rows = np.arange(count)
    made.insert(records["a"], rows)
    assert (made.find(records["a"], records["b"]) == rows).all()
    odd = rows[1::2][::-1]
    made.remove(records["a"][odd], odd)
    assert (made.find(records["a"], records["b"]) == np.where(rows % 2, -1, rows)).all()
    made.insert(records["a"][odd], odd)
    assert (made.find(records["a"], records["b"]) == rows).all()


@pytest.mark.parametrize(
    "damage", ["busy", "boot", "format", "wake", "records", "bytes", "ends", "index", "no head"]
)
def test_a_store_that_is_not_whole_is_thrown_away(
    tmp_path: Path, damage: str, rng_seed: int
) -> None:
    folder = tmp_path / "shard"
    trial = Trial(folder, random.Random(rng_seed))
    while trial.columns.store.head["bytes"][0] < 2:  # some ends are remembered without a byte
        trial.batch(3)
    head = trial.columns.store.head
    if damage == "busy":
        head["busy"] = 1
    elif damage == "boot":
        head["boot"] = b"another life"
    elif damage == "format":
        head["format"] = 99
    elif damage == "no head":
        (folder / "head").unlink()
    else:
        os.truncate(folder / damage, 1)
    assert stores.Store(folder).at == (-1, 0)
    assert stores.Store(folder).rows == 0
