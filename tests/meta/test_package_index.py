"""The README on a package index: links of the README lead somewhere there."""

from __future__ import annotations

import os
import re
import subprocess
import sys

from programs import ROOT

PAGES = "https://pages.example/wheeld/v1"
RELATIVE = re.compile(r"\]\((?!https?:|#)([^)]*)\)")


def described(**environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "setup.py", "--long-description"],
        cwd=ROOT,
        env={key: value for key, value in os.environ.items() if key != "WHEELD_PAGES"}
        | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def test_links_are_absolute_where_pages_are_known() -> None:
    links = RELATIVE.findall((ROOT / "README.md").read_text())
    assert links
    text = described(WHEELD_PAGES=f"{PAGES}/")
    assert not RELATIVE.findall(text)
    for link in links:
        assert f"]({PAGES}/{link})" in text


def test_no_address_is_invented() -> None:
    assert RELATIVE.findall(described()) == RELATIVE.findall((ROOT / "README.md").read_text())
