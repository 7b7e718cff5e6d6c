"""The journal without Spark: tasks that die at each step, run twice, or come too late."""

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from common_fixtures import embedded

pytest.importorskip("pyspark")

import pyarrow as pa
import pyarrow.compute as pc
from datasource_tasks import (
    ROWS,
    Zygote,
    batches,
    partition_writer,
    read_all,
    read_some,
)
from datasource_zygote import RECEIVING, WRITING

from daemons import until
from wheeld_client import Observer
from wheeld_pipeline import PipelineError
from wheeld_pipeline.datasource.host import Host
from wheeld_pipeline.datasource.journal import Journal
from wheeld_pipeline.datasource.stage import Progress, Stage


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    made = Zygote()
    yield made
    _, said = made.process.communicate()
    assert "Error" not in said, said


daemon = embedded(scope="function", capacity=1 << 16, payload_bytes=8)


@pytest.fixture
def options(daemon: str, tmp_path: Path) -> dict[str, str]:
    return {"name": daemon, "journal": str(tmp_path / "journal")}


def check_once(given: dict[str, str], count: int) -> None:
    found = read_all(given)
    assert sorted(found["cookie"].to_pylist()) == list(range(count))
    assert len(found["timer_id"].unique()) == count
    assert pc.min(found["lateness_ns"]).as_py() >= 0
    assert found["payload"].to_pylist() == [
        b"%d" % cookie for cookie in found["cookie"].to_pylist()
    ]


def all_fired(given: dict[str, str], count: int) -> None:
    receiver = Journal(given["journal"]).receiver
    with Observer(given["name"]) as observer:
        until(lambda: len(observer.fired(receiver)) == count, "all fired")


# -- deaths ---------------------------------------------------------------------------------------


def test_killed_at_each_step(zygote: Zygote, daemon: str, tmp_path: Path) -> None:
    for number, point in enumerate(WRITING):
        options = {"name": daemon, "journal": str(tmp_path / f"journal-{number}")}
        assert not zygote.attempt(options, point, 1), point
        zygote.attempt(options, point, 2)
        assert zygote.attempt(options, None), point
        check_once(options, ROWS)
        stage = Stage(Journal(options["journal"]), "query", 0, 0)
        assert stage.progress == Progress(ROWS, ROWS), point


def test_a_receiver_that_is_killed_at_each_step(
    zygote: Zygote, daemon: str, tmp_path: Path
) -> None:
    for number, point in enumerate(RECEIVING):
        options = {"name": daemon, "journal": str(tmp_path / f"journal-{number}")}
        assert zygote.attempt(options, None)
        all_fired(options, ROWS)
        assert not zygote.attempt(options, point, receive=True), point
        zygote.attempt(options, point, receive=True)
        check_once(options, ROWS)
        assert list(Path(options["journal"]).glob("hosts/*/*.held")) == []
        assert list(Path(options["journal"]).glob("hosts/*/*.draft")) == []


def test_killed_again_and_again(zygote: Zygote, options: dict[str, str], rng_seed: int) -> None:
    rng = random.Random(rng_seed)
    journal = Journal(options["journal"])
    for batch in range(2):
        for partition in (0, 1):
            task = {"batch": batch, "partition": partition, "first": (batch * 2 + partition) * ROWS}
            for _ in range(rng.randrange(3)):
                zygote.attempt(options, rng.choice(list(WRITING)), rng.randint(1, 5), **task)
                zygote.attempt(options, rng.choice(list(RECEIVING)), receive=True)
                if rng.random() < 0.3:
                    read_some(options)
            assert zygote.attempt(options, None, **task)
        journal.commit("query", batch)
        assert zygote.attempt(options, None, **task)  # replayed after its commit
    check_once(options, 4 * ROWS)
    assert Host(journal).owed == 0  # whatever was counted twice


# -- attempts side by side -----------------------------------------------------------------------


def test_the_first_seal_wins(zygote: Zygote, options: dict[str, str]) -> None:
    def rows() -> Iterator[pa.RecordBatch]:
        assert not zygote.attempt(options, "half parked", 2)
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
    journal, whole = Journal(options["journal"]), Stage.rows

    def meanwhile() -> None:
        monkeypatch.undo()
        partition_writer(options).write(0, batches(range(10)))
        journal.commit("query", 0)

    def asleep(self: Stage) -> Any:
        meanwhile()
        return whole(self)

    def rows() -> Iterator[pa.RecordBatch]:
        if begun:
            meanwhile()
        yield from batches(range(10))

    if not begun:
        monkeypatch.setattr(Stage, "rows", asleep)
    partition_writer(options).write(0, rows())
    assert sorted(read_all(options)["cookie"].to_pylist()) == list(range(10))
    assert list(journal.batch_directory("query", 0).glob("*")) == []


def test_other_rows_are_refused(options: dict[str, str]) -> None:
    writer = partition_writer(options)
    writer.write(0, batches(range(100)))
    writer.write(0, batches(range(99, -1, -1)))  # another order is fine
    for other in (range(101), range(1, 101)):
        with pytest.raises(PipelineError, match="begun with 100 rows and comes again"):
            writer.write(0, batches(other))
    assert len(read_all(options)) == 100


def test_another_host_began_it(options: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    here = partition_writer(options, timeout="0.1")
    here.journal.host = "elsewhere"
    monkeypatch.setattr(Stage, "finish", lambda *args: None)
    here.write(0, batches(range(10)))
    monkeypatch.undo()
    with pytest.raises(PipelineError, match="was begun on host elsewhere and is not finished"):
        partition_writer(options, timeout="0.1").write(0, batches(range(10)))


def test_no_rows(options: dict[str, str]) -> None:
    writer = partition_writer(options)
    assert writer.write(0, iter([])).rows == 0
    assert writer.write(0, batches([])).rows == 0
    assert Host(Journal(options["journal"])).owed == 0
