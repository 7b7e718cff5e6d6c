"""Installation by a stranger: one form on every page, one version, a workflow that publishes."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import dependency_bounds
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
    version = release.versions()["CITATION.cff"]
    assert [fault for fault in release.faults(f"v{version}") if "says" in fault] == []
    assert len([fault for fault in release.faults("v99.0.0") if "says" in fault]) == 2


def version_of(folder: Path) -> str:
    run = [sys.executable, "-W", "ignore", "setup.py", "-q", "--version"]
    done = subprocess.run(run, cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.split()[-1]


def test_the_tag_is_the_version(tmp_path: Path) -> None:
    """And without a tag, without git, in an unpacked sdist there is one, too."""
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    assert version_of(tmp_path) == "0.1.0.dev0"
    (tmp_path / "PKG-INFO").write_text("Metadata-Version: 2.4\nName: wheeld\nVersion: 7.6.5\n")
    assert version_of(tmp_path) == "7.6.5"
    (tmp_path / "PKG-INFO").unlink()
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@example.org", "-C", str(tmp_path)]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"]):
        subprocess.run([*git, *words], check=True)
    assert re.fullmatch(r"0\.1\.0?\.?dev1\+g[0-9a-f]+", version_of(tmp_path))
    subprocess.run([*git, "tag", "v9.8.7"], check=True)
    assert version_of(tmp_path) == "9.8.7"


def test_actions_are_pinned() -> None:
    for flow in (ROOT / ".github/workflows").glob("*.yml"):
        for line in re.findall(r"uses: (.*)", flow.read_text()):
            assert re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v[\d.]+(: .*)?", line), f"{flow}: {line}"


def test_the_lock_has_what_is_wanted() -> None:
    """tools/locked.txt is what `make lock` last found; a bound that has moved needs it again."""
    lines = (ROOT / "tools/locked.txt").read_text().splitlines()
    locked = dict(line.split("==") for line in lines if not line.startswith("#"))
    locked = {canonicalize_name(name): version for name, version in locked.items()}
    groups = ("test", "check", "docs", "bench")
    extras = ("plots", "connect", "kafka", "parquet", "jobs")
    for line in dependency_bounds.requirements((*extras, *groups)):
        wanted = Requirement(line)
        if wanted.marker is None or wanted.marker.evaluate():
            have = locked[canonicalize_name(wanted.name)]
            assert wanted.specifier.contains(have), f"{line}: {have} is locked; run `make lock`"


def test_the_workflow_publishes_without_a_token() -> None:
    yaml = pytest.importorskip("yaml")
    flow = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())
    assert flow["permissions"] == {"contents": "read"}
    publish = flow["jobs"]["publish"]
    assert publish["permissions"]["id-token"] == "write"
    assert set(publish["needs"]) == set(flow["jobs"]) - {"publish"}
    assert "secrets" not in (ROOT / ".github/workflows/release.yml").read_text()
