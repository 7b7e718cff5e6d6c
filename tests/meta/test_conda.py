"""The conda recipe asks for what pyproject.toml asks for; where its builder is, it is built."""

from __future__ import annotations

import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

import release
from programs import ROOT

RECIPE = ROOT / "tools/conda/recipe.yaml"
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
BUILDER = shutil.which("rattler-build")


@pytest.fixture(scope="module")
def recipe() -> Any:
    return pytest.importorskip("yaml").safe_load(RECIPE.read_text())


def wanted(lines: list[str]) -> set[tuple[str, str, bool]]:
    """Name, bounds, and whether only older Pythons need it."""
    found = [Requirement(line) for line in lines]
    return {(each.name, str(each.specifier), each.marker is not None) for each in found}


def listed(entries: list[Any]) -> set[tuple[str, str, bool]]:
    found = set()
    for entry in entries:
        older = isinstance(entry, dict)
        if older:
            assert entry["if"] == 'match(python, "<3.14")'
        name, _, bounds = (entry["then"] if older else entry).partition(" ")
        found.add((name, bounds, older))
    return found


def test_it_asks_for_the_same_packages(recipe: Any) -> None:
    python = {("python", PROJECT["requires-python"], False)}
    extra = PROJECT["optional-dependencies"]["daemon"]
    needs = recipe["requirements"]
    assert listed(needs["run"]) == wanted(PROJECT["dependencies"] + extra) | python
    build = wanted(PYPROJECT["build-system"]["requires"])
    assert listed(needs["host"]) == build | python | {("pip", "", False)}


def test_its_facts_are_the_projects(recipe: Any) -> None:
    version = PYPROJECT["tool"]["setuptools_scm"]["fallback_version"]
    assert f'default="{version}"' in recipe["context"]["version"]
    assert version.startswith(release.versions()["CITATION.cff"])
    about = recipe["about"]
    assert (about["summary"], about["license"]) == (PROJECT["description"], PROJECT["license"])
    assert [about["license_file"]] == PROJECT["license-files"]
    assert recipe["package"]["name"] == PROJECT["name"]
    assert (RECIPE.parent / recipe["source"]["path"]).resolve() == ROOT
    run = [line.split()[0] for each in recipe["tests"] for line in each.get("script", [])]
    assert run == [*PROJECT["scripts"]]


@pytest.mark.timeout(900)
@pytest.mark.skipif(BUILDER is None, reason="no rattler-build")
def test_built_and_tested(tmp_path: Path) -> None:
    """It installs the package in an environment, imports it and runs its command there."""
    line = [str(BUILDER), "build", "--recipe", str(RECIPE), "--output-dir", str(tmp_path)]
    done = subprocess.run([*line, "--channel", "conda-forge"], capture_output=True, text=True)
    if "error sending request" in done.stderr or "dns error" in done.stderr:
        pytest.skip("no channel can be reached")
    assert done.returncode == 0, done.stderr
    assert list(tmp_path.glob("linux-*/wheeld-*.conda"))
