"""Runs another project's own tests, from the source distribution of the installed version."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from importlib import metadata
from pathlib import Path
from xml.etree import ElementTree

import pytest

SUPPORT = Path(__file__).parent
FETCHED = Path(sys.prefix, "sdists")
"""Each is fetched once for an environment."""


def source_of(project: str) -> Path:
    """The unpacked source distribution, which pip fetches if it is not there."""
    name = f"{project}-{metadata.version(project)}"
    place = FETCHED / name
    if place.exists():
        return place
    FETCHED.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=FETCHED) as fresh:
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-binary", ":all:"]
        pip += ["--no-deps", "--dest", fresh, f"{project}=={metadata.version(project)}"]
        done = subprocess.run(pip, capture_output=True, text=True)
        archives = list(Path(fresh).glob("*.tar.gz"))
        if done.returncode or not archives:
            why = (done.stderr.strip().splitlines() or ["no .tar.gz came"])[-1]
            pytest.skip(f"pip cannot fetch the source of {name}: {why}")
        with tarfile.open(archives[0]) as archive:
            archive.extractall(fresh, filter="data")
        (top,) = (path for path in Path(fresh).iterdir() if path.is_dir())
        shutil.move(top, place)
    return place


def _environment() -> dict[str, str]:
    paths = [str(SUPPORT), ".", *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def run_suite(project: str, plugin: str, *arguments: str) -> dict[str, str]:
    """The outcome of each of its tests: "passed", or the message of its failure."""
    with tempfile.NamedTemporaryFile(suffix=".xml") as report:
        command = [sys.executable, "-m", "pytest", "-p", plugin, "-c", os.devnull, "--rootdir=."]
        command += ["-q", "-W", "ignore", "-p", "no:cacheprovider", f"--junitxml={report.name}"]
        command += arguments
        done = subprocess.run(
            command,
            cwd=source_of(project),
            env={**_environment(), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
            capture_output=True,
            text=True,
        )
        assert done.returncode in (0, 1), f"{done.stdout}\n{done.stderr}"
        cases = ElementTree.parse(report.name).iter("testcase")
        return {f"{case.get('classname')}::{case.get('name')}": _outcome(case) for case in cases}


def _outcome(case: ElementTree.Element) -> str:
    for kind in ("failure", "error", "skipped"):
        if (found := case.find(kind)) is not None:
            return f"{kind}: {found.get('message')}"
    return "passed"


def run_django(*labels: str) -> tuple[int, dict[str, str]]:
    """Django's own tests, with the settings of foreign_django.py: how many ran, and what became of
    those that did not pass."""
    with tempfile.NamedTemporaryFile(suffix=".json") as report:
        command = [sys.executable, "runtests.py", "--settings=foreign_django", "--parallel=1"]
        done = subprocess.run(
            [*command, *labels],
            cwd=source_of("Django") / "tests",
            env={**_environment(), "FOREIGN_REPORT": report.name},
            capture_output=True,
            text=True,
        )
        assert Path(report.name).stat().st_size, f"{done.stdout}\n{done.stderr}"
        count, bad = json.load(report)
        return count, bad
