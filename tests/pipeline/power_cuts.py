"""The remains of a folder after a power failure, at each call that changes or syncs it.

On disk are the contents of files that were synced, and the names of folders that were. Of all else
any part may be there or not: a file of any length, a name or none. A rename is one step.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

CALLS = ("fsync", "rename", "link", "unlink", "mkdir", "rmdir")
Names = dict[int, dict[str, int]]
"""Of each folder: name to number of the file."""


class Change(NamedTuple):
    """A name that comes, goes or moves: each place is a folder and a name in it."""

    number: int
    gone: tuple[int, str] | None
    here: tuple[int, str] | None

    def is_in(self, folder: int) -> bool:
        return any(place is not None and place[0] == folder for place in (self.gone, self.here))

    def apply(self, names: Names) -> None:
        if self.gone is not None and names.setdefault(self.gone[0], {}).pop(self.gone[1], 0) == 0:
            return
        if self.here is not None:
            names.setdefault(self.here[0], {})[self.here[1]] = self.number


class Disk:
    """The parts of a folder that are on disk, and those only in memory."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.top = root.stat().st_ino
        self.names: Names = {}
        self.live: Names = {}
        self.pending: list[Change] = []
        self.synced: dict[int, bytes] = {}
        self.contents: dict[int, bytes] = {}
        self.folders: set[int] = set()

    def look(self) -> None:
        """Note what has changed since the last time."""
        found: Names = {}
        for folder, inside, files in os.walk(self.root):
            here = os.stat(folder).st_ino
            self.folders.add(here)
            found[here] = {n: os.stat(f"{folder}/{n}").st_ino for n in (*inside, *files)}
            for name in files:
                self.contents[found[here][name]] = Path(folder, name).read_bytes()
        new, old = _places(found) - _places(self.live), _places(self.live) - _places(found)
        for *place, number in sorted(new):
            moved = next((one for one in old if one[2] == number), None)
            old.discard(moved) if moved else None
            self.pending.append(Change(number, moved and moved[:2], (place[0], place[1])))
        self.pending += [Change(number, (folder, name), None) for folder, name, number in old]
        self.live = found

    def sync(self, number: int) -> None:
        if number not in self.folders:
            self.synced[number] = self.contents.get(number, b"")
            return
        for change in [one for one in self.pending if one.is_in(number)]:
            change.apply(self.names)
            self.pending.remove(change)

    def left(self, chance: random.Random, names: float, length: float | None) -> Left:
        """With each pending name at this chance, and this share of what was not synced of each
        file; None: a random one."""
        kept: Names = {folder: dict(inside) for folder, inside in self.names.items()}
        for change in self.pending:
            if chance.random() < names:
                change.apply(kept)
        contents = {}
        for number, whole in self.contents.items():
            first = len(self.synced.get(number, b""))
            share = chance.random() if length is None else length
            contents[number] = whole[: first + int((len(whole) - first) * share)]
        return Left(self.top, kept, contents, self.folders)


class Left(NamedTuple):
    """The names and contents that a power failure left."""

    top: int
    names: Names
    contents: dict[int, bytes]
    folders: set[int]

    def build(self, base: Path, folder: int | None = None) -> None:
        base.mkdir()
        for name, number in self.names.get(folder or self.top, {}).items():
            if number in self.folders:
                self.build(base / name, number)
            else:
                (base / name).write_bytes(self.contents.get(number, b""))


def _places(names: Names) -> set[tuple[int, str, int]]:
    return {(folder, *entry) for folder, inside in names.items() for entry in inside.items()}


@contextmanager
def watched(root: Path, note: Callable[[Disk], None]) -> Iterator[Disk]:
    """Calls `note` before and after each call that changes names or syncs."""
    disk = Disk(root)

    def around(name: str) -> Callable[..., Any]:
        call = getattr(os, name)

        def made(*arguments: Any, **options: Any) -> Any:
            disk.look()
            note(disk)
            result = call(*arguments, **options)
            if name == "fsync":
                disk.sync(os.fstat(arguments[0]).st_ino)
            disk.look()
            note(disk)
            return result

        return made

    with pytest.MonkeyPatch.context() as patch:
        for name in CALLS:
            patch.setattr(os, name, around(name))
        yield disk
