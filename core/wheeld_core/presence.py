"""Tells, without asking the daemon, whether its memory waits for a supervisor."""

from __future__ import annotations

import contextlib
import os
import zlib
from pathlib import Path
from typing import Final

from wheeld_core import _native, segments
from wheeld_core.errors import WheelError
from wheeld_core.views import WheelView

RUNNING: Final = 1
STOPPING: Final = 2
"""States of a daemon, as in the wheel's header."""


def segment_stem(directory: Path, name: str) -> str:
    """Prefix of the segments of all daemons of a runtime directory."""
    return f"wheeld-{name}-{zlib.crc32(bytes(directory.resolve())) >> 8:06x}"


def is_left(directory: Path) -> bool:
    """Whether this runtime directory's daemon left a wheel without stopping it. Its supervisor was
    killed or is being restarted, and workers still use it."""
    stem = segment_stem(directory, directory.name)
    for name in os.listdir(segments.SHM_DIRECTORY):
        if name.startswith(stem) and name.endswith("-wheel"):
            with contextlib.suppress(WheelError, OSError):
                memory = segments.attach(name, _native.KIND_WHEEL, writable=False)
                if int(WheelView(memory).header["daemon_state"]) != STOPPING:
                    return True
    return False
