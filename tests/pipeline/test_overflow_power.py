"""A power failure at each write: the next batch goes on, or says what was lost."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from pipeline.overflow_oracle import entries
from pipeline.power_cuts import Disk, Left, watched
from proofs.torture.overflow.account import rows
from wheeld_pipeline.errors import PipelineError
from wheeld_pipeline.overflow import Daemon, Plan, Rules, ShardMap
from wheeld_pipeline.overflow.batch import intake
from wheeld_pipeline.overflow.batch.task import Errand, Result, tend
from wheeld_pipeline.overflow.checkpoint import log
from wheeld_pipeline.overflow.checkpoint.files import LocalFiles
from wheeld_pipeline.overflow.checkpoint.places import Place
from wheeld_pipeline.overflow.columns import store as stores
from wheeld_pipeline.overflow.columns.store import Store
from wheeld_pipeline.overflow.driver import job as jobs
from wheeld_pipeline.overflow.driver.manifest import Ledger
from wheeld_pipeline.overflow.driver.offsets import SparkLog
from wheeld_pipeline.overflow.driver.query import Batch, Driver
from wheeld_pipeline.overflow.machine import ENDED

SHARDS, BATCHES = 2, 5
TRIED = 70
"""Of some 900 states that a power failure may leave."""
FAR_US = 2_000_000_000_000_000


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Snapshots often, of many segments."""
    monkeypatch.setattr(stores, "SEGMENT", 4)
    monkeypatch.setattr(log, "MOST_DELTAS", 2)


def orders(batch: int) -> list[tuple[Any, ...]]:
    """Per batch new keys, older ones that move, one that goes, and one that is not there."""
    new = [("schedule", f"new-{batch}-{n}", 1, FAR_US, n, b"payload") for n in range(6)]
    old = [
        ("reschedule", "new-0-0", 1 + batch, FAR_US + batch, 0, None),
        ("cancel", f"new-{batch - 1}-1", 2, 0, 0, None),
        ("reschedule", f"new-{batch - 1}-2", 2, FAR_US, 0, None),
    ]
    return [*new, *(old if batch else []), ("cancel", f"no-{batch}", 1, 0, 0, None)]


class Host:
    """A driver without Spark and its shards, on a host that may have lost power."""

    def __init__(self, base: Path, columns: str = "columns") -> None:
        self.base, self.cache = base, base.parent / f"{base.name}-{columns}"
        spread = ShardMap.uniform(SHARDS, Daemon("nobody", "/nonexistent"))
        paths = (str(base / name) for name in ("commands", "sink", "checkpoint"))
        plan = Plan(*paths, spread, Rules(), cache=str(self.cache))
        self.checkpoint, out = LocalFiles(base / "checkpoint"), LocalFiles(base / "sink")
        self.job = jobs.claim(self.checkpoint, out, SHARDS)
        self.driver = Driver(self.checkpoint, out, plan, self.job)

    def run(self, batch: int) -> Batch:
        def attempt(errands: list[Errand]) -> list[Result]:
            parts: list[list[tuple[Any, ...]]] = [[] for _ in range(SHARDS)]
            for one in orders(batch):
                parts[crc32(one[1].encode()) % SHARDS].append(one)
            return [tend(one, [intake.make(parts[one.shard])]) for one in errands]

        return self.driver.run(batch, attempt)

    def rejected(self) -> list[str]:
        return sorted(row["key"] for row in rows(self.base / "sink", "rejected"))

    def keys(self) -> dict[str, tuple[int, int, Any]]:
        """The state of each key, by the checkpoint alone."""
        found = {}
        for result in Ledger(self.checkpoint, SHARDS).last.results:
            store = Store(self.cache / f"again-{result.shard}")
            folder = Place(self.checkpoint.at(f"shards/{result.shard}"))
            assert not log.bring(store, folder, result.position).lost
            for entry in entries(store).values():
                if entry.key is not None:
                    found[entry.key] = (entry.generation, entry.deadline_us, entry.payload)
        return found


def test_each_write_is_cut(tmp_path: Path, rng_seed: int) -> None:
    chance = random.Random(rng_seed)
    found: list[tuple[int, Left]] = []
    batch = -1

    def note(disk: Disk) -> None:
        for names, length in ((0, 0), (1, 0), (1, 0.5), (1, 1), (0.5, None), (0.8, None)):
            left = disk.left(chance, names, length)
            if all(left[1:3] != other[1:3] for _, other in found[-6:]):
                found.append((max(batch, 0), left))

    base = tmp_path / "base"
    base.mkdir()
    with watched(base, note):
        host = Host(base)
        for batch in range(BATCHES):
            host.run(batch)
    expected, rejected = host.keys(), host.rejected()
    assert len(expected) == BATCHES * 6 - (BATCHES - 1)
    assert rejected == [f"no-{n}" for n in range(BATCHES)]
    assert len(found) > 300
    for number, (begun, left) in enumerate(chance.sample(found, TRIED)):
        left.build(tmp_path / f"{number}")
        again = Host(tmp_path / f"{number}")
        for later in range(begun, BATCHES):
            assert not again.run(later).lost
        assert again.keys() == expected, f"power failed in batch {begun}"
        assert again.rejected() == rejected, f"power failed in batch {begun}"


