"""Names of files that outlive the host."""

from __future__ import annotations

import os
from pathlib import Path


def rename(fresh: Path, path: Path) -> None:
    """Give a file its name, in place of what has it: after a crash there is the one or the other.

    What is in the file is for its writer to have synced before.
    """
    os.rename(fresh, path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder survive a crash of the host as they are now."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
