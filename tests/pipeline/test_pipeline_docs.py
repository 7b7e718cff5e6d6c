"""Every command and every Spark example on the pipeline's pages is run, in the order shown."""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from typer.testing import CliRunner

import wheeld
from wheeld.cli import app as cli
from wheeld_client import DaemonNotRunning, connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parent.parent.parent
DOCS = ROOT / "docs"
COMMAND = re.compile(r"^ {4}(?:wheeld|python examples/)(?! *\[).*$", re.M)
EXAMPLES = [
    pytest.param(block, id=f"{path.stem}-{number}")
    for path in sorted(DOCS.glob("*.md"))
    for number, block in enumerate(re.findall(r"```python spark\n(.*?)```", path.read_text(), re.S))
]
OF_A_TRACE = re.findall(r"```python trace\n(.*?)```", (DOCS / "trace.md").read_text(), re.S)
START_SECONDS = 60.0


class Shell:
    """Runs the commands of a page: those with Spark in the session that is there."""

    def __init__(self) -> None:
        self._daemons: list[subprocess.Popen[bytes]] = []

    def run(self, line: str) -> None:
        words = shlex.split(line, comments=True)
        if words[-1] == "&":
            self._start(words[:-1])
        elif words[0] == "python":
            subprocess.run([sys.executable, str(ROOT / words[1]), *words[2:]], check=True)
        else:
            done = CliRunner().invoke(cli.app, words[1:])
            assert done.exit_code == 0, f"{line}: {done.output} {done.exception!r}"

    def _start(self, words: list[str]) -> None:
        daemon = subprocess.Popen([sys.executable, "-m", *words])
        self._daemons.append(daemon)
        name = words[words.index("--name") + 1] if "--name" in words else "default"
        while True:
            assert daemon.poll() is None, f"{words} ended with {daemon.returncode}"
            try:
                connect(name).close()
                return
            except DaemonNotRunning:
                continue

    def close(self) -> None:
        for daemon in self._daemons:
            if daemon.poll() is None:
                daemon.send_signal(signal.SIGTERM)
            daemon.wait()


@pytest.fixture
def folder(
    spark: SparkSession, tmp_path: Path, runtime_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WHEELD_RUNTIME_DIR", str(runtime_dir))
    hadoop = spark._jvm.org.apache.hadoop.fs
    files = hadoop.FileSystem.get(spark._jsc.hadoopConfiguration())
    before = files.getWorkingDirectory()
    files.setWorkingDirectory(hadoop.Path(str(tmp_path)))
    yield tmp_path
    files.setWorkingDirectory(before)


@pytest.fixture
def shell(folder: Path) -> Iterator[Shell]:
    made = Shell()
    yield made
    made.close()


def test_the_path_from_trace_to_answer(shell: Shell) -> None:
    lines = COMMAND.findall((DOCS / "pipeline.md").read_text())
    assert len(lines) >= 8
    for line in lines:
        shell.run(line.strip())
    assert Path("report/report.html").stat().st_size > 10_000


@pytest.mark.parametrize("block", OF_A_TRACE, ids=range(len(OF_A_TRACE)))
def test_examples_of_a_trace_run(block: str, tmp_path: Path) -> None:
    for library in re.findall(r"^import (\w+)", block, re.M):
        pytest.importorskip(library)
    record(tmp_path / "trace")
    subprocess.run([sys.executable, "-c", block], cwd=tmp_path, check=True)


def record(trace: Path) -> None:
    with wheeld.embedded(trace=str(trace)) as daemon, connect(daemon) as timers:
        timers.schedule_many([0.01, 30.0], cookies=[1, 2])
        assert len(timers.poll(timeout=30.0)) == 1


@pytest.mark.parametrize("block", EXAMPLES)
def test_spark_examples_run(
    block: str, spark: SparkSession, folder: Path, runtime_dir: Path
) -> None:
    record(folder / "trace")
    # Spark's processes started before this test chose where its daemon is.
    there = f'.format("wheeld").option("runtime_dir", {str(runtime_dir)!r})'
    block = block.replace('.format("wheeld")', there)
    with wheeld.embedded(name="default", runtime_dir=str(runtime_dir), payload_bytes=64):
        exec(compile(block, "example", "exec"), {"spark": spark})
