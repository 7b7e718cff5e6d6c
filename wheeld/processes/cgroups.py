"""The control groups of a process, v1 and v2, and their limits."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Final

ROOT: Final = Path("/sys/fs/cgroup")
_NO_LIMIT: Final = 1 << 60


def read(path: Path) -> str:
    with contextlib.suppress(OSError, UnicodeDecodeError):
        return path.read_text("utf-8").strip()
    return ""


def chain(subject: Path, cgroups: Path, controller: str) -> list[Path]:
    """The cgroup of the process whose /proc/PID is `subject`, and its ancestors."""
    found = []
    for line in read(subject / "cgroup").splitlines():
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers and controller not in controllers.split(","):
            continue
        roots = [cgroups] if not controllers else [cgroups / controllers, cgroups / controller]
        for root in roots:
            directory = root / path.strip("/")
            while directory != root and root in directory.parents:
                found.append(directory)
                directory = directory.parent
            found.append(root)
    return found


def memory_limit(subject: Path, cgroups: Path) -> tuple[int, Path] | None:
    """The lowest memory limit that applies to that process, in bytes, and the file that sets it.

    Shared memory is charged to the cgroup of the process that makes it.
    """
    limits = []
    for directory in chain(subject, cgroups, "memory"):
        for file in ("memory.max", "memory.limit_in_bytes"):
            text = read(directory / file)
            if text.isdigit() and int(text) < _NO_LIMIT:
                limits.append((int(text), directory / file))
    return min(limits, default=None)
