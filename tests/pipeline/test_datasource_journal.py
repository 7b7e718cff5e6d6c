"""The journal without Spark: tasks that die at each step, run twice, or come too late."""

import json
import random
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common_fixtures import embedded

pytest.importorskip("pyspark")

import pyarrow as pa
from datasource_tasks import (
    CHUNK,
    ROWS,
    Zygote,
    batches,
    lanes,
    partition_writer,
    read_all,
    read_some,
)
from datasource_zygote import POINTS

from wheeld_pipeline import PipelineError
from wheeld_pipeline.datasource.journal import Journal
from wheeld_pipeline.datasource.lane import Lane
from wheeld_pipeline.datasource.options import Options
from wheeld_pipeline.datasource.stage import StagedPartition, stage_of
from wheeld_pipeline.datasource.writer import PartitionWriter

ONLY_WITH_EVENTS = {"before the spool", "half the spool", "after the spool", "after acknowledge"}
"""Steps that an attempt comes to when something expires while it runs."""


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    made = Zygote()
    yield made
    _, said = made.process.communicate()
    assert "Error" not in said, said


daemon = embedded(scope="function", capacity=1 << 16, payload_bytes=8, keep_for="1h")


@pytest.fixture
def options(daemon: str, tmp_path: Path) -> dict[str, str]:
    return {"name": daemon, "journal": str(tmp_path / "journal")}


def check_once(given: dict[str, str], count: int) -> None:
    found = read_all(given)
    assert sorted(found["cookie"].tolist()) == list(range(count))
    assert len(np.unique(found["timer_id"])) == count
    assert (found["lateness_ns"] >= 0).all()
    texts = [bytes(row["payload"])[: row["payload_size"]] for row in found[:50]]
    assert texts == [b"%d" % cookie for cookie in found["cookie"][:50]]


# -- deaths ---------------------------------------------------------------------------------------


def test_killed_at_each_step(zygote: Zygote, daemon: str, tmp_path: Path) -> None:
    for number, point in enumerate(POINTS):
        options = {"name": daemon, "journal": str(tmp_path / f"journal-{number}")}
        killed = [not zygote.attempt(options, point, nth) for nth in (1, 2)]
        assert any(killed) or point in ONLY_WITH_EVENTS, point
        assert zygote.attempt(options, None), point
        check_once(options, ROWS)
        stage = stage_of(Journal(options["journal"]), "query", 0, 0)
        assert stage.is_done, point
        assert stage.armed() == ROWS, point


def test_killed_again_and_again(zygote: Zygote, options: dict[str, str], rng_seed: int) -> None:
    rng = random.Random(rng_seed)
    journal = Journal(options["journal"])
    for batch in range(2):
        for partition in (0, 1):
            task = {"batch": batch, "partition": partition, "first": (batch * 2 + partition) * ROWS}
            for _ in range(rng.randrange(3)):
                zygote.attempt(options, rng.choice(list(POINTS)), rng.randint(1, 5), **task)
                if rng.random() < 0.3:
                    read_some(options)
            assert zygote.attempt(options, None, **task)
        journal.commit("query", batch)
        assert zygote.attempt(options, None, **task)  # replayed after its commit
    check_once(options, 4 * ROWS)


def test_rows_of_a_stage_in_the_order_of_the_ids(zygote: Zygote, options: dict[str, str]) -> None:
    assert not zygote.attempt(options, "half the ids", 2)
    for lane in lanes(options):
        with lane:
            stage = StagedPartition.current(lane.directory)
    assert stage is not None
    assert stage.armed() == CHUNK + CHUNK // 2
    found = read_all(options)
    assert sorted(found["cookie"].tolist()) == list(range(CHUNK + CHUNK // 2))
    order = {int(id): row for row, id in enumerate(stage.ids())}
    assert all(order[int(row["timer_id"])] == row["cookie"] for row in found)
    assert zygote.attempt(options, None)
    check_once(options, ROWS)


# -- attempts side by side -----------------------------------------------------------------------


def test_the_first_seal_wins(zygote: Zygote, options: dict[str, str]) -> None:
    def rows() -> Iterator[pa.RecordBatch]:
        assert not zygote.attempt(options, "half armed", 2)
        yield from batches(range(ROWS - 1, -1, -1))

    partition_writer(options).write(0, rows())
    check_once(options, ROWS)


def test_two_attempts_at_once(options: dict[str, str], rng_seed: int) -> None:
    zygotes = [Zygote(), Zygote()]
    task = {"batch": 0, "partition": 0, "first": 0, "rows": ROWS, "chunk": 100}
    task |= {"options": options, "point": None, "nth": 1}
    for made in zygotes:
        assert made.process.stdin is not None
        made.process.stdin.write(json.dumps(task) + "\n")
        made.process.stdin.flush()
    for made in zygotes:
        out, said = made.process.communicate()
        assert int(out) == 0, said
    check_once(options, ROWS)


@pytest.mark.parametrize("begun", [False, True])
def test_an_attempt_that_comes_after_the_commit(
    options: dict[str, str], begun: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal, whole = Journal(options["journal"]), PartitionWriter._intake

    def meanwhile() -> None:
        monkeypatch.undo()
        partition_writer(options).write(0, batches(range(10)))
        journal.commit("query", 0)

    def asleep(self: PartitionWriter) -> Any:
        meanwhile()
        return whole(self)

    def rows() -> Iterator[pa.RecordBatch]:
        if begun:
            meanwhile()
        yield from batches(range(10))

    if not begun:
        monkeypatch.setattr(PartitionWriter, "_intake", asleep)
    partition_writer(options).write(0, rows())
    assert sorted(read_all(options)["cookie"].tolist()) == list(range(10))
    directory = journal.batch_directory("query", 0)
    assert not directory.exists() or not StagedPartition.all(directory)


def test_other_rows_are_refused(options: dict[str, str]) -> None:
    writer = partition_writer(options)
    writer.write(0, batches(range(100)))
    writer.write(0, batches(range(99, -1, -1)))  # another order is fine
    for other in (range(101), range(1, 101)):
        with pytest.raises(PipelineError, match="begun with 100 rows and comes again"):
            writer.write(0, batches(other))
    assert len(read_all(options)) == 100


def test_another_host_began_it(options: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    here = partition_writer(options, lane_timeout="0.1")
    here.journal.host = "elsewhere"
    here.journal.lanes_directory.mkdir()
    monkeypatch.setattr(StagedPartition, "finish", lambda *args: None)
    here.write(0, batches(range(10)))
    monkeypatch.undo()
    with pytest.raises(PipelineError, match="was begun on host elsewhere and is not finished"):
        partition_writer(options, lane_timeout="0.1").write(0, batches(range(10)))
    shutil.rmtree(here.journal.lanes_directory)


def test_lanes_are_taken(options: dict[str, str]) -> None:
    parsed = Options.parse(options)
    with Lane.any(Journal(parsed.journal), parsed):
        with pytest.raises(PipelineError, match=r"all 1 lanes of .* were taken for 0.05 s"):
            partition_writer(options, lanes="1", lane_timeout="0.05").write(0, batches([1]))
        partition_writer(options).write(1, batches([0]))
    assert read_all(options)["cookie"].tolist() == [0]


def test_no_rows(options: dict[str, str]) -> None:
    writer = partition_writer(options)
    assert writer.write(0, iter([])).rows == 0
    assert writer.write(0, batches([])).rows == 0
    assert Journal(options["journal"]).lane_numbers() == []
