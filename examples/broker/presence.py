"""Which of the workers live: each holds a lock that the kernel frees when it dies.

A process id would not do: another process may have it by now.
"""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path


class Presence:
    """This process' sign of life, and a look at those of others.

    Parameters
    ----------
    directory : Path
        The same for all; made if it is not there.
    name : str
        Never used before in this directory.
    """

    def __init__(self, directory: Path, name: str) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.name = name
        self._directory = directory
        self._held = os.open(directory / name, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        fcntl.flock(self._held, fcntl.LOCK_EX)

    def lives(self, name: str) -> bool:
        """Whether the process of that name holds its lock."""
        if name == self.name:
            return True
        try:
            descriptor = os.open(self._directory / name, os.O_RDONLY)
        except FileNotFoundError:
            return False
        try:
            # Shared, so that two who look at the same time do not take each other for the holder.
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        else:
            return False
        finally:
            os.close(descriptor)

    def close(self) -> None:
        """Leave: from now on this process does not live for the others."""
        with suppress(FileNotFoundError):
            (self._directory / self.name).unlink()
        os.close(self._held)
