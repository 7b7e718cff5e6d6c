"""Removes old files of a trace, by age and by total size.

Only files with a recorder's names are considered, oldest first, and never the newest one of a
dataset. The age is that of the file, because its contents may be in virtual time.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from wheeld_core.trace_schema import COUNTERS_FOLDER, EVENTS_FOLDER

_FILE = re.compile(r"[0-9a-f]{16}-[0-9a-f]{16}\.parquet")
_DATE = re.compile(r"date=[0-9]{4}-[0-9]{2}-[0-9]{2}")
_HOUR = re.compile(r"hour=[0-9]{2}")


@dataclass(frozen=True, order=True)
class TraceFile:
    """One Parquet file; sorts by the time of writing."""

    written_ns: int
    path: Path
    size: int


def files(trace: Path) -> list[TraceFile]:
    return sorted(found for dataset in _datasets(trace) for found in _files(dataset))


def _datasets(trace: Path) -> list[Path]:
    return [trace / EVENTS_FOLDER, trace / COUNTERS_FOLDER]


def _folders(folder: Path, name: re.Pattern[str]) -> list[Path]:
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        return [
            Path(entry.path)
            for entry in os.scandir(folder)
            if name.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False)
        ]
    return []


def _files(dataset: Path) -> Iterator[TraceFile]:
    for date in _folders(dataset, _DATE):
        for hour in _folders(date, _HOUR):
            with contextlib.suppress(FileNotFoundError):
                for entry in os.scandir(hour):
                    if _FILE.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                        status = entry.stat(follow_symlinks=False)
                        yield TraceFile(status.st_mtime_ns, Path(entry.path), status.st_size)


def retain(trace: Path, keep_ns: int | None, most_bytes: int | None, now_ns: int) -> list[Path]:
    """Remove files older than `keep_ns`, then the oldest ones while the rest is too large."""
    found = files(trace)
    newest = {file.path.relative_to(trace).parts[0]: file.path for file in found}
    total = sum(file.size for file in found)
    removed = []
    for file in found:
        old = keep_ns is not None and file.written_ns < now_ns - keep_ns
        large = most_bytes is not None and total > most_bytes
        if not (old or large):
            break
        if file.path in newest.values():
            continue
        with contextlib.suppress(FileNotFoundError):
            file.path.unlink()
        total -= file.size
        removed.append(file.path)
        for folder in (file.path.parent, file.path.parent.parent):
            with contextlib.suppress(OSError):  # there is something in it
                folder.rmdir()
    return removed
