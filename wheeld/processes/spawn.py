"""Starts a module as a child process, at the other end of a socket pair.

One may be started ahead, before its parent has its options: it waits for the first message, and
ends if none comes. Loading modules is most of the start of the supervisor and its clock, and so
they do it side by side. Nothing but the standard library is imported here.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

CLOCK: Final = "wheeld.clock.process"
RECORDER: Final = "wheeld.recorder.process"
EXPORTER: Final = "wheeld.metrics.process"
PRIVATE: Final = "--private"
"""The first argument of an embedded daemon's command line; its options follow, as JSON."""
OPTIONS: Final[Mapping[str, Mapping[str, Any]]] = {
    # Ctrl-C is the supervisor's to handle.
    CLOCK: {"start_new_session": True},
    # The same; a session would undo nice.
    RECORDER: {"process_group": 0, "stdin": subprocess.DEVNULL},
    EXPORTER: {"process_group": 0, "stdin": subprocess.DEVNULL},
}
"""For `subprocess.Popen`."""


class Forked:
    """A child process made by fork, with the methods of `subprocess.Popen` that are used here."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def wait(self) -> int:
        """Wait for its end; returns its exit code, negative for a signal."""
        if self.returncode is None:
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.returncode

    def kill(self) -> None:
        """Send SIGKILL; does nothing once its end was waited for."""
        if self.returncode is None:
            os.kill(self.pid, signal.SIGKILL)


class Spawned(NamedTuple):
    """A process, and the parent's end of the channel to it."""

    process: subprocess.Popen[bytes] | Forked
    channel: socket.socket


_ahead: dict[str, Spawned] = {}


def spawn(module: str) -> Spawned:
    """Run `python -m MODULE <fd>`, one of those in `OPTIONS`.

    Raises
    ------
    OSError
        There is no room for a process or a descriptor; nothing is left of it.
    """
    ours, theirs = socket.socketpair()
    try:
        with theirs:
            process = subprocess.Popen(
                # -P: nothing is imported from the directory that we happen to be in
                [sys.executable, "-P", "-m", module, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                **OPTIONS[module],
            )
    except BaseException:
        ours.close()
        raise
    return Spawned(process, ours)


def ahead(module: str) -> None:
    """Start one ahead, for the next `take` of this module."""
    with contextlib.suppress(OSError):  # who asks finds out why
        _ahead[module] = spawn(module)


def provide(module: str, spawned: Spawned) -> None:
    """Provide a process that was made in another way, for the next `take` of this module."""
    _ahead[module] = spawned


def take(module: str) -> Spawned:
    """The process that was started ahead or provided, else a new one; raises as `spawn`."""
    return _ahead.pop(module, None) or spawn(module)


def end_unused() -> None:
    """End those that were never taken."""
    while _ahead:
        _, (process, channel) = _ahead.popitem()
        channel.close()
        process.kill()
        process.wait()
