"""Compaction of the sink's folders: the same rows at any moment, whatever dies."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from wheeld_pipeline.commands import app
from wheeld_pipeline.errors import PipelineError
from wheeld_pipeline.overflow.checkpoint.files import LocalFiles
from wheeld_pipeline.overflow.driver import compact as compaction, sink as sinks
from wheeld_pipeline.overflow.driver.compact import compact

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = 5
PACKAGE = str(Path(compaction.__file__).parents[1])


def fill(base: Path, batches: Iterable[int], kinds: Iterable[str] = sinks.KINDS) -> None:
    base.mkdir(exist_ok=True)
    (base / sinks.CARD).write_text("{}")
    for kind in kinds:
        for batch in batches:
            publish(base, kind, batch)


def publish(base: Path, kind: str, batch: int) -> None:
    whole = base / sinks.STAGING / f"{kind}-{batch}"
    whole.mkdir(parents=True)
    for shard in range(2):
        keys = [f"{kind}-{batch}-{shard}-{i}" for i in range(ROWS)]
        table = pa.table({"key": keys, "generation": pa.array([batch] * ROWS, pa.int64())})
        pq.write_table(table, whole / f"shard-{shard}.parquet")
    (base / kind).mkdir(exist_ok=True)
    files = LocalFiles(base)
    with files.locked(sinks.LOCK):
        os.rename(whole, base / kind / f"batch={batch}")


def wanted(batches: Iterable[int], kind: str = "expired") -> Counter[str]:
    return Counter(f"{kind}-{b}-{s}-{i}" for b in batches for s in range(2) for i in range(ROWS))


def seen(base: Path, kind: str = "expired") -> Counter[str]:
    files = sorted((base / kind).glob("batch=*/*.parquet"))
    return Counter(key for file in files for key in pq.ParquetFile(file).read()["key"].to_pylist())


def test_folders_become_few_and_rows_stay(tmp_path: Path) -> None:
    base = tmp_path / "sink"
    fill(base, range(20))
    done = compact(str(base), older_than=0)
    assert [one.kind for one in done] == ["expired", "rejected"]
    assert all(one[1:] == (20, 2, 40, 3, 19 * 2 * ROWS) for one in done)
    for kind in sinks.KINDS:
        names = sorted(path.name for path in (base / kind).iterdir())
        assert names == ["batch=018", "batch=19"]  # the newest folder stays as it is
        assert seen(base, kind) == wanted(range(20), kind)
    table = ds.dataset(base / "expired", partitioning="hive").to_table()
    assert Counter(table["batch"].to_pylist()) == {18: 190, 19: 10}
    assert not (base / compaction.FOLDER).exists()
    assert compact(str(base), older_than=0)[0].rows == 0  # nothing is left to do
    fill(base, range(20, 25))
    compact(str(base), older_than=0)
    assert sorted(path.name for path in (base / "expired").iterdir()) == ["batch=023", "batch=24"]
    assert seen(base) == wanted(range(25))


def test_a_name_never_stands_for_other_rows(tmp_path: Path) -> None:
    base = tmp_path / "sink"
    fill(base, [1, 2, 3], ["expired"])
    compact(str(base), older_than=0)
    first = {path.name for path in (base / "expired").iterdir()}
    shutil.copytree(base / "expired/batch=02", base / "expired/batch=01")  # made up: two of them
    compact(str(base), older_than=0)
    second = {path.name for path in (base / "expired").iterdir()}
    assert (first, second) == ({"batch=02", "batch=3"}, {"batch=002", "batch=3"})


def test_sizes(tmp_path: Path) -> None:
    base = tmp_path / "sink"
    fill(base, range(9), ["expired"])
    size = sum(file.stat().st_size for file in (base / "expired/batch=0").iterdir())
    done = compact(str(base), size, 0)
    assert (done[0].folders, done[0].files) == (9, 10)  # two files of a folder become one
    done = compact(str(base), 3 * size, 0)
    assert done[0].folders < 9
    assert seen(base) == wanted(range(9))


class Lines:
    """Notes the lines of the overflow's package that run; kills this process at one of them."""

    def __init__(self, last: int = -1) -> None:
        self.passed: list[str] = []
        self._last = last

    def enter(self, frame: FrameType, event: str, argument: object) -> Any:
        return self.line if frame.f_code.co_filename.startswith(PACKAGE) else None

    def line(self, frame: FrameType, event: str, argument: object) -> Any:
        if event == "line":
            self.passed.append(f"{frame.f_code.co_filename}:{frame.f_lineno}")
            if len(self.passed) == self._last:
                os.kill(os.getpid(), signal.SIGKILL)
        return self.line

    def compact(self, base: Path) -> None:
        sys.settrace(self.enter)
        try:
            compact(str(base), older_than=0)
        finally:
            sys.settrace(None)


def kill_at(base: Path, last: int) -> None:
    child = os.fork()
    if not child:
        Lines(last).compact(base)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL


