"""`wheeld demo` ends with the pipeline's report of what it just did; without Spark it says so."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from programs import descendants, start_program

SMALL = ("demo", "--requests", "5000", "--rate", "20000", "--case", "low", "--json")
AS_ALWAYS = ("-m", "wheeld")
WITHOUT_SPARK = (
    "-c",
    "import sys; sys.modules['pyspark'] = None; from wheeld.cli.app import app; app()",
)


def start(
    environment: dict[str, str], cwd: Path, program: tuple[str, ...], *options: str
) -> subprocess.Popen[str]:
    return start_program(environment, *program, *SMALL, *options, cwd=cwd)


def test_the_demo_ends_with_the_report_of_its_run(
    java: None, private: dict[str, str], tmp_path: Path
) -> None:
    demo = start(private, tmp_path, AS_ALWAYS)
    out, err = demo.communicate()
    assert demo.returncode == 0, err
    assert err.splitlines()[-1] == "wheeld demo: report in wheeld-demo-report/report.html"
    (case,) = json.loads(out)["cases"]
    facts = json.loads((tmp_path / "wheeld-demo-report" / "report.json").read_text())["facts"]
    assert facts["events"]["scheduled"] == case["scheduled"] == 5000
    assert facts["events"]["cancelled"] == case["completed"]
    assert facts["events"]["expired"] == case["timed_out"]
    assert facts["events"]["lost"] == 0
    assert facts["complete"] is True
    page = (tmp_path / "wheeld-demo-report" / "report.html").read_text()
    assert "<svg" in page


@pytest.mark.parametrize(
    ("program", "changed", "said"),
    [
        (WITHOUT_SPARK, {}, "no report: it needs pyspark: pip install 'wheeld[spark]'"),
        (AS_ALWAYS, {"JAVA_HOME": "/nowhere"}, "no report: Spark needs Java 17 or newer and no"),
    ],
)
def test_without_spark_or_java_the_demo_says_so_and_succeeds(
    program: tuple[str, ...],
    changed: dict[str, str],
    said: str,
    private: dict[str, str],
    tmp_path: Path,
) -> None:
    demo = start(private | changed, tmp_path, program)
    out, err = demo.communicate()
    assert demo.returncode == 0, err
    assert json.loads(out)["cases"][0]["exactly_once"] == 5000
    lines = [line for line in err.splitlines() if "no report" in line]
    assert len(lines) == 1
    assert lines[0].startswith(f"wheeld demo: {said}")
    assert not (tmp_path / "wheeld-demo-report").exists()


@pytest.mark.parametrize("group", [True, False])
def test_a_demo_that_is_stopped_while_spark_reads_leaves_nothing(
    java: None, private: dict[str, str], tmp_path: Path, group: bool
) -> None:
    demo = start(private, tmp_path, AS_ALWAYS)
    give_up = time.monotonic() + 200
    while not (everyone := descendants(demo, "pipeline report")):
        assert demo.poll() is None
        assert time.monotonic() < give_up
        time.sleep(0.02)
    time.sleep(0.5)  # some way into the start of Spark; right wherever that is
    everyone += psutil.Process(demo.pid).children(recursive=True)
    (os.killpg if group else os.kill)(demo.pid, signal.SIGINT if group else signal.SIGTERM)
    _, err = demo.communicate()
    assert demo.returncode == 130
    assert err.splitlines()[-1] == "wheeld demo: interrupted"
    assert psutil.wait_procs(everyone, timeout=60)[1] == []
