"""The memory that a process has mapped, as the kernel counts it in /proc/PID/smaps."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

_MAP = re.compile(r"[0-9a-f]+-[0-9a-f]+ ")
_SUM = re.compile(r"(\w+):\s+(\d+) kB")


def mapped_memory(proc: Path, prefix: str) -> dict[str, int]:
    """Sums in KiB over the maps of a prefix's segments, by the names of `proc`/smaps; {} if this
    process may not read that file."""
    sums: dict[str, int] = {}
    ours = False
    with suppress(OSError):
        for line in Path(proc, "smaps").read_text("utf-8", "replace").splitlines():
            if _MAP.match(line):
                ours = f"/{prefix}" in line
            elif ours and (match := _SUM.fullmatch(line)):
                sums[match[1]] = sums.get(match[1], 0) + int(match[2])
    return sums


def huge_kib(sums: dict[str, int]) -> int:
    """How much of that is in huge pages."""
    return sums.get("ShmemPmdMapped", 0)


def shared_huge_kib(proc: Path) -> int:
    """The same over all maps of the process. The kernel keeps these sums, so this takes a tenth of
    the time of `mapped_memory`. A clock maps no shared memory but its segments."""
    with suppress(OSError):
        found = map(_SUM.fullmatch, Path(proc, "smaps_rollup").read_text().splitlines())
        return huge_kib({match[1]: int(match[2]) for match in found if match})
    return 0
