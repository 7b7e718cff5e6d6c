"""shm_open and shm_unlink: from posix_ipc, or from the core where posix_ipc is not available.

posix_ipc has no wheel for Python 3.14 and later. Built from source, it declares no support for
free-threaded Python, so importing it there would turn the GIL on again.
"""

from __future__ import annotations

import sys
from typing import Final

from wheeld_core import _native

try:
    if "t" in sys.abiflags:  # free-threaded; `sysconfig` would load a third of a megabyte
        raise ImportError("posix_ipc would enable the GIL")
    import posix_ipc
except ImportError:
    PROVIDER: Final = "wheeld_core"
else:
    PROVIDER: Final = "posix_ipc"  # type: ignore[misc]


def make(name: str, mode: int) -> int:
    """Make an empty segment and return its descriptor, open for reading and writing.
    FileExistsError: the name is taken."""
    if PROVIDER == "wheeld_core":
        return _native.shm_make(f"/{name}", mode)
    try:
        fd: int = posix_ipc.SharedMemory(f"/{name}", posix_ipc.O_CREX, mode=mode).fd
    except posix_ipc.ExistentialError as error:
        raise FileExistsError(str(error)) from error
    return fd


def unlink(name: str) -> None:
    """Remove a segment's name. FileNotFoundError: there is no segment of that name.
    PermissionError: it belongs to another user."""
    if PROVIDER == "wheeld_core":
        _native.shm_unlink(f"/{name}")
        return
    try:
        posix_ipc.unlink_shared_memory(f"/{name}")
    except posix_ipc.ExistentialError as error:
        raise FileNotFoundError(str(error)) from error
    except posix_ipc.PermissionsError as error:
        raise PermissionError(str(error)) from error
