"""The log of a shard: a store that is behind, ahead, foreign or gone ends where the log does."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from pipeline.overflow_oracle import check_store, entries
from wheeld_pipeline.overflow import Daemon, Rules
from wheeld_pipeline.overflow.batch import intake, task
from wheeld_pipeline.overflow.batch.task import Errand, Result, tend
from wheeld_pipeline.overflow.checkpoint import log
from wheeld_pipeline.overflow.checkpoint.log import Position
from wheeld_pipeline.overflow.checkpoint.places import Place
from wheeld_pipeline.overflow.columns import delta, store as stores
from wheeld_pipeline.overflow.columns.store import Store
from wheeld_pipeline.overflow.machine import COMMANDS

SECRET = bytes(16)
RULES = Rules(horizon_ms=0, grace_ms=50, retry_ms=10, remember_ms=400)
NOBODY = Daemon("nobody", runtime_dir="/nonexistent")


class Shard:
    """One shard, whose daemon is not there: what is due is refused."""

    def __init__(self, base: Path, seed: int) -> None:
        self.base, self.chance = base, random.Random(seed)
        self.now_ms, self.position, self.batch = 1_700_000_000_000, Position(), 0
        self.sequence = 0
        self.log = Place(str(base / "log"))

    def errand(self, cache: str = "cache") -> Errand:
        folder = self.base / cache
        folder.mkdir(mode=0o700, exist_ok=True)
        log_folder, staging = str(self.base / "log"), str(self.base / "staging")
        return Errand("job", SECRET, self.batch, self.now_ms, RULES, log_folder, staging,
                      str(folder), 0, NOBODY, self.position)  # fmt: skip

    def run(self, count: int = 40, cache: str = "cache", counts: bool = True) -> Result:
        rows = []
        for _ in range(count):
            self.sequence += 1
            key = f"key-{self.chance.randrange(300)}"
            due_us = self.now_ms * 1000 + self.chance.randrange(10**9)
            payload = self.chance.choice([None, b"", b"bytes"])
            rows.append((self.chance.choice(COMMANDS), key, self.sequence, due_us, 3, payload))
        result = tend(self.errand(cache), [intake.make(rows)])
        if counts:
            self.position, self.batch = result.position, self.batch + 1
            self.now_ms += self.chance.randrange(300)
        return result

    def store(self, cache: str = "cache") -> Store:
        return Store(self.base / cache / "job" / "0")

    def rebuilt(self) -> Store:
        made = Store(self.base / f"fresh-{self.batch}-{self.chance.random()}")
        log.bring(made, self.log, self.position)
        return made


@pytest.fixture
def shard(tmp_path: Path, rng_seed: int, monkeypatch: pytest.MonkeyPatch) -> Shard:
    monkeypatch.setattr(stores, "SEGMENT", 16)
    monkeypatch.setattr(log, "MOST_DELTAS", 5)
    return Shard(tmp_path, rng_seed)


def equal(one: Store, other: Store) -> None:
    check_store(one)
    check_store(other)
    assert (one.at, one.rows) == (other.at, other.rows)
    assert entries(one) == entries(other)
    names = ["a", "b", "phase"]  # the same keys in the same rows: deltas name rows
    assert (one.records.array[names][: one.rows] == other.records.array[names][: one.rows]).all()


def test_segments_of_many_moments_and_the_deltas_after_them(shard: Shard) -> None:
    """Snapshots are written a few segments at a time while everything changes; from each state of
    the log the store is rebuilt as it is."""
    whole, behind = 0, 0
    for number in range(60):
        shard.run(shard.chance.choice([1, 3, 40]))
        behind += len(shard.position.chain) > 0
        whole += len(shard.position.segments) > 0
        if number % 2 == 0:
            equal(shard.store(), shard.rebuilt())
    assert whole > 20
    assert behind > 20
    assert len(set(shard.position.segments)) > 1
    assert len(shard.position.chain) < 40


def test_hosts_take_turns(shard: Shard) -> None:
    brought = []
    for number in range(30):
        cache = "cache" if number % 5 < 3 else "other"
        brought.append(shard.run(10, cache).brought)
    assert {None, "redo"} <= set(brought)
    for cache in ("cache", "other"):
        store = shard.store(cache)
        log.bring(store, shard.log, shard.position)
        equal(store, shard.rebuilt())


def test_processes_of_one_host_take_turns(shard: Shard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "FIRST_ROWS", 8)
    processes: list[dict[Path, Store]] = [{}, {}]
    folder = shard.base / "cache" / "job" / "0"
    kept = set()
    for number in range(60):
        process = shard.chance.choice(processes)
        monkeypatch.setattr(task, "_kept", process)
        was = process.get(folder)
        lost = number in (30, 45)
        if number == 30:
            shutil.rmtree(folder)
        elif number == 45:
            shard.store().head["busy"] = 1  # another process died there
        assert shard.run(10).brought == ("rebuild" if lost else None)
        kept.add(was and process[folder] is was)
        equal(shard.store(), shard.rebuilt())
    assert {True, False} <= kept


def test_columns_that_were_replaced_by_some_of_the_same_size(tmp_path: Path) -> None:
    one = Store(tmp_path / "0")
    assert one.is_current
    other = Store(tmp_path / "1")
    other.folder.rename(tmp_path / "2")
    assert not other.is_current
    one.folder.rename(other.folder)
    assert not other.is_current


def test_columns_are_not_kept_after_an_error(shard: Shard) -> None:
    with pytest.raises(KeyError), task.opened(shard.base, 0) as store:
        raise KeyError
    with task.opened(shard.base, 0) as other:
        assert other is not store
    with task.opened(shard.base, 0) as again:
        assert again is other


def test_a_process_keeps_some_columns(shard: Shard, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task, "_kept", {})
    monkeypatch.setattr(task, "MOST_KEPT", 2)
    for number in range(4):
        with task.opened(shard.base, number):
            pass
    assert [path.name for path in task._kept] == ["2", "3"]


def test_an_attempt_that_does_not_count(shard: Shard) -> None:
    for _ in range(5):
        shard.run()
    before = entries(shard.store())
    lost = shard.run(counts=False)
    assert entries(shard.store()) != before
    result = shard.run(cache="other")  # of the same batch; this one counts
    assert lost.position.at[0] == result.position.at[0]
    assert shard.run().brought == "rebuild"
    equal(shard.store(), shard.rebuilt())


def test_a_batch_without_changes_writes_nothing(shard: Shard) -> None:
    shard.run()
    shard.now_ms -= 10_000  # nothing is due
    files = sorted(path.name for path in (shard.base / "log").iterdir())
    position = shard.position
    assert shard.run(0).position == position
    assert sorted(path.name for path in (shard.base / "log").iterdir()) == files


def test_forgotten_keys_leave_their_rows(shard: Shard) -> None:
    for number in range(40):
        rows = [("schedule", f"{number}-{i}", 1, 0, 0, b"x" * 100) for i in range(50)]
        rows += [("cancel", f"{number}-{i}", 2, 0, 0, None) for i in range(50)]
        result = tend(shard.errand(), [intake.make(rows)])
        shard.position, shard.batch = result.position, shard.batch + 1
        shard.now_ms += 200
    assert shard.store().rows <= 50 * 4
    equal(shard.store(), shard.rebuilt())


def test_two_tasks_of_one_shard(shard: Shard, monkeypatch: pytest.MonkeyPatch) -> None:
    shard.run()
    monkeypatch.setattr(task, "LOCK_SECONDS", 0.02)
    with (
        task.opened(shard.base / "cache" / "job", 0),
        pytest.raises(Exception, match="same checkpoint running"),
    ):
        shard.run()


def test_a_cache_that_others_can_write_to(shard: Shard) -> None:
    folder = shard.base / "cache"
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(Exception, match="nobody else can write"):
        shard.run()


def test_what_a_delta_says(shard: Shard) -> None:
    rows: list[tuple[Any, ...]] = [
        ("schedule", "k", 2, 10**15, 5, b"p"),
        ("cancel", "x", 1, 0, 0, None),
    ]
    result = tend(shard.errand(), [intake.make(rows)])
    parts = shard.log.read(log.delta_name(result.position.at))
    kinds = [kind for part in parts for kind in part["kind"].to_pylist()]
    assert kinds == [delta.ROW, delta.ROW, delta.REJECTED_ROW]
    assert parts[2]["reason"].to_pylist() == ["nothing is pending under this key"]
    assert sorted(blob or b"" for blob in parts[0]["blob"].to_pylist()) == [b"", b"kp"]


@pytest.mark.parametrize("step", ["_room", "_write", "reindex", "_compact"])
def test_a_death_while_the_columns_are_written(
    shard: Shard, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    for _ in range(3):
        shard.run()
    original = getattr(Store, step)

    def dies(store: Store, *arguments: object) -> None:
        original(store, *arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Store, step, dies)
        head = shard.store().head
        if step in ("reindex", "_compact"):
            head["slots"], head["garbage"] = 10**6, 10**9  # full of what is gone
        with pytest.raises(KeyboardInterrupt):
            shard.run(300)
    assert shard.store().at == (-1, 0)
    assert shard.run().brought == "rebuild"
    equal(shard.store(), shard.rebuilt())
