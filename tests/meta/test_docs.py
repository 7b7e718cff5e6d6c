"""The documents' examples run, and their references resolve."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import wheeld
from wheeld_client import Timers

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCKS = [
    pytest.param(block, id=f"{path.name}-{number}")
    for path in DOCUMENTS
    for number, block in enumerate(re.findall(r"```python\n(.*?)```", path.read_text(), re.S))
]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory):
    base = tmp_path_factory.mktemp("run", numbered=True)
    with wheeld.embedded(name="default", runtime_dir=str(base), capacity=10_000):
        yield {**os.environ, "WHEELD_RUNTIME_DIR": str(base)}


def run(arguments: list[str], environment: dict[str, str]) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("block", BLOCKS)
def test_examples_in_documents_run(block: str, environment: dict[str, str]) -> None:
    assert run(["-c", block], environment)


LATE_AND_BACKWARDS = """
import numpy as np
from wheeld_client import Timers

armed, arm, receive = [], Timers.schedule, Timers.poll

def schedule(self, *args, **options):
    armed.append(arm(self, *args, **options))
    return armed[-1]

def poll(self, timeout=0.0):
    parts = []
    while armed:
        parts.append(receive(self, None))
        armed[:] = set(armed) - set(parts[-1]["timer_id"].tolist())
    return np.concatenate(parts)[::-1]

Timers.schedule, Timers.poll = schedule, poll
"""
"""Before an example: a poll finds all that was scheduled, in an order that it may have."""


@pytest.mark.parametrize("before", ["", LATE_AND_BACKWARDS], ids=["as it is", "late and backwards"])
def test_payload_of_the_page_on_timers(before: str, environment: dict[str, str]) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/timers.md").read_text(), re.S)
    (example,) = (block for block in blocks if "payload=" in block)
    assert run(["-c", before + example], environment).splitlines()[0] == "b'order 1'"


def test_examples_run(environment: dict[str, str]) -> None:
    worker = str(ROOT / "examples" / "web_worker.py")
    # by no name of the documents: what those leave behind for a successor is not this worker's
    assert "timed out" in run([worker, "example-1", "0.5"], environment)
    shared = run([str(ROOT / "examples" / "prefork_timeouts.py")], environment)
    assert re.findall(r"got (\d)", shared) == ["1", "2", "3"]


def defined_names(path: Path) -> set[str]:
    text = path.read_text()
    if path.suffix == ".py":
        names, owner = set(), ""
        for indent, kind, name in re.findall(r"^( *)(?:async )?(def|class) (\w+)", text, re.M):
            if not indent:
                owner = name if kind == "class" else ""
            names.add(f"{owner}.{name}" if indent else name)
        return names
    return set(re.findall(r"^(?:static )?(?:inline )?[\w \*]*?\b(\w+)\(", text, re.M))


@pytest.mark.parametrize(
    ("document", "least"), [("ARCHITECTURE.md", 20), ("docs/broker.md", 8), ("docs/origins.md", 25)]
)
def test_documents_name_real_places(document: str, least: int) -> None:
    places = re.findall(r"`([\w/]+\.\w+):([\w.]+)`", (ROOT / document).read_text())
    assert len(places) > least
    for file, name in places:
        assert name in defined_names(ROOT / file), f"{file} does not define {name}"


OF_USERS = {
    "gunicorn.conf.py",
    "wheeld.toml",
    "/etc/wheeld/NAME.toml",
    "docs/decisions/NNNN-title.md",
}
OF_USERS |= {"report.html", "report/report.html"}
"""Files that documents name and that are not in the repository."""


def test_files_that_documents_name_exist() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    known = listed.stdout.split()
    if not known:
        pytest.skip("no git checkout")
    for document in [*DOCUMENTS, *ROOT.glob("*.md")]:
        for named in re.findall(
            r"`([\w./-]+\.(?:py|c|h|md|sh|toml|pml|rs|html))(?::[\w.]+)?`", document.read_text()
        ):
            exists = any(f"/{path}".endswith(f"/{named}") for path in known)
            assert exists or named in OF_USERS, f"{document.name} names {named}"


def test_links_in_documents_lead_somewhere() -> None:
    for document in [*DOCUMENTS, *ROOT.glob("*.md"), ROOT / "systemd" / "README.md"]:
        for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text()):
            assert (document.parent / target).exists(), f"{document.name} links to {target}"


def test_the_page_on_timers_has_each_call() -> None:
    table = (ROOT / "docs" / "timers.md").read_text().partition("## The calls")[2]
    table = table.partition("\n## ")[0]
    lacking = [
        name for name in dir(Timers) if name[0] != "_" and not re.search(rf"\b{name}\b", table)
    ]
    assert lacking == []


def test_excerpts_of_the_broker_are_its_code() -> None:
    code = {
        line.strip()
        for path in (ROOT / "examples" / "broker").rglob("*.py")
        for line in path.read_text().splitlines()
    }
    page = (ROOT / "docs" / "broker.md").read_text()
    shown = [
        line.strip()
        for block in re.findall(r"```text\n(.*?)```", page, re.S)
        for line in block.splitlines()
    ]
    assert shown
    assert [line for line in shown if line not in code] == []
