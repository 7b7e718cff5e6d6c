"""The part of a shard's tasks in an object store: deltas, snapshots and rows over S3, on loopback.

The driver's part (manifests, folders of the sink) goes through Hadoop, whose S3 client is not here.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow.fs
import pyarrow.parquet as pq
import pytest

import wheeld
from wheeld_pipeline.overflow import Daemon, Rules
from wheeld_pipeline.overflow.batch import intake
from wheeld_pipeline.overflow.batch.task import Errand, Result, tend
from wheeld_pipeline.overflow.checkpoint import log
from wheeld_pipeline.overflow.checkpoint.log import Position
from wheeld_pipeline.overflow.columns import store

BATCHES, KEYS = 6, 50


@pytest.fixture
def bucket(monkeypatch: pytest.MonkeyPatch) -> Iterator[pyarrow.fs.FileSystem]:
    moto = pytest.importorskip("moto.server")
    server = moto.ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    try:
        _, port = server.get_host_and_port()
        for name, value in {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
            "AWS_ACCESS_KEY_ID": "somebody",
            "AWS_SECRET_ACCESS_KEY": "something",
            "AWS_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
        }.items():
            monkeypatch.setenv(name, value)
        system = pyarrow.fs.S3FileSystem(
            endpoint_override=f"127.0.0.1:{port}", scheme="http", allow_bucket_creation=True
        )
        system.create_dir("bucket")
        yield pyarrow.fs.SubTreeFileSystem("bucket", system)
    finally:
        server.stop()


def test_a_shard_in_s3(
    bucket: pyarrow.fs.FileSystem,
    tmp_path: Path,
    runtime_dir: Path,
    daemon_name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(store, "SEGMENT", 64)
    monkeypatch.setattr(log, "MOST_DELTAS", 2)
    position, results = Position(), list[Result]()

    def batch(daemon: Daemon) -> Result:
        number, now_us = len(results), time.time_ns() // 1000
        orders = [("schedule", f"{number}-{i}", 1, now_us + 1000 * i, i, b"payload")
                  for i in range(KEYS * (number < BATCHES))]  # fmt: skip
        errand = Errand("job", bytes(16), number, now_us // 1000, Rules(), "s3a://bucket/shards/0",
                        "s3a://bucket/staging", str(tmp_path), 0, daemon, position)  # fmt: skip
        return tend(errand, [intake.make(orders)])

    with wheeld.embedded(name=daemon_name, runtime_dir=runtime_dir, payload_bytes=24) as daemon:
        while sum(result.counts["expired"] for result in results) < BATCHES * KEYS:
            results.append(batch(Daemon(daemon)))
            assert results[-1].trouble is None
            position = results[-1].position
            if len(results) == BATCHES - 1:
                shutil.rmtree(tmp_path / "job" / "0")
    assert [result.brought for result in results if result.brought] == ["rebuild"]
    found = bucket.get_file_info(pyarrow.fs.FileSelector("shards/0"))
    assert any(one.base_name.startswith("segment-") for one in found)
    staged = [name for result in results for name in result.staged.values()]
    rows = [
        row["key"]
        for name in staged
        for row in pq.read_table(f"staging/{name}", filesystem=bucket).to_pylist()
    ]
    assert sorted(rows) == sorted(f"{b}-{i}" for b in range(BATCHES) for i in range(KEYS))
