"""The heads of workers' segments: what members of a group may write, and nobody has to.

A new clock attaches no segment whose head is damaged, and the worker is out: so whoever overwrites
it would have that worker killed. All of it follows from the wheel, so it is mended before.
"""

from __future__ import annotations

import contextlib
import logging
import mmap
import os
import stat
from typing import Final

from wheeld_core import _native, segments, trust
from wheeld_core.views import dtype_of

log = logging.getLogger("wheeld")

_FLAGS: Final = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class WorkerHead:
    """What stands at the beginning of each worker's segment for as long as that is there.

    Parameters
    ----------
    wheel : mmap
        The wheel segment.
    size : int
        Bytes of a worker's segment.
    """

    def __init__(self, wheel: mmap.mmap, size: int) -> None:
        fields = dtype_of("worker").fields
        assert fields is not None
        scratch = mmap.mmap(-1, size)
        _native.create_worker(scratch, wheel, 0)
        self._size = size
        self._head = scratch[: int(fields["sub_tail"][1])]

    def mend(self, name: str) -> None:
        """Write it again into that segment, if something else stands there. One that is not a whole
        segment of ours is left to who attaches it."""
        with contextlib.suppress(OSError):
            fd = os.open(f"{segments.SHM_DIRECTORY}/{trust.plain(name)}", _FLAGS)
            try:
                status = os.fstat(fd)
                ours = stat.S_ISREG(status.st_mode) and status.st_uid == os.getuid()
                if not ours or status.st_size != self._size:
                    return
                if os.pread(fd, len(self._head), 0) != self._head:
                    log.warning("somebody has overwritten the head of %s: mended", name)
                    os.pwrite(fd, self._head, 0)
            finally:
                os.close(fd)
