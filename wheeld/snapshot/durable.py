"""Renames that survive a crash of the host."""

from __future__ import annotations

import os
from pathlib import Path


def rename(fresh: Path, path: Path) -> None:
    """Rename a file over another: after a crash the name belongs to one or the other.

    The writer must have synced the contents before.
    """
    os.rename(fresh, path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Sync a folder, so that the names in it survive a crash of the host."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
