"""A batch is decided by files that appear once, manifests, and a sink that is made of them."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from programs import of_checkout
from proofs.torture.overflow.account import rows
from wheeld_pipeline.errors import PipelineError
from wheeld_pipeline.overflow import Daemon, Plan, Rules, ShardMap
from wheeld_pipeline.overflow.batch import intake
from wheeld_pipeline.overflow.batch.task import Errand, Result, tend
from wheeld_pipeline.overflow.checkpoint.files import Files, HadoopFiles, LocalFiles, files
from wheeld_pipeline.overflow.driver import job as jobs, sink
from wheeld_pipeline.overflow.driver.manifest import Ledger, Manifest
from wheeld_pipeline.overflow.driver.query import Batch, Driver
from wheeld_pipeline.overflow.machine import EXPIRED

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Make = Callable[[Path], Files]


@pytest.fixture(params=["local", "hadoop"])
def make(request: pytest.FixtureRequest) -> Make:
    if request.param == "local":
        return LocalFiles
    spark: SparkSession = request.getfixturevalue("spark")
    return lambda path: HadoopFiles(spark, f"file://{path}")


def test_both_kinds_of_files(make: Make, tmp_path: Path) -> None:
    found = make(tmp_path / "base")
    assert found.names() == []
    found.make("folder/below")
    assert found.put_new("first", "folder/a.json")
    assert not found.put_new("second", "folder/a.json")
    assert found.read_text("folder/a.json") == "first"
    (tmp_path / "base/folder/.b.json-00c0ffee").write_text("of a process that was killed")
    assert set(found.names("folder")) == {"a.json", "below"}
    assert found.rename("folder", "other")
    assert not found.rename("folder", "nowhere")
    assert found.exists("other/a.json")
    assert not found.exists("folder")
    found.remove("other")
    found.remove("other")
    assert not found.exists("other")


def test_paths_and_urls(spark: SparkSession, tmp_path: Path) -> None:
    assert files(spark, f"file:{tmp_path}").base == files(spark, f"file://{tmp_path}").base
    assert files(spark, str(tmp_path)).base == str(tmp_path)


class Overflow:
    """A driver without Spark, and shards whose daemon is not there."""

    def __init__(self, base: Path, make: Make = LocalFiles) -> None:
        spread = ShardMap.uniform(2, Daemon("nobody", "/nonexistent"))
        paths = (str(base / name) for name in ("commands", "sink", "checkpoint"))
        self.plan = Plan(*paths, spread, Rules(), cache=str(base / "cache"))
        self.checkpoint, self.sink = make(base / "checkpoint"), make(base / "sink")
        self.base = base
        self.restart()

    def restart(self) -> None:
        job = jobs.claim(self.checkpoint, self.sink, 2)
        self.driver = Driver(self.checkpoint, self.sink, self.plan, job)

    def run(self, batch: int) -> Batch:
        def attempt(errands: list[Errand]) -> list[Result]:
            order = [("cancel", f"k{batch}", 1, 0, 0, None)]
            return [tend(errand, [intake.make(order)]) for errand in reversed(errands)]

        return self.driver.run(batch, attempt)

    def rejected(self) -> list[str]:
        return sorted(row["key"] for row in rows(self.base / "sink", "rejected"))


DIES_AT_EACH_LINE = """
import os, signal, sys
from wheeld_pipeline.overflow.checkpoint.files import LocalFiles
from wheeld_pipeline.overflow.driver import job

def trace(frame, event, argument):
    global left
    if not frame.f_code.co_filename.endswith(("/job.py", "/files.py")):
        return None
    left -= event == "line"
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)
    return trace

for number in range(1, 1000):
    left = number
    if not os.fork():
        sys.settrace(trace)
        job.claim(LocalFiles(f"{number}/checkpoint"), LocalFiles(f"{number}/sink"), 2)
        os._exit(0)
    if not os.wait()[1]:
        break
