"""pyproject.toml on other packages: all that are imported, and from which version on."""

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterable
from importlib import metadata
from itertools import chain
from pathlib import Path

import pytest

import dependency_bounds

ROOT = Path(__file__).resolve().parents[2]
OURS = {
    "wheeld": "",
    "wheeld_core": "core",
    "wheeld_client": "client",
    "wheeld_pipeline": "pipeline",
    "wheeld_testing": "testing",
}
OF_THE_PROGRAM = {
    "gevent",
    "pytest",
    "_pytest",
    "fastapi",
    "starlette",
    "flask",
    "django",
    "aiohttp",
}
OF_THE_PROGRAM |= {"anyio", "celery", "kombu", "limits"}
"""Ours use these only where the program that they run in has loaded them."""
NAMES = {
    "opentelemetry": {"opentelemetry_sdk", "opentelemetry_exporter_otlp_proto_http"},
    "redis": {"celery"},  # celery[redis]
}
"""Packages of a module that is called otherwise than they are."""
EXTRAS = [name for name in dependency_bounds.TESTS if name]
PARTS = {
    "core": (), "client": (), "testing": (), "wheeld": (),
    "client/wheeld_client/jobs/calendars.py": ("jobs",),
    "wheeld/metrics": ("metrics",), "wheeld/metrics/otel.py": ("otel",),
    "wheeld/recorder": ("parquet",),
    "wheeld/demo": ("parquet", "plots"),
    "pipeline": ("spark",), "pipeline/wheeld_pipeline/kafka": ("spark", "kafka"),
    "bench": ("spark", "test-fast", "test", "bench"),
}  # fmt: skip
"""Folders, and the extras that they need, the last one for them alone; a deeper folder counts."""


def imported() -> dict[Path, set[str]]:
    found: dict[Path, set[str]] = {}
    for file in chain.from_iterable(map(_files, (*OURS, "bench"))):
        modules: set[str] = set()
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                modules |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                modules.add(node.module.split(".")[0])
        ours = {
            *OURS,
            "bench",
            "examples",
            *(folder.stem for folder in ROOT.glob("tests/support/*.py")),
        }
        theirs = modules - set(sys.stdlib_module_names) - ours
        found[file.relative_to(ROOT)] = set().union(*(NAMES.get(each, {each}) for each in theirs))
    return found


def _files(folder: str) -> Iterable[Path]:
    return (ROOT / OURS.get(folder, "") / folder).rglob("*.py")


def extras_of(file: Path) -> tuple[str, ...]:
    part = next(str(part) for part in (file, *file.parents) if str(part) in PARTS)
    return PARTS[part]


def names(requirements: list[str]) -> set[str]:
    return {re.split(r"[^\w-]", requirement)[0].replace("-", "_") for requirement in requirements}


def test_what_is_imported_is_required() -> None:
    for file, modules in imported().items():
        required = names(dependency_bounds.requirements(extras_of(file)))
        assert modules - OF_THE_PROGRAM <= required, file


@pytest.mark.parametrize("extra", ["", *EXTRAS, "bench"])
def test_what_is_required_is_imported(extra: str) -> None:
    used: set[str] = set()
    for file, modules in imported().items():
        used |= modules if not extra or extra in extras_of(file)[-1:] else set()
    required = names(dependency_bounds.requirements([extra] if extra else []))
    assert required - names(dependency_bounds.requirements() if extra else []) <= used


def test_extras_of_one_package_agree() -> None:
    lowest = {dependency_bounds.lowest(line) for line in dependency_bounds.requirements(EXTRAS)}
    found = Counter(re.split(r"[\[=]", line)[0] for line in lowest)
    assert found.pop("pyspark") == 2  # of reports, of data sources
    assert set(found.values()) == {1}


def test_what_is_installed_is_allowed() -> None:
    for line in map(dependency_bounds.lowest, dependency_bounds.requirements()):
        name, _, version = line.partition("==")
        have, least = (
            [int(part) for part in re.findall(r"\d+", text)[:3]]
            for text in (metadata.version(name), version)
        )
        assert have >= least, line
