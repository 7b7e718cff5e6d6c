"""Shards and their daemons, name cards, options: what is refused before anything runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

from wheeld.cli.app import app
from wheeld_pipeline.errors import PipelineError
from wheeld_pipeline.overflow.shards import Daemon, ShardMap

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_a_map_of_shards(tmp_path: Path) -> None:
    path = tmp_path / "shards.toml"
    path.write_text(
        'shards = 4\n[daemons.east]\nshards = [0, 2]\nruntime_dir = "/run/east"\nhost = "n1"\n'
        '[daemons.west]\nname = "default"\n'
    )
    spread = ShardMap.read(path)
    east, west = Daemon("east", "/run/east", "n1"), Daemon("default")
    assert spread.daemons == (east, west, east, west)
    other = tmp_path / "shards.json"
    other.write_text(json.dumps({"shards": 2, "daemons": {"a": {"shards": [1, 0]}}}))
    assert ShardMap.read(other).daemons == (Daemon("a"), Daemon("a"))


def test_tasks_look_where_the_driver_does() -> None:
    spread = ShardMap((Daemon("a"), Daemon("b", "/run/b")))
    here = {"WHEELD_RUNTIME_DIR": "/run/here"}
    assert [d.runtime_dir for d in spread.seen_from(here).daemons] == ["/run/here", "/run/b"]
    assert spread.seen_from({}) == spread


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("shards = ", "Invalid value"),
        ("shards = 0\n[daemons.a]", "shards = 0: expected a number from 1"),
        ("shards = true\n[daemons.a]", "shards = True: expected a number"),
        ("shards = 2", "daemons.NAME"),
        ("shards = 2\n[daemons.a]\nshards = [0]", "shards [1] have no daemon"),
        ("shards = 2\n[daemons.a]\nshards = [2]", "daemons.a.shards = [2]: expected a list"),
        (
            "shards = 1\n[daemons.a]\nshards = [0]\n[daemons.b]\nshards = [0]",
            "has a daemon already",
        ),
        ("shards = 1\n[daemons.a]\n[daemons.b]", "only one daemon may leave out"),
        ("shards = 1\n[daemons.a]\nport = 1", "daemons.a.port: expected one of name"),
        ("shards = 1\n[daemons.a]\nhost = 1", "daemons.a.host = 1: expected text"),
        ("shards = 1\n[daemons]\na = 1", "daemons.a: expected a table"),
    ],
)
def test_a_wrong_map_is_named(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "shards.toml"
    path.write_text(text)
    with pytest.raises(PipelineError) as raised:
        ShardMap.read(path)
    assert str(path) in str(raised.value)
    assert said in str(raised.value)


def test_a_map_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(PipelineError, match="No such file"):
        ShardMap.read(tmp_path / "none.toml")


def run(tmp_path: Path, *options: str, code: int = 1) -> str:
    (tmp_path / "commands").mkdir(exist_ok=True)
    paths = [f"--{name}={tmp_path / name}" for name in ("commands", "sink", "checkpoint")]
    done = CliRunner().invoke(app, ["pipeline", "overflow", "--once", *paths, *options])
    assert done.exit_code == code, done.output
    return done.output


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--horizon", "soon"], "--horizon 'soon': expected a duration"),
        (["--grace", "5us"], "--grace '5us': expected a duration"),
        (["--shards", "0"], "0 shards: expected 1 to"),
        (["--option", "header"], "--option 'header': expected KEY=VALUE"),
    ],
)
def test_wrong_options(tmp_path: Path, options: list[str], said: str) -> None:
    assert said in run(tmp_path, *options, code=2)


def test_what_is_not_ours_is_left_alone(spark: SparkSession, tmp_path: Path) -> None:
    assert "expected one of json, parquet, kafka" in run(tmp_path, "--format", "csv", code=2)
    card = tmp_path / "checkpoint" / "_overflow.json"
    assert json.loads(card.read_text())["shards"] == 8
    assert "has 8 shards, got 4" in run(tmp_path, "--shards", "4")

    card.write_text("{}")
    assert "expected what an overflow of this version writes" in run(tmp_path)
    card.write_text(json.dumps({"format": 1, "id": "another", "shards": 8}))
    assert "timers are in Spark's state store" in run(tmp_path)
    card.write_text(json.dumps({"format": 3, "id": "another", "shards": 8}))
    assert "format 3, expected 2" in run(tmp_path)
    card.write_text(json.dumps({"format": 2, "id": "another", "shards": 8}))
    (tmp_path / "sink" / "expired").mkdir()
    assert "its results would be replaced" in run(tmp_path)
    card.unlink()
    (tmp_path / "checkpoint" / "offsets").mkdir()
    assert "is the checkpoint of another job" in run(tmp_path)

    other = tmp_path / "other"
    (other / "sink").mkdir(parents=True)
    (other / "sink" / "mine.txt").write_text("precious")
    assert "is not empty" in run(other)
    (other / "sink" / "mine.txt").unlink()
    assert "does not exist" in run(other, "--commands", str(tmp_path / "nowhere"))
    assert "Kafka" in run(other, "--format", "kafka")
