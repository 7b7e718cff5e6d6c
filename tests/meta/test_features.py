"""The table of features names tests and pages that exist."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_docs import ROOT, defined_names

PAGE = (ROOT / "docs" / "features.md").read_text()
ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in PAGE.splitlines()
    if line.startswith("| ") and not line.startswith(("| ---", "| what you may"))
]
PLACE = re.compile(r"`((?:tests|tools|\.github)/[\w./]+)(?:::(\w+))?`")


def _without_proof(rows: list[list[str]]) -> Iterator[str]:
    for what, says, shown in rows:
        places = PLACE.findall(shown)
        for file, name in places:
            if not (ROOT / file).is_file():
                yield f"{what}: {file} is not there"
            elif name and name not in defined_names(ROOT / file):
                yield f"{what}: {file} has no {name}"
        if not places and "](" not in shown:
            yield f"{what}: {says}, and nothing shows it"


def test_each_line_names_what_shows_it() -> None:
    assert len(ROWS) > 50
    assert list(_without_proof(ROWS)) == []


@pytest.mark.parametrize(
    "shown", ["`tests/meta/test_nothing.py`", "`tests/meta/test_docs.py::test_nothing`", "I say so"]
)
def test_a_line_without_proof_is_noticed(shown: str) -> None:
    assert len(list(_without_proof([["it flies", "yes", shown]]))) == 1


def test_what_it_names_are_tests() -> None:
    for file, name in PLACE.findall(PAGE):
        assert not name or name.startswith("test_")
        assert not file.startswith("tests/") or Path(file).name.startswith("test_")
