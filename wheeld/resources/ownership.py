"""Locks of the files that a daemon writes outside of its runtime directory.

The lock of the runtime directory keeps a name from being used twice there; two daemons of one name
in two runtime directories may still be given one --state-dir, or one --trace.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import time
from collections.abc import Iterable
from pathlib import Path

from wheeld_core.errors import WheelError

_TRIES = 100
_LOOKS, _LOOK_SECONDS = 5, 0.01
"""Attempts, and the time between them: even a test of a lock holds it for an instant."""
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


def of_snapshot(state_dir: Path, name: str) -> Path:
    return state_dir / f"{name}.lock"


def of_trace(spool: Path, name: str, host: str | None = None) -> Path:
    return spool / f"{name}@{host or socket.gethostname()}.lock"


def take(path: Path, option: str, holder: str, inherited: Iterable[int] = ()) -> int:
    """Take the lock at `path`, in a directory of this user alone, for as long as the daemon lives;
    returns the descriptor that holds it. A match among the locks `inherited` by an exec is used,
    and the others are left alone.

    `WheelError`: another daemon holds it; the message names that one, `option`, which gave the
    directory, and its `holder`.
    """
    for _ in range(_TRIES):
        fd = os.open(path, _FLAGS, 0o600)
        for other in inherited:
            if os.path.samestat(os.fstat(other), os.fstat(fd)):
                os.close(fd)
                return other
        if not _locked(fd):
            found = os.pread(fd, 4096, 0).decode(errors="replace").strip()
            os.close(fd)
            raise WheelError(
                f"{option} {path.parent} is in use: {found or 'another daemon'} writes to it "
                f"under this name ({path.name}); give each daemon its own directory or --name, "
                "or stop "
                "that one"
            )
        if is_of(fd, path):  # else the last holder removed it
            os.ftruncate(fd, 0)
            os.pwrite(fd, f"{holder}\n".encode(), 0)
            return fd
        os.close(fd)
    raise WheelError(
        f"{option} {path.parent}: another process removed {path.name} {_TRIES} times while this "
        "one took it; find it, or give another directory"
    )


def _locked(fd: int) -> bool:
    for _ in range(_LOOKS):
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        time.sleep(_LOOK_SECONDS)
    return False


def is_of(fd: int, path: Path) -> bool:
    with contextlib.suppress(OSError):
        return os.path.samestat(os.fstat(fd), os.stat(path, follow_symlinks=False))
    return False
