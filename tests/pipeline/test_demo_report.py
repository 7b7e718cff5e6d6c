"""`wheeld demo` ends with the pipeline's report of what it just did, without Java or Spark."""

import contextlib
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
WITHOUT_PANDAS = (
    "-c",
    "import sys; sys.modules['pandas'] = None; from wheeld.cli.app import app; app()",
)


def start(
    environment: dict[str, str], cwd: Path, program: tuple[str, ...], *options: str
) -> subprocess.Popen[str]:
    return start_program(environment, *program, *SMALL, *options, cwd=cwd)


def test_the_demo_ends_with_the_report_of_its_run(private: dict[str, str], tmp_path: Path) -> None:
    demo = start(private | {"JAVA_HOME": "/nowhere"}, tmp_path, AS_ALWAYS)
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


def test_a_saturated_run_says_so_on_the_page(private: dict[str, str], tmp_path: Path) -> None:
    options = ("--workers", "1", "--rate", "1000000000")
    demo = start(private, tmp_path, AS_ALWAYS, *options)
    out, err = demo.communicate()
    assert demo.returncode == 0, err
    assert json.loads(out)["cases"][0]["saturated"] is True
    page = (tmp_path / "wheeld-demo-report" / "report.html").read_text()
    assert "was SATURATED: asked for 1," in page


def test_without_what_it_needs_the_demo_says_so_and_succeeds(
    private: dict[str, str], tmp_path: Path
) -> None:
    said = "no report: it needs pandas: pip install '.[report]'"
    demo = start(private, tmp_path, WITHOUT_PANDAS)
    out, err = demo.communicate()
    assert demo.returncode == 0, err
    assert json.loads(out)["cases"][0]["exactly_once"] == 5000
    lines = [line for line in err.splitlines() if "no report" in line]
    assert len(lines) == 1
    assert lines[0].startswith(f"wheeld demo: {said}")
    assert not (tmp_path / "wheeld-demo-report").exists()


def _readers(demo: subprocess.Popen[str]) -> list[psutil.Process]:
    while demo.poll() is None:
        everyone = descendants(demo, "pipeline report")
        for process in everyone:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.suspend()
        if any(process.status() == psutil.STATUS_STOPPED for process in everyone):
            return everyone
        time.sleep(0.02)
    demo.communicate()
    return []


@pytest.mark.parametrize("group", [True, False])
def test_a_demo_that_is_stopped_while_it_reads_leaves_nothing(
    private: dict[str, str], tmp_path: Path, group: bool
) -> None:
    for _ in range(5):  # a small trace is read soon; on a busy machine before we have seen it
        demo = start(private, tmp_path, AS_ALWAYS)
        if everyone := _readers(demo):
            break
    readers = [process for process in everyone if process.is_running()]
    assert readers
    everyone += psutil.Process(demo.pid).children(recursive=True)
    (os.killpg if group else os.kill)(demo.pid, signal.SIGINT if group else signal.SIGTERM)
    for process in readers:
        process.resume()
    _, err = demo.communicate()
    assert demo.returncode == 130
    assert err.splitlines()[-1] == "wheeld demo: interrupted"
    assert psutil.wait_procs(everyone, timeout=60)[1] == []
