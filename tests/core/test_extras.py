"""A command that lacks an extra says what to type, by how this copy was installed."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from wheeld_core import extras

PIP = f"{sys.executable} -m pip install "


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of packages with wheeld in it, and the environment's."""
    (tmp_path / "wheeld-1.2.dist-info").mkdir()
    (tmp_path / "wheeld-1.2.dist-info/METADATA").write_text("Name: wheeld\nVersion: 1.2\n")
    (tmp_path / "wheeld-1.2.dist-info/INSTALLER").write_text("pip")
    (tmp_path / "w h.whl").touch()
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    return tmp_path


def came_from(site: Path, **origin: Any) -> None:
    (site / "wheeld-1.2.dist-info/direct_url.json").write_text(json.dumps(origin))


def test_from_an_index(site: Path) -> None:
    assert extras.command("jobs") == PIP + "'wheeld[jobs]'"


@pytest.mark.parametrize(
    ("mark", "line"),
    [
        ("nothing", PIP + "{}"),
        ("pipx_metadata.json", "pipx install --force {}"),
        ("uv-receipt.toml", "uv tool install {}"),
    ],
)
def test_from_a_file(site: Path, mark: str, line: str) -> None:
    url = f"file://{site}/w%20h.whl"
    (site / mark).touch()
    came_from(site, url=url, archive_info={})
    assert extras.command("jobs") == line.format(f"'wheeld[jobs] @ {url}'")
    (site / "w h.whl").unlink()
    assert extras.command("jobs") == "pip install '.[jobs]' in the checkout"


def test_once_by_uvx(site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "prefix", "/x/uv/archive-v0/x1")
    assert extras.command("jobs") == "uvx --from 'wheeld[jobs]' wheeld"


def test_from_a_repository(site: Path) -> None:
    came_from(site, url="https://h.example/w.git", vcs_info={"vcs": "git", "commit_id": "a1"})
    wanted = PIP + "'wheeld[jobs] @ git+https://h.example/w.git@a1'"
    assert extras.command("jobs") == wanted


def test_in_a_checkout(site: Path) -> None:
    came_from(site, url=f"file://{site}", dir_info={"editable": True})
    assert extras.command("jobs") == "pip install '.[jobs]' in the checkout"
    (site / "wheeld-1.2.dist-info/direct_url.json").unlink()
    (site / "wheeld-1.2.dist-info/INSTALLER").unlink()
    assert extras.command("jobs") == "pip install '.[jobs]' in the checkout"