"""


def test_claim_is_killed_at_each_line(tmp_path: Path) -> None:
    """The next driver begins as if nothing had been, and its checkpoint and sink agree."""
    subprocess.run([sys.executable, "-c", DIES_AT_EACH_LINE], cwd=tmp_path, env=of_checkout(),
                   timeout=240, check=True)  # fmt: skip
    killed = list(tmp_path.iterdir())
    assert len(killed) > 20
    assert any(tmp_path.glob("*/*/.*"))
    for base in killed:
        checkpoint, out = LocalFiles(base / "checkpoint"), LocalFiles(base / "sink")
        job = jobs.claim(checkpoint, out, 2)
        out.make(EXPIRED)
        for path in base.glob("*/.*"):
            os.utime(path, (0, 0))
        assert jobs.claim(checkpoint, out, 2) == job
        assert not any(base.glob("*/.*")), "a draft that belongs to nobody"


def test_a_batch_is_decided_once(make: Make, tmp_path: Path) -> None:
    over = Overflow(tmp_path, make)
    first = over.run(0)
    assert first.totals["rejected"] == 2
    over.restart()
    again = over.driver.run(0, lambda _: pytest.fail("an attempt"))
    assert again == first
    assert over.rejected() == ["k0", "k0"]
    late = Overflow(tmp_path, make)
    over.run(1)
    with pytest.raises(PipelineError, match="another driver has decided batch 1"):
        late.run(1)
    assert over.rejected() == ["k0", "k0", "k1", "k1"]


@pytest.mark.parametrize("lost", ["nothing", "staged", "gathered", "half", "all"])
def test_a_sink_is_made_from_the_manifest(make: Make, tmp_path: Path, lost: str) -> None:
    over = Overflow(tmp_path, make)
    original = sink.publish
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sink, "publish", lambda *_: None)
        over.run(0)
    manifest = Ledger(over.checkpoint, 2).last
    staging, final = over.base / "sink/_staging", over.base / "sink/rejected/batch=0"
    if lost == "staged":
        next(staging.glob("*.parquet")).unlink()
    elif lost == "gathered":
        (staging / "rejected-0").mkdir()
        found = sorted(staging.glob("*.parquet"), key=lambda path: path.name)
        found[0].rename(staging / "rejected-0/shard-0.parquet")
    elif lost == "half":
        original(over.sink, over.checkpoint, manifest, False)
        (final / "shard-1.parquet").unlink()
    elif lost == "all":
        for path in staging.iterdir():
            path.unlink()
    over.restart()
    over.driver.run(0, lambda _: pytest.fail("an attempt"))
    assert over.rejected() == ["k0", "k0"]
    over.run(1)
    assert over.rejected() == ["k0", "k0", "k1", "k1"]
    assert not list(staging.iterdir())


def test_parts_of_a_checkpoint_are_not_of_one_time(tmp_path: Path) -> None:
    over = Overflow(tmp_path)
    for batch in range(14):
        over.run(batch)
    for batch in (3, 15):
        with pytest.raises(PipelineError, match=f"Spark begins batch {batch}, and the last one"):
            over.run(batch)
    kept = sorted(path.name for path in (tmp_path / "checkpoint/manifests").iterdir())
    assert len(kept) == 10
    over.checkpoint.remove("manifests/000000013.json")
    (tmp_path / "checkpoint/manifests/000000013.json").write_text("{}")
    with pytest.raises(PipelineError, match="expected a manifest of this version"):
        over.restart()


def test_what_did_not_count_is_removed(tmp_path: Path) -> None:
    over = Overflow(tmp_path)
    over.run(0)
    needed = {path.name for path in (tmp_path / "checkpoint/shards/0").iterdir()}
    stray = tmp_path / "checkpoint/shards/0/000000000-0000000000000001.arrow"
    stray.write_text("half")
    (tmp_path / "sink/_staging").mkdir(exist_ok=True)
    (tmp_path / "sink/_staging/rejected-1-0-0000000000000001.parquet").write_text("half")
    over.restart()
    over.run(1)
    found = {path.name for path in (tmp_path / "checkpoint/shards/0").iterdir()}
    assert stray.name not in found
    assert needed <= found
    assert not list((tmp_path / "sink/_staging").iterdir())


def test_manifests_as_text(tmp_path: Path) -> None:
    over = Overflow(tmp_path)
    over.run(0)
    (path,) = (tmp_path / "checkpoint/manifests").iterdir()
    made = Manifest.of_text(path.read_text())
    assert Manifest.of_text(made.text()) == made
    assert all((tmp_path / "checkpoint" / name).exists() for name in made.files())


def test_a_batch_without_commands_is_for_shards_with_work(tmp_path: Path) -> None:
    over = Overflow(tmp_path)
    due: list[int] = []

    def attempt(errands: list[Errand]) -> list[Result]:
        due.extend(errand.shard for errand in errands)
        return [tend(errand, []) for errand in errands]

    def schedule(errands: list[Errand]) -> list[Result]:
        soon, far = (time.time_ns() // 1000 + seconds * 10**6 for seconds in (1, 10**6))
        orders = [("schedule", f"k{at}", 1, at, 0, None) for at in (far, soon)]
        return [tend(errand, [intake.make(orders[errand.shard :][:1])]) for errand in errands]

    assert over.driver.run(0, attempt, commands=False).totals["handed"] == 0
    first = over.driver.run(1, schedule)
    assert (first.pending, first.totals["refused"], len(first.troubles)) == (2, 1, 1)
    over.restart()
    second = over.driver.run(2, attempt, commands=False)  # it waits a quarter of the second
    assert (due, second.pending, second.troubles) == ([], 2, first.troubles)
    assert not any(second.totals.values())
    number, last = 3, first
    while not due:
        last = over.driver.run(number, attempt, commands=False)
        number += 1
    assert (due, last.totals["refused"]) == ([1], 1)
    counts = dict.fromkeys(first.totals, 0)
    assert Ledger(over.checkpoint, 2).last.results[0].counts == counts
    assert first.shards[1]._replace(in_wheel=1, wakes_ms=None).has_work(0)


def test_a_checkpoint_that_is_older_than_its_sink(tmp_path: Path) -> None:
    over = Overflow(tmp_path)
    for batch in range(3):
        over.run(batch)
    over.restart()
    (tmp_path / "sink/rejected/batch=2").rename(tmp_path / "sink/rejected/batch=0003")
    with pytest.raises(PipelineError, match="rows of batch 3, and the last batch"):
        over.restart()
