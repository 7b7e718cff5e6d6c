"""Where commands write, and what they look at before Spark starts."""

from __future__ import annotations

from pathlib import Path

import pytest
from traces import START_US, row, write_trace
from typer.testing import CliRunner

from wheeld.cli.app import app
from wheeld_pipeline import PipelineError, session
from wheeld_pipeline.files import on_disk, writable


@pytest.fixture
def no_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise AssertionError("Spark was to start")

    monkeypatch.setattr(session, "connect", refuse)


def last_line(*arguments: str, code: int = 1) -> str:
    done = CliRunner().invoke(app, ["pipeline", *arguments])
    assert (done.exit_code, done.stdout) == (code, ""), done.output
    return done.stderr.strip().splitlines()[-1]


@pytest.fixture
def trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    return str(write_trace(tmp_path / "trace", [row(START_US, "scheduled", pending=1)]))


@pytest.mark.parametrize("scheme", ["s3a", "hdfs", "gs", "S3"])
def test_a_url_as_output_is_refused_by_name(no_spark: None, trace: str, scheme: str) -> None:
    url = f"{scheme}://bucket/x"
    said = {
        last_line("report", trace, "--out", url, code=2),
        last_line("report", trace, "--out", url, "--engine", "spark", code=2),
        last_line("compare", trace, trace, "--out", url, code=2),
    }
    assert len(said) == 1
    assert f"--out {url}: got a URL of {scheme}, expected a path" in said.pop()
    assert f"MODEL {url}" in last_line("fit", trace, url, code=2)
    assert f"--model {url}" in last_line("generate", "w", "--model", url, code=2)
    assert not any(Path.cwd().glob(f"{scheme}*"))


def test_a_file_url_is_a_path(no_spark: None, trace: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(
        app, ["pipeline", "report", trace, "--out", (tmp_path / "r").as_uri()]
    )
    assert done.exit_code == 0, done.output
    assert (tmp_path / "r" / "report.html").exists()
    assert on_disk("--out", "file:///a/b") == Path("/a/b")


@pytest.mark.parametrize("engine", ["auto", "spark"])
@pytest.mark.parametrize("kind", ["none", "empty", "no rows", "foreign"])
def test_an_empty_trace_is_noticed_before_spark_starts(
    no_spark: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, engine: str
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "trace"
    said = {"none": "there is no trace", "empty": "is empty", "no rows": "has no events"}
    if kind == "empty":
        folder.mkdir()
    elif kind == "no rows":
        write_trace(folder, [row(START_US, "scheduled")])
        (file,) = folder.rglob("*.parquet")
        import pyarrow.parquet as pq

        pq.write_table(pq.ParquetFile(file).read().slice(0, 0), file)
    elif kind == "foreign":
        (folder / "events").mkdir(parents=True)
        (folder / "events" / "x.parquet").write_bytes(b"something else, long enough")
    expected = said.get(kind, "not a Parquet file")
    assert expected in last_line("report", str(folder), "--engine", engine)
    assert expected in last_line("fit", str(folder), "model.json")


def test_options_of_spark_mean_spark(
    trace: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked = []

    def note(app: str, options: session.SparkOptions, *_: object) -> None:
        asked.append(options)
        raise PipelineError("no Spark today")

    monkeypatch.setattr(session, "connect", note)
    file = tmp_path / "spark.conf"
    file.write_text("# ours\nspark.a 1\nspark.b=2 3\n\n")
    given = ["--conf", "spark.b=x=y", "--packages", "g:a:1", "--jars", "/a.jar"]
    given += ["--properties-file", str(file)]
    assert "no Spark today" in last_line("report", trace, *given)
    assert asked[0].settings() == {
        "spark.a": "1", "spark.b": "x=y", "spark.jars.packages": "g:a:1", "spark.jars": "/a.jar",
    }  # fmt: skip
    assert "expected only one" in last_line("report", trace, "--engine", "local", *given, code=2)
    assert "expected KEY=VALUE" in last_line("report", trace, "--conf", "spark.b", code=2)
    file.write_text("spark.a\n")
    with pytest.raises(PipelineError, match=r"line 1: got 'spark.a'"):
        session.SparkOptions(properties_file=file).settings()


@pytest.mark.parametrize("option", ["report", "compare", "fit"])
def test_a_place_that_cannot_be_written_is_seen_before_the_work(
    option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    for place, why in (
        (tmp_path / "file" / "below", "file is a file: expected a directory"),
        (Path("/proc/below"), "nothing can be written in /proc: No such file or directory"),
    ):
        given = {
            "report": ["report", "none", "--out", str(place)],
            "compare": ["compare", "none", "none", "--out", str(place)],
            "fit": ["fit", "none", str(place / "model.json")],
        }[option]
        said = last_line(*given)
        assert why in said
        assert str(place) in said


def test_what_is_asked_about_a_place_leaves_nothing_there(tmp_path: Path) -> None:
    assert writable("--out", tmp_path / "a" / "b") == tmp_path / "a" / "b"
    assert not list(tmp_path.iterdir())
