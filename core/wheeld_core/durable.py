"""Files and names that survive a power failure.

The file is on disk before its name: write it, `sync` it, rename it, `sync` the folder.
"""

from __future__ import annotations

import os
from pathlib import Path


def rename(fresh: Path, path: Path) -> None:
    """Rename a file over another one, atomically: after a crash the name leads to one of the two.

    The writer must have synced the contents before.
    """
    os.rename(fresh, path)
    sync(path.parent)


def sync(path: Path) -> None:
    """Put a file's contents on disk, or the names in a folder."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_folders(path: Path) -> None:
    """Make a folder and its missing parents, and put their names on disk."""
    if path.is_dir():
        return
    make_folders(path.parent)
    path.mkdir(exist_ok=True)
    sync(path.parent)
