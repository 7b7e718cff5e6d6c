"""Folders and modules of each package, and of the headers, stand on each other in one direction."""

import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from house_rules import imports
from programs import ROOT
from sources import Source

NO_ROOMS = {"tests", "build", "site", "node_modules", "target"}
"""Folders of the repository that hold tests, or what is built."""
HEADERS = "core/include/wheeld"
CODE = (".py", ".c", ".h", ".rs", ".java")
MOST_FILES = 16
"""Of a folder, but for its `__init__.py`."""


def folders(home: Path) -> Iterator[Path]:
    yield home
    for inside in sorted(home.iterdir()):
        hidden = inside.name.startswith((".", "__")) or inside.name in NO_ROOMS
        if inside.is_dir() and not hidden:
            yield from folders(inside)


def rooms() -> list[Path]:
    return [each for each in folders(ROOT) if any(one.suffix in CODE for one in each.iterdir())]


def packages() -> list[Path]:
    return [
        room
        for room in rooms()
        if (room / "__init__.py").exists() and not (room.parent / "__init__.py").exists()
    ]


def within(package: Path) -> list[Path]:
    return [
        each
        for each in folders(package)
        if any((inside / "__init__.py").exists() for inside in each.iterdir())
    ]


@cache
def imported(path: Path, text: str) -> set[str]:
    return {name for _, name in imports(Source(path.parent, path.name, text))}


def python_rooms(package: str, home: Path) -> dict[str, set[str]]:
    found: dict[str, set[str]] = defaultdict(set)
    depth = len(package.split("."))
    for path in home.rglob("*.py"):
        room = path.relative_to(home).parts[0].removesuffix(".py")
        for parts in (name.split(".") for name in imported(path, path.read_text())):
            inside = parts[depth:]
            if parts[:depth] == package.split(".") and inside and inside[0] != room:
                found[room].add(inside[0])
    return found


def modules(package: Path) -> dict[str, tuple[Path, str]]:
    found = {}
    for path in package.rglob("*.py"):
        name = ".".join(path.relative_to(package.parent).with_suffix("").parts)
        found[name.removesuffix(".__init__")] = path, path.read_text()
    return found


TYPES = re.compile(r"^if TYPE_CHECKING:\n(?:    .*\n|\n)+", re.MULTILINE)


def module_imports(package: Path) -> dict[str, set[str]]:
    """Which modules of a package each one imports; for a type alone only from other folders.

    A lazy `__init__`, with a `__getattr__`, loads nothing itself: what is taken through it is
    taken from the module that has it.
    """
    sources = modules(package)
    lazy = {name for name, (_, text) in sources.items() if "def __getattr__(" in text}
    homes = {
        f"{door}.{name.split('.')[-1]}": name for door in lazy for name in imported(*sources[door])
    }
    found: dict[str, set[str]] = {name: set() for name in sources}
    for module in sources.keys() - lazy:
        path, text = sources[module]
        loaded = imported(path, TYPES.sub("", text))
        for name in imported(path, text):
            taken = homes.get(name, name)
            while taken and taken not in sources:  # what a module defines
                taken = taken.rpartition(".")[0]
            if name in loaded or taken.rpartition(".")[0] != module.rpartition(".")[0]:
                found[module] |= {taken} - {module, ""}
    return found


def header_rooms(home: Path) -> dict[str, set[str]]:
    found: dict[str, set[str]] = defaultdict(set)
    for path in home.rglob("*.h"):
        included = re.findall(r'#include "wheeld/(\w+)/', path.read_text())
        found[path.parent.name] |= set(included) - {path.parent.name}
    return found


def circle(rooms: dict[str, set[str]]) -> list[str]:
    def below(room: str, seen: set[str]) -> set[str]:
        for each in rooms.get(room, ()):
            if each not in seen:
                seen.add(each)
                below(each, seen)
        return seen

    return sorted(room for room in rooms if room in below(room, set()))


@pytest.mark.parametrize("package", packages(), ids=lambda package: package.name)
def test_packages(package: Path) -> None:
    for home in (package, *within(package)):
        name = ".".join((package.name, *home.relative_to(package).parts))
        assert circle(python_rooms(name, home)) == [], name


@pytest.mark.parametrize("package", packages(), ids=lambda package: package.name)
def test_modules(package: Path) -> None:
    """No module is imported, at any remove, by one that it imports.

    Modules of one folder may name each other's types: a protocol for each would only hide that.
    """
    assert circle(module_imports(package)) == []


def test_headers() -> None:
    rooms = header_rooms(ROOT / HEADERS)
    assert len(rooms) == 6
    assert circle(rooms) == []


def test_the_daemon_has_few_rooms() -> None:
    inside = {path.stem for path in (ROOT / "wheeld").iterdir() if path.suffix in ("", ".py")}
    assert len({room for room in inside if not room.startswith("_")}) <= 15


def test_sizes() -> None:
    sizes = {
        str(room.relative_to(ROOT)): sum(
            path.suffix in CODE and path.name != "__init__.py" for path in room.iterdir()
        )
        for room in rooms()
    }
    assert sizes["core/wheeld_core/native/worker"] > 10
    assert not {room for room, size in sizes.items() if size > MOST_FILES}


def test_names_of_test_modules() -> None:
    names = [path.name for path in (ROOT / "tests").rglob("*.py")]
    twice = {name for name in names if names.count(name) > 1} - {"conftest.py", "__init__.py"}
    assert not twice
