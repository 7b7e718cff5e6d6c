"""The names that `ps` shows for the daemon's processes: `wheeld[shop]: clock`.

By setproctitle. The name that prctl sets has room for 15 bytes only; a longer one overwrites the
memory of the arguments, and moving that needs a privilege.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

_COMM = Path("/proc/self/comm")


def title(daemon: str, part: str, room: int) -> str:
    over = len(f"wheeld[{daemon}]: {part}") - room
    return f"wheeld[{daemon[: -over - 1] + '+' if over > 0 else daemon}]: {part}"


@contextlib.contextmanager
def _environment_left_alone() -> Iterator[None]:
    """Through setproctitle, which would also use its room for titles."""
    os.environ["SPT_NOENV"] = "1"
    try:
        yield
    finally:
        del os.environ["SPT_NOENV"]


def load() -> None:
    """Load the package that `set_title` needs, if it is installed, for all forks of this
    process."""
    with contextlib.suppress(ModuleNotFoundError), _environment_left_alone():
        import setproctitle  # noqa: F401


def set_title(daemon: str, part: str) -> None:
    """Give this process its title. Its short name (`ps -o comm`) and the environment that /proc
    shows do not change; without setproctitle nothing changes."""
    with contextlib.suppress(ModuleNotFoundError, OSError):
        before = _COMM.read_text("utf-8").rstrip("\n")
        room = len(Path("/proc/self/cmdline").read_bytes()) - 1
        with _environment_left_alone():
            import setproctitle

            setproctitle.setproctitle(title(daemon, part, room))
        _COMM.write_text(before)
