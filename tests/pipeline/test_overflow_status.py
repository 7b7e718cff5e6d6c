"""The messages of `wheeld pipeline overflow` while it runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from typer.testing import CliRunner

from programs import of_checkout
from wheeld_pipeline.commands import app
from wheeld_pipeline.commands.overflow import untested
from wheeld_pipeline.errors import brief
from wheeld_pipeline.overflow import Daemon, Plan, ShardMap
from wheeld_pipeline.overflow.batch.task import COUNTS, Result
from wheeld_pipeline.overflow.checkpoint.log import Position
from wheeld_pipeline.overflow.driver.query import Batch
from wheeld_pipeline.overflow.driver.run import Account


def batch(number: int, *handed: int, trouble: str | None = None) -> Batch:
    late = {"p50": 1000, "max": 2500}
    results = tuple(
        Result(
            shard=shard,
            position=Position(),
            staged={},
            counts=dict.fromkeys(COUNTS, 0) | {"handed": count},
            pending=10 * count,
            remembered=20 * count,
            trouble=trouble,
            brought=None,
            late_us=late,
            seconds={"redo": 0.25 * shard, "seal": 0.125},
            in_wheel=count,
            wakes_ms=None,
        )
        for shard, count in enumerate(handed)
    )
    totals = dict.fromkeys(COUNTS, 0) | {"handed": sum(handed)}
    troubles = [trouble] if trouble else []
    return Batch(number, totals, 10 * sum(handed), 20 * sum(handed), troubles, late, results)


def test_counts_of_each_shard() -> None:
    told: list[dict[str, Any]] = []
    lines: list[str] = []
    account = Account(lines.append, told.append)
    account.note(batch(0, 1, 2))
    account.note(batch(1, 10, 20, trouble="no daemon"))
    account.line(now=True)
    assert lines == ["overflow: no daemon; its timers will be handed out again later"]
    [facts] = told
    assert facts == json.loads(json.dumps(facts))
    assert (facts["batches"], facts["pending"], facts["handed"]) == (2, 300, 33)
    assert facts["lateness_us"] == {"p50": 1000, "max": 2500}
    names = ("shard", "handed", "pending", "in_wheel")
    shown = [tuple(each[name] for name in names) for each in facts["shards"]]
    assert shown == [(0, 11, 100, 10), (1, 22, 200, 20)]
    assert [each["seconds"] for each in facts["shards"]] == [0.125, 0.375]
    assert {each["trouble"] for each in facts["shards"]} == {"no daemon"}


def test_the_line_for_people() -> None:
    lines: list[str] = []
    account = Account(lines.append)
    account.line(now=True)
    account.note(batch(0, 1, 2000))
    account.line(now=True)
    account.line()  # not yet
    assert lines == [
        "overflow: 0 batches, 0 pending, 0 remembered, 0 handed, 0 expired, 0 rejected, 0 refused, "
        "0 withdrawn",
        "overflow: 1 batches, 20,010 pending, 40,020 remembered, 2,001 handed, 0 expired, "
        "0 rejected, 0 refused, 0 withdrawn, lateness p50 1.0 ms, max 2.5 ms; slowest is shard 1: "
        "0.38 s in the last batch",
    ]


def test_the_file_for_prometheus(tmp_path: Path) -> None:
    file = tmp_path / "overflow.prom"
    account = Account(lambda _: None, file=file)
    account.line(now=True)
    account.note(batch(0, 1, 2))
    account.note(batch(1, 10, 20, trouble='no "daemon"'))
    parts = {"triggerExecution": 250}
    progress = [
        {"batchId": number, "observedMetrics": observed, "durationMs": parts}
        for number, observed in enumerate(({"overflow": {"commands": 3}}, {}))
    ]
    for recent in (progress[:1], progress):  # what is recent comes again
        account.hear(recent)
    account.line(now=True)
    families = {one.name: one for one in text_string_to_metric_families(file.read_text())}
    found = {
        (sample.name.removeprefix("wheeld_overflow_"), *sample.labels.values()): sample.value
        for family in families.values()
        for sample in family.samples
    }
    assert all(family.documentation and family.type != "unknown" for family in families.values())
    assert found["batches_total",] == 2
    assert found["commands_total",] == 3
    assert found["spark_seconds", "triggerExecution"] == 0.25
    assert [found["timers_total", shard, "handed"] for shard in "01"] == [11, 22]
    assert [found["pending", shard] for shard in "01"] == [100, 200]
    assert [found["trouble", shard] for shard in "01"] == [1, 1]
    assert found["lateness_seconds", "max"] == 0.0025
    assert os.listdir(tmp_path) == ["overflow.prom"]


@pytest.mark.usefixtures("java")
def test_the_command(tmp_path: Path) -> None:
    (tmp_path / "commands").mkdir()
    far = {"op": "schedule", "key": "a", "sequence": 1, "deadline": "2099-01-01T00:00:00Z"}
    (tmp_path / "commands" / "1.json").write_text(json.dumps(far))
    paths = [f"--{name}={tmp_path / name}" for name in ("commands", "sink", "checkpoint", "cache")]
    options = ["--once", "--json", "--shards=2", f"--daemon={tmp_path / 'none'}"]
    options += [f"--metrics={tmp_path / 'overflow.prom'}"]
    command = [sys.executable, "-m", "wheeld", "pipeline", "overflow", *paths, *options]
    done = subprocess.run(command, env=of_checkout(), capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    said = done.stderr.splitlines()
    assert said[0].startswith("overflow: Spark's pages are at http://127.0.0.1:")
    assert all(line.startswith("overflow: ") for line in said), done.stderr
    assert len(said) <= 3  # each shard may find no daemon
    last = json.loads(done.stdout.splitlines()[-1])
    assert last["pending"] == sum(each["pending"] for each in last["shards"]) == 1
    assert [each["shard"] for each in last["shards"]] == [0, 1]
    assert last["commands"] == 1
    metrics = (tmp_path / "overflow.prom").read_text()
    assert "wheeld_overflow_batches_total 1\n" in metrics
    assert 'wheeld_overflow_spark_seconds{part="triggerExecution"} ' in metrics


@pytest.mark.parametrize(
    ("checkpoint", "sink", "named"),
    [
        ("checkpoint", "/sink", None),
        ("file:/checkpoint", "file:///sink", None),
        ("s3a://bucket/checkpoint", "sink", "(s3a://bucket/checkpoint)"),
        ("/checkpoint", "hdfs://name/sink", "(hdfs://name/sink)"),
    ],
)
def test_what_is_untested_says_so(checkpoint: str, sink: str, named: str | None) -> None:
    plan = Plan("commands", sink, checkpoint, ShardMap.uniform(1, Daemon("d")))
    warning = untested(plan)
    assert warning is None if named is None else named in (warning or "")


def test_an_error_of_a_job_is_told_in_a_line() -> None:
    said = """An error occurred while calling z:org.apache.spark.api.python.PythonRDD.collect.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 failed 4 times
\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.read(PythonRunner.scala:1)
Caused by: java.net.SocketException: Connection reset
\t... 22 more
"""
    assert brief(Exception(said)).endswith("stage failure: Task 0 failed 4 times")
    assert brief(Exception("\tat one.Place(A.scala:1)\n\t... 3 more")).startswith("Exception(")


def test_spark_connect_is_refused_in_a_sentence() -> None:
    options = ["--commands", "a", "--sink", "b", "--checkpoint", "c", "--remote", "sc://host"]
    said = CliRunner().invoke(app, ["overflow", *options])
    assert said.exit_code == 2
    assert said.stderr == (
        "wheeld: --remote: the overflow needs a driver of its own: use --master\n"
    )


def test_what_torn_files_took_away_is_said() -> None:
    lines: list[str] = []
    Account(lines.append).note(batch(0, 1)._replace(lost=("shard 0: a delta is torn",)))
    assert lines == ["overflow: shard 0: a delta is torn"]