def test_a_kill_at_every_line_leaves_it_right(tmp_path: Path) -> None:
    base, lines = tmp_path / "sink", Lines()
    fill(base, range(3), ["expired"])
    lines.compact(base)
    numbered = [*enumerate(lines.passed, 1)]
    first = {where: number for number, where in reversed(numbered)}
    last = {where: number for number, where in numbered}
    states = set()
    for line in sorted({*first.values(), *last.values()}):
        shutil.rmtree(base)
        fill(base, range(3), ["expired"])
        kill_at(base, line)
        assert seen(base) == wanted(range(3)), line
        states.add((len(list((base / "expired").iterdir())), (base / compaction.FOLDER).exists()))
        publish(base, "expired", 3)  # the driver goes on
        compact(str(base), older_than=0)
        assert seen(base) == wanted(range(4)), line
        assert sorted(path.name for path in (base / "expired").iterdir()) == ["batch=02", "batch=3"]
        assert not (base / compaction.FOLDER).exists()
    assert states == {(3, False), (3, True), (2, True), (2, False)}


def test_readers_and_the_driver_meanwhile(tmp_path: Path) -> None:
    base = tmp_path / "sink"
    fill(base, range(4), ["expired"])
    over, published = threading.Event(), [4]

    def drive() -> None:
        while not over.wait(0.005):
            publish(base, "expired", published[0])
            published[0] += 1

    def merge() -> None:
        while not over.wait(0.02):
            compact(str(base), older_than=0)

    threads = [threading.Thread(target=each) for each in (drive, merge)]
    for thread in threads:
        thread.start()
    reads = 0
    try:
        while reads < 30:
            least = published[0]
            try:
                found = seen(base)
            except FileNotFoundError:
                continue
            reads += 1
            assert set(found.values()) == {1}
            assert found.keys() >= wanted(range(least)).keys()
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert seen(base) == wanted(range(published[0]))


def test_what_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for sink in (str(tmp_path), "s3://bucket/sink", "hdfs://host/sink"):
        with pytest.raises(PipelineError, match="expected the sink of an overflow on a local"):
            compact(sink)
    base = tmp_path / "sink"
    fill(base, range(3))
    with (
        LocalFiles(base).locked(f"{compaction.FOLDER}.lock"),
        pytest.raises(PipelineError, match="is being compacted by another process"),
    ):
        compact(str(base), older_than=0)
    monkeypatch.setattr(compaction, "RENAME_EXCHANGE", 1 << 30)  # as where it is not known
    with pytest.raises(PipelineError, match="cannot exchange two folders"):
        compact(str(base), older_than=0)
    assert seen(base) == wanted(range(3))


def test_a_stream_of_the_sink_has_each_row_once(tmp_path: Path, spark: SparkSession) -> None:
    """By default, if it keeps up. One that has fallen behind has rows twice, and all."""
    base, got = tmp_path / "sink", dict[str, list[str]]()

    def publish_days_ago(batches: range) -> None:
        fill(base, batches, ["expired"])
        for batch in batches:
            for file in (base / f"expired/batch={batch}").iterdir():
                os.utime(file, (time.time() - (0 if batch == 5 else 20 - batch) * 86400,) * 2)

    def read(reader: str) -> Counter[str]:
        keys = got.setdefault(reader, [])
        rows = spark.readStream.schema("key string, generation bigint, batch bigint")
        query = (
            rows.parquet(str(base / "expired")).writeStream
            .foreachBatch(lambda rows, _: keys.extend(row.key for row in rows.collect()))
            .option("checkpointLocation", str(tmp_path / reader))
            .trigger(availableNow=True).start()
        )  # fmt: skip
        query.awaitTermination()
        return Counter(keys)

    publish_days_ago(range(2))
    assert read("stops") == wanted(range(2))
    publish_days_ago(range(2, 6))
    assert read("keeps up") == wanted(range(6))
    assert compact(str(base))[0].folders == 2  # batch 5 and the others
    assert read("keeps up") == wanted(range(6))
    assert read("begins") == wanted(range(6))
    assert Counter(row.key for row in sinks.read(spark, str(base)).collect()) == wanted(range(6))
    assert read("stops") == wanted(range(6)) + wanted(range(2))


def test_the_command(tmp_path: Path) -> None:
    base = tmp_path / "sink"
    fill(base, range(5))
    said = CliRunner().invoke(app, ["overflow-compact", str(base), "--older-than", "0s", "--json"])
    assert said.exit_code == 0, said.output
    facts = json.loads(said.stdout)
    assert facts[0] == {"kind": "expired", "folders_before": 5, "folders": 2, "files_before": 10,
                        "files": 3, "rows": 40}  # fmt: skip
    said = CliRunner().invoke(app, ["overflow-compact", str(base), "--older-than", "0s"])
    assert "expired: 2 folders became 2, 3 files became 3, 0 rows were merged" in said.stdout
    said = CliRunner().invoke(app, ["overflow-compact", str(base), "--file-bytes", "many"])
    assert said.exit_code != 0
    assert "expected a size such as 128M" in said.output
