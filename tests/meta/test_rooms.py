"""The folders of each package, and of the headers, stand on each other in one direction."""

import re
from collections import defaultdict
from pathlib import Path

import pytest

from house_rules import imports
from programs import ROOT
from sources import Source

PACKAGES = {"wheeld": "wheeld", "wheeld_client": "client/wheeld_client"}
HEADERS = "core/include/wheeld"
MOST_FILES = 15
"""Of a folder, but for its `__init__.py`."""


def python_rooms(package: str, home: Path) -> dict[str, set[str]]:
    """Which folders each folder imports from; a file beside the folders is one of its own."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in home.rglob("*.py"):
        room = path.relative_to(home).parts[0].removesuffix(".py")
        source = Source(home, path.name, path.read_text())
        for parts in (name.split(".") for _, name in imports(source)):
            if parts[0] == package and parts[1:] and parts[1] != room:
                found[room].add(parts[1])
    return found


def header_rooms(home: Path) -> dict[str, set[str]]:
    """Which folders the headers of each folder include."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in home.rglob("*.h"):
        included = re.findall(r'#include "wheeld/(\w+)/', path.read_text())
        found[path.parent.name] |= set(included) - {path.parent.name}
    return found


def circle(rooms: dict[str, set[str]]) -> list[str]:
    """Folders that stand on themselves by way of others."""

    def below(room: str, seen: set[str]) -> set[str]:
        for each in rooms.get(room, ()):
            if each not in seen:
                seen.add(each)
                below(each, seen)
        return seen

    return sorted(room for room in rooms if room in below(room, set()))


def test_a_circle_is_seen() -> None:
    """Also one of three; and none where there is none."""
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == ["a", "b", "c"]
    assert circle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


@pytest.mark.parametrize("package", list(PACKAGES))
def test_packages(package: str) -> None:
    """No folder imports what stands on it."""
    home = ROOT / PACKAGES[package]
    rooms = python_rooms(package, home)
    assert len(rooms) >= 5
    assert circle(rooms) == []


def test_headers() -> None:
    """No header includes what stands on its folder."""
    rooms = header_rooms(ROOT / HEADERS)
    assert len(rooms) == 6
    assert circle(rooms) == []


@pytest.mark.parametrize("home", [*PACKAGES.values(), HEADERS, "core/wheeld_core/native"])
def test_sizes(home: str) -> None:
    """A folder that has more is two."""
    for folder in (path for path in (ROOT / home).iterdir() if path.is_dir()):
        files = [path for path in folder.iterdir() if path.suffix in (".py", ".c", ".h")]
        assert len([path for path in files if path.name != "__init__.py"]) <= MOST_FILES, folder
