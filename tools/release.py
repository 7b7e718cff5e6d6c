"""Is a tag that of this version? .github/workflows/release.yml runs `tools/release.py vX.Y.Z`.

The version stands in pyproject.toml, in wheeld.__version__ and in CITATION.cff, so that a source
archive without git builds as a checkout does. CHANGELOG.md has a section for it.
"""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def versions() -> dict[str, str]:
    """By the file that says it; empty: it says none."""

    def found(name: str, pattern: str) -> str:
        match = re.search(pattern, (ROOT / name).read_text(), re.M)
        return match[1] if match else ""

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return {
        "pyproject.toml": project["version"],
        "wheeld/__init__.py": found("wheeld/__init__.py", r'^__version__ = "([^"]+)"'),
        "CITATION.cff": found("CITATION.cff", r'^version: "?([^"\n]+)'),
        "CHANGELOG.md": found("CHANGELOG.md", r"^## (?:Unreleased: )?([0-9][^ \n]*)"),
    }


def faults(tag: str) -> list[str]:
    found = [f"{name} says {said!r}" for name, said in versions().items() if f"v{said}" != tag]
    if "## Unreleased" in (ROOT / "CHANGELOG.md").read_text():
        found.append("CHANGELOG.md calls a version unreleased: give it its date")
    return found


if __name__ == "__main__":
    wrong = faults(sys.argv[1])
    sys.exit(f"tag {sys.argv[1]}: {'; '.join(wrong)}" if wrong else 0)
