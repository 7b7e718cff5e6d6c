"""What pyproject.toml says of other packages: all that are imported, and from which version on."""

from __future__ import annotations

import ast
import re
import sys
from importlib import metadata
from pathlib import Path

import pytest

import dependency_bounds

ROOT = Path(__file__).resolve().parents[2]
OURS = {
    "wheeld": "",
    "wheeld_core": "core",
    "wheeld_client": "client",
    "wheeld_pipeline": "pipeline",
}
OF_THE_PROGRAM = {"gevent"}
"""What ours use only where the program that they run in has loaded it."""
EXTRAS = [name for name in dependency_bounds.TESTS if name]


def imported() -> set[str]:
    """Other people's packages that ours import, anywhere in the code."""
    found: set[str] = set()
    for package, folder in OURS.items():
        for file in (ROOT / folder / package).rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.Import):
                    found |= {alias.name.split(".")[0] for alias in node.names}
                elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                    found.add(node.module.split(".")[0])
    return found - set(sys.stdlib_module_names) - set(OURS)


def names(requirements: list[str]) -> set[str]:
    """The packages that are required."""
    return {re.split(r"[^\w-]", requirement)[0] for requirement in requirements}


def test_what_is_imported_is_required() -> None:
    """Nothing is used that only comes along with something else."""
    required = names(dependency_bounds.requirements(EXTRAS))
    assert imported() - OF_THE_PROGRAM <= required


def test_each_lowest_version_is_one_that_the_tool_tests() -> None:
    """It takes them from where users get them, and each requirement has one."""
    wanted = dependency_bounds.requirements(EXTRAS)
    lowest = [dependency_bounds.lowest(requirement) for requirement in wanted]
    assert names(lowest) == names(wanted)
    assert "typer==0.16" in lowest
    for files in dependency_bounds.TESTS.values():
        assert all((ROOT / "tests" / name).is_file() for name in files)


@pytest.mark.parametrize("requirement", ["numpy", "numpy<3", "numpy==2.1", "numpy>1", ""])
def test_a_requirement_without_a_lowest_version(requirement: str) -> None:
    """It is refused: nobody could test it."""
    with pytest.raises(ValueError, match="expected NAME>=VERSION"):
        dependency_bounds.lowest(requirement)


def test_extras_of_one_package_agree() -> None:
    """A package that stands in several extras has one lowest version."""
    lowest = {dependency_bounds.lowest(line) for line in dependency_bounds.requirements(EXTRAS)}
    assert len(lowest) == len({line.partition("==")[0] for line in lowest})


def test_what_is_installed_is_allowed() -> None:
    """The tests that run here run with versions that users may have."""
    for line in map(dependency_bounds.lowest, dependency_bounds.requirements()):
        name, _, version = line.partition("==")
        have, least = (
            [int(part) for part in re.findall(r"\d+", text)[:3]]
            for text in (metadata.version(name), version)
        )
        assert have >= least, line