@pytest.mark.parametrize("share", [0, 0.5, 0.99])
def test_a_torn_delta_falls_out(
    tmp_path: Path, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a disk that says that it has what it has not."""
    monkeypatch.setattr(stores, "SEGMENT", 1024)
    monkeypatch.setattr(log, "MOST_DELTAS", 64)
    (tmp_path / "base").mkdir()
    host = Host(tmp_path / "base")
    for batch in range(3):
        host.run(batch)
    torn = {}
    for result in Ledger(host.checkpoint, SHARDS).last.results:
        (found,) = (d for d in result.position.chain if d[0] == 1)
        path = tmp_path / f"base/checkpoint/shards/{result.shard}" / log.delta_name(found[:2])
        whole = path.read_bytes()
        path.write_bytes(whole[: int(len(whole) * share)])
        torn[result.shard] = (path, found[2])
    again = Host(tmp_path / "base", "after")
    said = again.run(3).lost
    for shard, (path, count) in torn.items():
        (one,) = (line for line in said if line.startswith(f"shard {shard}: {path} is torn"))
        assert f"the changes of batch 1 to {count} keys of this shard are lost" in one
    kept = {f"new-{b}-{n}" for b in (0, 2, 3) for n in range(6)}
    stores_ = [Store(again.cache / again.job.id / str(shard)) for shard in range(SHARDS)]
    pending = [e.key for store in stores_ for e in entries(store).values() if e.phase != ENDED]
    assert sorted(pending, key=str) == sorted(kept - {"new-2-1"})
    assert not again.run(4).lost


def test_what_is_not_there_is_not_taken_for_torn(tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    host = Host(tmp_path / "base")
    host.run(0)
    for path in (tmp_path / "base/checkpoint/shards").glob("*/*"):
        path.unlink()
    with pytest.raises(PipelineError, match="is not there, and the last manifest names it"):
        Host(tmp_path / "base", "other").run(1)


def test_a_torn_snapshot_ends_the_batch(tmp_path: Path) -> None:
    (tmp_path / "base").mkdir()
    host = Host(tmp_path / "base")
    for batch in range(BATCHES):
        host.run(batch)
    for path in (tmp_path / "base/checkpoint/shards").glob("*/segment-0-*"):
        path.write_bytes(b"ARROW1")
    with pytest.raises(PipelineError, match=r"the only copy of rows 0 to 3 of this shard"):
        Host(tmp_path / "base", "other").run(BATCHES)


class TestSparksLog:
    def folder(self, base: Path) -> Path:
        query = base / "query"
        for name in ("offsets", "commits", "sources/0"):
            (query / name).mkdir(parents=True)
        (query / "metadata").write_text('{"id":"x"}')
        for batch in range(3):
            until = json.dumps({"logOffset": batch})
            (query / f"offsets/{batch}").write_text(f'v1\n{{}}\n{until}\n{{"offset":1}}')
            (query / f"sources/0/{batch}").write_text(f'v1\n{{"path":"{batch}"}}')
            (query / f"commits/{batch}").write_text('v1\n{"nextBatchWatermarkMs":0}')
        (query / "commits/2").unlink()
        return query

    def left(self, query: Path) -> set[str]:
        return {str(path.relative_to(query)) for path in query.rglob("*") if path.is_file()}

    def test_it_is_on_disk_before_a_batch_is_decided(self, tmp_path: Path) -> None:
        query = self.folder(tmp_path)
        offsets = SparkLog(LocalFiles(tmp_path))
        with watched(tmp_path, lambda disk: None) as disk:
            disk.look()
            disk.sync(disk.top)
            offsets.seal()
        left = disk.left(random.Random(0), 0, 0)
        left.build(tmp_path / "after")
        kept = tmp_path / "after/query"
        assert self.left(kept) == self.left(query)
        assert all((kept / n).read_bytes() == (query / n).read_bytes() for n in self.left(query))

    @pytest.mark.parametrize(
        ("torn", "goes"),
        [
            ("offsets/2", {"offsets/2"}),
            ("commits/1", {"commits/1"}),
            ("sources/0/2", {"sources/0/2", "offsets/2"}),
            ("metadata", {"metadata"}),
        ],
    )
    @pytest.mark.parametrize("text", ["", "v1\n", 'v1\n{"a":', "\0\0\0\0"])
    def test_torn_files_go(self, tmp_path: Path, torn: str, goes: set[str], text: str) -> None:
        query = self.folder(tmp_path)
        whole = self.left(query)
        (query / torn).write_text(text)
        SparkLog(LocalFiles(tmp_path)).mend(1)
        assert self.left(query) == whole - goes

    def test_what_is_whole_stays(self, tmp_path: Path) -> None:
        query = self.folder(tmp_path)
        whole = self.left(query)
        SparkLog(LocalFiles(tmp_path)).mend(1)
        assert self.left(query) == whole
        (query / "offsets/2").write_text("v1\n{}")  # without its sources
        SparkLog(LocalFiles(tmp_path)).mend(1)
        assert self.left(query) == whole - {"offsets/2"}
