"""A listening socket that the service manager made: it starts the daemon with the first client.

The descriptor stays open while a copy of it is served, so that a restart in place finds it again,
as the service manager passed it.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Final

from wheeld_core.errors import WheelError

_FIRST: Final = 3
"""The descriptor that the service manager passes first."""


def is_activated() -> bool:
    """Whether the service manager passed a socket to this process."""
    number, pid = os.environ.get("LISTEN_FDS"), os.environ.get("LISTEN_PID")
    return pid == str(os.getpid()) and number not in (None, "", "0")


def listener(path: Path) -> socket.socket | None:
    """A copy of the passed socket, which must listen at `path`; None: none was passed.

    `WheelError`: something else was passed.
    """
    if not is_activated():
        return None
    what = f"{os.environ['LISTEN_FDS']} sockets"
    if os.environ["LISTEN_FDS"] == "1":
        os.set_inheritable(_FIRST, False)
        found = socket.socket(fileno=os.dup(_FIRST))
        what = repr(found.getsockname())
        if found.family == socket.AF_UNIX and os.path.realpath(found.getsockname()) == (
            os.path.realpath(path)
        ):
            return found
        found.close()
    raise WheelError(
        f"the service manager passed {what}: expected one, with ListenStream={path} in the unit"
    )


def pass_on() -> None:
    """Hand it over to the program that this process executes next."""
    if is_activated():
        os.set_inheritable(_FIRST, True)
