"""What `ps` shows of the daemon's processes: `wheeld[shop]: clock`.

By setproctitle. The name that prctl sets has room for 15 bytes only; a longer one overwrites the
memory of the arguments, and moving that needs a privilege.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

_COMM = Path("/proc/self/comm")


def title(daemon: str, part: str, room: int) -> str:
    """The title, with the daemon's name cut so that it fits into the available bytes."""
    over = len(f"wheeld[{daemon}]: {part}") - room
    return f"wheeld[{daemon[: -over - 1] + '+' if over > 0 else daemon}]: {part}"


def load() -> None:
    """Load what `set_title` needs, if it is installed: for all that this process forks."""
    with contextlib.suppress(ModuleNotFoundError):
        os.environ["SPT_NOENV"] = "1"  # it leaves the environment alone
        import setproctitle  # noqa: F401
    os.environ.pop("SPT_NOENV", None)


def set_title(daemon: str, part: str) -> None:
    """Give this process its title. Its short name (`ps -o comm`) and the environment that /proc
    shows do not change; without setproctitle nothing does."""
    with contextlib.suppress(ModuleNotFoundError, OSError):
        before = _COMM.read_text().rstrip("\n")
        room = len(Path("/proc/self/cmdline").read_bytes()) - 1
        os.environ["SPT_NOENV"] = "1"
        import setproctitle

        setproctitle.setproctitle(title(daemon, part, room))
        del os.environ["SPT_NOENV"]
        _COMM.write_text(before)
