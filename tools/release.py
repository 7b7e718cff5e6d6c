"""Is a tag that of this version? .github/workflows/release.yml runs `tools/release.py vX.Y.Z`.

The package's version comes from the tag (setuptools-scm). CITATION.cff says the same, and
CHANGELOG.md has a section for it.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def versions() -> dict[str, str]:
    """By the file that says it; empty: it says none."""

    def found(name: str, pattern: str) -> str:
        match = re.search(pattern, (ROOT / name).read_text(), re.M)
        return match[1] if match else ""

    return {
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
