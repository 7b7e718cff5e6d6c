"""Local paths, locks, and small files that appear atomically."""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import re
import secrets
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from wheeld_pipeline.errors import PipelineError, UsageError

_PAUSE = 0.005
"""Seconds between two attempts to get a lock."""
_URL = re.compile(r"^([a-z][a-z0-9+.-]*):/", re.IGNORECASE)


def on_disk(option: str, given: str | Path) -> Path:
    """An option's value as a path in this machine's file system.

    Raises
    ------
    PipelineError
        It is the URL of something else, such as `s3a://bucket/x`.
    """
    found = _URL.match(str(given))
    if found is None:
        return Path(given)
    if found[1].lower() == "file":
        return Path(re.sub(r"^file:/*", "/", str(given), flags=re.IGNORECASE))
    raise UsageError(
        f"{option} {given}: got a URL of {found[1]}, expected a path on this machine; write it to "
        f"a directory and copy that there"
    )


def writable(option: str, given: str | Path) -> Path:
    """A directory that a command will write to, whether or not it exists; commands check it before
    they start work.

    Raises
    ------
    PipelineError
        It is a URL, lies at or below a file, or nothing can be made where it is to be.
    """
    folder = on_disk(option, given)
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    if not there.is_dir():
        raise PipelineError(
            f"{option} {given}: {there} is a file: expected a directory, or a name that is free"
        )
    try:
        with tempfile.TemporaryFile(dir=there):  # without a name: a kill leaves nothing
            return folder
    except OSError as error:
        raise PipelineError(
            f"{option} {given}: nothing can be written in {there}: {error.strerror}; name another "
            f"directory"
        ) from error


@contextlib.contextmanager
def locked(path: Path, seconds: float, how: int = fcntl.LOCK_EX) -> Iterator[bool]:
    """Hold a lock that the kernel releases when this process dies; False: not acquired in that
    time."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        yield _lock(file, seconds, how)
    finally:
        os.close(file)


def _lock(file: int, seconds: float, how: int) -> bool:
    if seconds == math.inf:
        fcntl.flock(file, how)
        return True
    give_up = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(file, how | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= give_up:
                return False
            time.sleep(_PAUSE)
        else:
            return True


def write_json(path: Path, content: dict[str, Any]) -> None:
    fresh = path.with_name(f".{path.name}-{secrets.token_hex(4)}")
    fresh.write_text(json.dumps(content))
    fresh.rename(path)
