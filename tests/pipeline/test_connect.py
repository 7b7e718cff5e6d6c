"""`--remote`: report and generate through a Spark Connect server."""

from __future__ import annotations

import importlib.util
import json
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pyarrow.dataset as ds
import pyspark
import pytest
from traces import SECOND_US, START_US, counters, row, write_trace

from browsers import missing
from daemons import until
from programs import of_checkout
from wheeld_pipeline import PipelineError, session

SERVER = "org.apache.spark.sql.connect.service.SparkConnectServer"


@pytest.fixture(scope="module")
def remote(java: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if importlib.util.find_spec("grpc") is None:
        missing("the client of Spark Connect is not installed: pip install '.[connect]'")
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    settings = {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
        "spark.driver.host": "127.0.0.1",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
    }
    conf = [part for key, value in settings.items() for part in ("--conf", f"{key}={value}")]
    command = [str(submit), "--class", SERVER, "--master", "local[2]", *conf]
    environment = of_checkout() | {"PYSPARK_PYTHON": sys.executable}
    folder = tmp_path_factory.mktemp("server")
    with (folder / "log").open("w") as log:
        server = subprocess.Popen(
            command, env=environment, cwd=folder, stdout=log, stderr=log, stdin=subprocess.DEVNULL
        )
    try:
        until(lambda: server.poll() is not None or listens(port), "a Spark Connect server", 120)
        assert server.poll() is None, (folder / "log").read_text()[-2000:]
        yield f"sc://127.0.0.1:{port}"
    finally:
        for process in [*psutil.Process(server.pid).children(recursive=True), server]:
            process.kill()
        server.wait()


def listens(port: int) -> bool:
    with socket.socket() as mine:
        return mine.connect_ex(("127.0.0.1", port)) == 0


def run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-m", "wheeld", "pipeline", *arguments]
    environment = of_checkout() | {"JAVA_HOME": "/nowhere"}
    return subprocess.run(command, env=environment, cwd=cwd, capture_output=True, text=True)


def test_generate_and_report_through_a_server(remote: str, tmp_path: Path) -> None:
    made = run("generate", "workload", "--rows", "1000", "--remote", remote, cwd=tmp_path)
    assert made.returncode == 0, made.stderr
    assert ds.dataset(tmp_path / "workload").count_rows() == 1000
    again = run("generate", "workload", "--rows", "1000", "--remote", remote, cwd=tmp_path)
    assert "or --overwrite" in again.stderr
    at = [START_US + i * SECOND_US for i in range(5)]
    events = [row(each, "scheduled", deadline=each + 5000, pending=1) for each in at]
    events += [row(each + 9000, "expired", scheduled=each, deadline=each + 5000) for each in at]
    trace = write_trace(tmp_path / "trace", events, [counters(each, wakes=1) for each in at])
    reports = []
    for name, more in (("one", ["--remote", remote]), ("two", ["--engine", "local"])):
        out = tmp_path / name
        done = run("report", str(trace), "--out", str(out), *more, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        assert (out / "tables" / "minutes.parquet").exists()
        reports.append(json.loads((out / "report.json").read_text()))
    assert reports[0] == reports[1]


def test_no_server_and_no_client(monkeypatch: pytest.MonkeyPatch) -> None:
    options = session.SparkOptions(remote="sc://127.0.0.1:1/;use_ssl=false")
    monkeypatch.setitem(sys.modules, "pyspark.sql.connect.session", None)
    with pytest.raises(PipelineError, match=r"pip install '.\[connect\]'"):
        session.connect(options=options)
    with pytest.raises(PipelineError, match="a Spark Connect server has its own"):
        session.SparkOptions(remote="sc://a", jars="x.jar")
