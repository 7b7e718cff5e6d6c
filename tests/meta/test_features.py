"""The table of features names tests and pages that exist."""

from __future__ import annotations

import re
from collections.abc import Iterator

from test_docs import ROOT, defined_names

PAGE = (ROOT / "docs" / "features.md").read_text()
ROWS = [
    [cell.strip() for cell in line.strip("|").split(" | ")]
    for line in PAGE.splitlines()
    if line.startswith("| ") and not line.startswith(("| ---", "| what you may"))
]
PLACE = re.compile(r"`((?:tests|tools|\.github)/[\w./]+)(?:::(\w+))?`")


def _without_proof() -> Iterator[str]:
    for what, says, shown in ROWS:
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
    assert list(_without_proof()) == []
