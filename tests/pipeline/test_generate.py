"""`generate` on Spark: the same whatever the partitioning; Parquet; what is refused."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner
from workloads import all_of

from wheeld.cli.app import app
from wheeld_pipeline import PipelineError
from wheeld_pipeline.workload import COLUMNS, Model, generate, write, write_here

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROWS = 200_000


def test_the_partitioning_changes_nothing(spark: SparkSession, rng_seed: int) -> None:
    model = Model.constant(timeouts_ms=((100, 1), (300, 2)))
    wanted = all_of(model, ROWS, rng_seed)
    for partitions in (1, 3, 1000):
        made = generate(spark, ROWS, model, rng_seed, partitions)
        assert dict(made.dtypes) == COLUMNS
        found = made.toPandas()
        for name, values in wanted.items():
            assert (found[name].to_numpy() == values).all(), (name, partitions)


def test_parquet_is_written_and_replaced_only_when_asked(
    spark: SparkSession, tmp_path: Path
) -> None:
    out = tmp_path / "workload"
    made = generate(spark, 70_000, Model.constant(), partitions=2)
    write(made, str(out))
    assert len(list(out.glob("*.parquet"))) == 2
    read = spark.read.parquet(str(out)).orderBy("request").toPandas()
    assert read.equals(made.toPandas())
    with pytest.raises(PipelineError, match="expected an empty or a new one, or --overwrite"):
        write(made, str(out))
    write(made.limit(10), str(out), overwrite=True)
    assert spark.read.parquet(str(out)).count() == 10


def test_nothing_foreign_is_overwritten(spark: SparkSession, tmp_path: Path) -> None:
    made = generate(spark, 10, Model.constant())
    (tmp_path / "letters.txt").write_text("dear")
    for overwrite in (False, True):
        with pytest.raises(PipelineError, match=r"letters\.txt in it, which is not part"):
            write(made, str(tmp_path), overwrite)
    with pytest.raises(PipelineError, match="got a file, expected a folder"):
        write(made, str(tmp_path / "letters.txt"), True)
    assert (tmp_path / "letters.txt").read_text() == "dear"
    (tmp_path / "empty").mkdir()
    write(made, str(tmp_path / "empty"))


def read(folder: Path) -> pa.Table:
    files = sorted(folder.glob("*.parquet"))
    return pa.concat_tables([pq.read_table(file) for file in files])


def test_this_process_makes_the_same(tmp_path: Path, rng_seed: int) -> None:
    model, out = Model.constant(timeouts_ms=((100, 1), (300, 2))), tmp_path / "w"
    wanted = all_of(model, ROWS, rng_seed)
    for partitions in (1, 3):
        write_here(ROWS, model, str(out), rng_seed, partitions, overwrite=partitions > 1)
        assert len(list(out.glob("*.parquet"))) == partitions
        found = read(out)
        assert found.column_names == [*COLUMNS]
        assert all((found[name].to_numpy() == values).all() for name, values in wanted.items())
    with pytest.raises(PipelineError, match="expected an empty or a new one, or --overwrite"):
        write_here(10, model, str(out))
    assert read(out).num_rows == ROWS


def test_a_model_that_is_not_like_its_trace_says_so(tmp_path: Path) -> None:
    line = {"what": "timeout rate", "seen": 0.0041, "model": 0.0, "fits": False, "instead": 0.0}
    made = replace(Model.constant(), fitted={"judgement": [line]})
    made.save(tmp_path / "m.json")
    options = ["--rows", "10", "--model", str(tmp_path / "m.json")]
    done = CliRunner().invoke(app, ["pipeline", "generate", str(tmp_path / "w"), *options])
    assert done.exit_code == 0
    assert "timeout rate: 0.41% in the trace, 0.00% in the model" in done.stderr
    assert "DIFFERS FROM THE TRACE" in done.stderr


def test_the_command_makes_a_workload_without_java(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", "/nowhere")
    out = tmp_path / "w"
    options = ["--rows", "1000", "--rate", "50", "--timeout-ms", "5:1", "--timeout-ms", "7:3"]
    done = CliRunner().invoke(app, ["pipeline", "generate", str(out), *options, "--json"])
    assert done.exit_code == 0, done.stderr
    content = json.loads(done.stdout)
    assert content["rows"] == 1000
    assert content["model"]["timeouts_ns"] == {"values": [5_000_000, 7_000_000], "weights": [1, 3]}
    counts = Counter(read(out)["timeout_ns"].to_pylist())
    assert counts[7_000_000] > counts[5_000_000] > 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--rate", "-1"], "arrival rate: got -1.0"),
        (["--rate", "nan"], "arrival rate: got nan"),
        (["--timeout-ms", "soon"], "--timeout-ms: got 'soon', expected milliseconds"),
        (["--rows", "0"], "rows: got 0"),
        (["--partitions", "0"], "partitions: got 0"),
        (["--model", "nowhere.json"], "nowhere.json: no such file; expected a model"),
        (["--model", "nowhere.json", "--rate", "5"], "got --model together with options"),
    ],
)
def test_wrong_options_are_one_line_before_spark_starts(
    options: list[str], said: str, tmp_path: Path
) -> None:
    done = CliRunner().invoke(app, ["pipeline", "generate", str(tmp_path / "w"), *options])
    assert done.exit_code == (1 if "no such file" in said else 2)
    assert said in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "w").exists()
