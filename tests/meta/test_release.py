"""What a stranger installs: one form on every page, one version, a workflow that publishes."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

import release

ROOT = Path(__file__).parents[2]
PLACES = [
    *ROOT.glob("*.md"),
    *(ROOT / "docs").rglob("*.md"),
    *(ROOT / "systemd").glob("*.md"),
    *(path for home in ("wheeld", "client", "pipeline") for path in (ROOT / home).rglob("*.py")),
]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
COMMAND = re.compile(r"""pip install ((?:--?[\w-]+ )*)["']?([^\s"'`]+)["']?""")


def test_one_form_of_installing() -> None:
    """`pip install '.[extra]'` works from a checkout; no index has the package yet."""
    seen = 0
    for place in PLACES:
        for what in (match[2] for match in COMMAND.finditer(place.read_text())):
            if match := re.fullmatch(r"\.\[([\w,-]+)\]", what):
                seen += 1
                for extra in match[1].split(","):
                    assert extra in EXTRAS, f"{place}: no extra {extra!r}"
            assert not what.startswith("wheeld"), f"{place}: {what}: expected '.[extra]'"
    assert seen > 10


def test_each_place_has_the_same_version() -> None:
    found = release.versions()
    assert len(set(found.values())) == 1, found


def test_a_tag_of_another_version_is_refused() -> None:
    version = release.versions()["pyproject.toml"]
    assert [fault for fault in release.faults(f"v{version}") if "says" in fault] == []
    assert len([fault for fault in release.faults("v99.0.0") if "says" in fault]) == 4


def test_the_workflow_publishes_without_a_token() -> None:
    yaml = pytest.importorskip("yaml")
    flow = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())
    assert flow["permissions"] == {"contents": "read"}
    publish = flow["jobs"]["publish"]
    assert publish["permissions"]["id-token"] == "write"
    assert set(publish["needs"]) == set(flow["jobs"]) - {"publish"}
    assert "secrets" not in (ROOT / ".github/workflows/release.yml").read_text()
