"""The journal without Spark: bad values, a full wheel, a daemon that is not the one it was."""

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from common_fixtures import embedded

pytest.importorskip("pyspark")

import pyarrow as pa
import pyarrow.compute as pc
from datasource_tasks import batches, partition_writer, read_all, read_some

import wheeld
from daemons import until
from wheeld_client import Observer, connect
from wheeld_pipeline import PipelineError
from wheeld_pipeline.datasource import rows
from wheeld_pipeline.datasource.host import Host
from wheeld_pipeline.datasource.journal import Journal
from wheeld_pipeline.datasource.options import Options
from wheeld_pipeline.datasource.writer import PartitionWriter, take_back

daemon = embedded(scope="function", capacity=1 << 16, payload_bytes=8)


@pytest.fixture
def options(daemon: str, tmp_path: Path) -> dict[str, str]:
    return {"name": daemon, "journal": str(tmp_path / "journal")}


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"delay": [1.0, float("nan")]}, "column 'delay', row 3 .* got nan"),
        ({"delay": [-1.0, 0.0]}, "column 'delay', row 2 .* got -1.0"),
        ({"delay": [float("inf"), 0.0]}, "got inf"),
        ({"delay": [None, 0.0]}, "column 'delay', row 2 of the partition: got null"),
        ({"cookie": [1, None]}, "column 'cookie', row 3 of the partition: got null"),
        ({"payload": [b"x" * 9, b""]}, "column 'payload', row 2 .*: 9 bytes; .* holds 8 per timer"),
        ({"target": [None, "nobody"]}, "column 'target': .* no worker of that name"),
    ],
)
def test_bad_values(options: dict[str, str], columns: dict[str, Any], message: str) -> None:
    types = {"delay": pa.float64(), "cookie": pa.int64(), "payload": pa.binary()}
    given = {"delay": [0.0, 0.0], "cookie": [1, 2], "payload": [b"", b""], "target": [None, None]}
    arrays = [
        {name: pa.array(values, types.get(name, pa.string())) for name, values in part.items()}
        for part in (given, given | columns)
    ]
    writer = partition_writer(options)
    with pytest.raises(PipelineError, match=message):
        writer.write(0, iter([pa.record_batch(part) for part in arrays]))
    assert len(read_all(options)) == 0
    directory = writer.journal.batch_directory("query", 0)
    assert list(directory.iterdir()) == []
    writer.write(0, iter([pa.record_batch(arrays[0])]))
    assert len(read_all(options)) == 2


def test_targets(options: dict[str, str]) -> None:
    with connect(options["name"], worker="reader", group="web") as reader:
        targets = pa.array(["reader", None, "group:web", "reader", None])
        writer = partition_writer(options)
        writer.write(0, batches(range(5), target=targets))
        seen: list[int] = []
        while len(seen) < 3:
            seen += reader.poll(60.0)["cookie"].tolist()
        assert sorted(seen) == [0, 2, 3]
        assert sorted(read_all(options)["cookie"].to_pylist()) == [1, 4]


def test_a_full_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "CHUNK_ROWS", 256)
    with wheeld.embedded(capacity=1024, detached_capacity=1024) as name:
        given = {"name": name, "journal": str(tmp_path / "journal")}
        with connect(name, worker="squatter") as squatter:
            squatter.schedule_many([60.0] * 512)
            for _ in range(2):
                with pytest.raises(PipelineError, match=r"all 1024 slots .* 512 rows of part"):
                    partition_writer(given).write(0, batches(range(1000), delay=30.0))
                with Observer(name) as observer:
                    assert len(observer.pending().timers) == 1024
        partition_writer(given).write(0, batches(range(1000), delay=30.0))
        with Observer(name) as observer:
            cookies = observer.pending().timers["cookie"]
        assert sorted(cookies.tolist()) == list(range(1000))
        take_back(Journal(given["journal"]), "query", 0, Options.parse(given))
        with Observer(name) as observer:
            assert len(observer.pending().timers) == 0


def test_no_daemon(tmp_path: Path, options: dict[str, str]) -> None:
    given = options | {"name": str(tmp_path / "none")}
    host = Journal(options["journal"]).host
    with pytest.raises(PipelineError, match=f"host {host}: no wheeld daemon"):
        partition_writer(given).write(0, batches([1]))


def test_journal_of_another_daemon(options: dict[str, str]) -> None:
    partition_writer(options).write(0, batches([0]))
    other = wheeld.embedded(capacity=64)
    with other as name, pytest.raises(PipelineError, match="give each daemon a journal"):
        partition_writer(options | {"name": name}).write(1, batches([1]))
    assert read_all(options)["cookie"].to_pylist() == [0]


def test_a_fresh_wheel_is_said(tmp_path: Path) -> None:
    given = {"name": str(tmp_path / "d"), "journal": str(tmp_path / "journal")}
    where = {"runtime_dir": str(tmp_path), "name": "d", "capacity": 256, "keep_for": "1h"}
    with wheeld.embedded(**where):
        partition_writer(given).write(0, batches(range(10), delay=60.0))
    with wheeld.embedded(**where):
        with pytest.raises(PipelineError, match=r"up to 10 timers .* has another wheel"):
            partition_writer(given).write(1, batches([10]))
        lenient = given | {"fail_on_data_loss": "false"}
        partition_writer(lenient).write(1, batches([10]))
        assert read_all(lenient)["cookie"].to_pylist() == [10]


def test_taken_back(options: dict[str, str]) -> None:
    writer = partition_writer(options)
    writer.write(0, batches(range(50), delay=60.0))
    writer.write(1, batches(range(50, 60)))
    read_some_of(options, 10)
    took = Host(writer.journal).spool.bounds()[1]
    take_back(Journal(options["journal"]), "query", 0, Options.parse(options))
    assert len(read_all(options)) == took
    writer.write(2, batches(range(60, 70)))
    assert len(read_all(options)) == took


def read_some_of(given: dict[str, str], count: int) -> None:
    spool = Host(Journal(given["journal"])).spool

    def enough() -> bool:
        read_some(given)
        return spool.bounds()[1] >= count

    until(enough, f"{count} expired")


def test_deadlines_by_the_wall_clock(options: dict[str, str]) -> None:
    wanted = int(time.time() * 1e6) + 20_000 + np.arange(100) * 37
    writer = PartitionWriter(Options.parse(options), "realtime", "query", 0)
    deadlines = pa.array(wanted).cast(pa.timestamp("us", tz="UTC"))
    columns = {"deadline": deadlines, "cookie": np.arange(100)}
    writer.write(0, iter([pa.record_batch(columns)]))
    found = read_all(options).sort_by("cookie")
    assert found["deadline"].cast("int64").to_pylist() == wanted.tolist()
    assert pc.all(pc.greater_equal(found["fired"], found["deadline"])).as_py()
