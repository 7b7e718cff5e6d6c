"""Checks the version bounds in pyproject.toml: runs tests with the lowest and with the highest
version of each dependency.

    python tools/dependency_bounds.py [lowest] [highest] [--extra NAME]... [--keep DIRECTORY]

For each of the two, a fresh virtual environment gets exactly the lowest versions that
pyproject.toml allows, or the highest, and tests that use them run in it, from this checkout (which
must be built for this Python). It takes a few minutes, and the network.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import tomllib
import venv
from collections.abc import Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
TESTS = {
    "": [
        "daemon/test_commands.py",
        "client/test_client_daemon.py",
        "snapshot/test_snapshot_file.py",
        "fsck/test_fsck.py",
    ],
    "plots": ["demo/test_demo.py"],
    "metrics": ["daemon/test_metrics.py", "daemon/test_metrics_served.py"],
    "otel": ["daemon/test_metrics_otel.py"],
    "parquet": ["recorder/test_recorder_files.py"],
    "spark": ["pipeline/test_generate.py", "pipeline/test_report.py", "pipeline/test_fit.py"],
    "jobs": ["jobs/test_jobs.py"],
    "kafka": ["pipeline/test_kafka.py", "pipeline/test_datasource.py"],
}
"""The tests to run for the dependencies, and for those of each extra."""
RUNNER = ["pytest>=8,<9", "pytest-timeout", "pytest-xdist", "hypothesis"]
_REQUIREMENT = re.compile(r"([\w-]+)\s*(.*)")


def requirements(names: Iterable[str] = ()) -> list[str]:
    """Of the package, its daemon, and these extras and dependency groups."""
    content = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project, groups = content["project"], content["dependency-groups"]
    found: list[Any] = list(project["dependencies"])
    for name in ("daemon", *names):
        found += {**project["optional-dependencies"], **groups}[name]
    found += [
        each for one in found if isinstance(one, dict) for each in groups[one["include-group"]]
    ]
    return [each for each in found if isinstance(each, str) and not each.startswith("wheeld[")]


def lowest(requirement: str) -> str:
    requirement, _, marker = requirement.partition(";")
    match = _REQUIREMENT.fullmatch(requirement)
    bounds = match[2].split(",") if match else []
    least = [bound.removeprefix(">=") for bound in bounds if bound.startswith(">=")]
    if match is None or len(least) != 1:
        raise ValueError(f"{requirement!r} in pyproject.toml: expected NAME>=VERSION")
    return f"{match[1]}=={least[0]}" + (f";{marker}" if marker else "")


def all_lowest(requirements: Iterable[str]) -> list[str]:
    """The lowest versions that fulfil all of them: extras may want a newer one of the same."""
    found: dict[str, str] = {}
    for requirement in map(lowest, requirements):
        name = requirement.partition("==")[0]
        others = found.get(name, requirement)
        found[name] = max(others, requirement, key=_version)
    return list(found.values())


def _version(requirement: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", requirement.partition("==")[2])]


def run_tests(which: str, extras: list[str], place: Path) -> bool:
    wanted = requirements(extras)
    if which == "lowest":
        wanted = all_lowest(wanted)
    venv.create(place, with_pip=True)
    python = str(place / "bin" / "python")
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    install = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--upgrade"]
    subprocess.run([*install, *wanted, *RUNNER], env=environment, check=True)
    listed = subprocess.run(
        [python, "-m", "pip", "freeze"], env=environment, stdout=subprocess.PIPE, check=True
    )
    print(f"{which}: {' '.join(listed.stdout.decode().split())}", flush=True)
    paths = [str(ROOT / part) for part in (".", "core", "client", "pipeline", "testing")]
    environment["PYTHONPATH"] = os.pathsep.join(paths)
    files = [f"tests/{name}" for extra in ("", *extras) for name in TESTS[extra]]
    # of each other; and PySpark 4.0 leaves sockets to the garbage collector
    quiet = ("DeprecationWarning", "FutureWarning", "ResourceWarning")
    old = [option for name in quiet for option in ("-W", f"ignore::{name}")]
    command = [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *old, *files]
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(description="Test the bounds of the dependencies.")
    parser.add_argument("which", nargs="*", choices=["lowest", "highest"], help="default: both")
    parser.add_argument("--extra", action="append", choices=[name for name in TESTS if name])
    parser.add_argument("--keep", type=Path, help="leave the environments there")
    options = parser.parse_args()
    extras = options.extra or ["plots", "parquet"]
    with tempfile.TemporaryDirectory(prefix="wheeld-bounds-") as scratch:
        place = options.keep or Path(scratch)
        failed = [
            which
            for which in options.which or ["lowest", "highest"]
            if not run_tests(which, extras, place / which)
        ]
    print("the bounds hold" if not failed else f"tests fail with the {' and the '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
