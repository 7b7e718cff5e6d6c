"""Find a daemon and connect to it, also while its supervisor is being restarted."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from wheeld_core import presence, runtime
from wheeld_core.errors import DaemonNotRunning

Client = TypeVar("Client")
PAUSE: Final = 0.02


def arrive(
    enter: Callable[[Path], Client],
    name: str,
    runtime_dir: str | os.PathLike[str] | None,
    timeout: float,
) -> Client:
    """Find a daemon as `connect` does, and call `enter` with its runtime directory. Retry for
    `timeout` seconds while none answers but the shared memory of one that was not stopped is there.

    DaemonNotRunning: there is none; raised at once if none has left any memory.
    """
    give_up = time.monotonic() + timeout
    while True:
        try:
            return enter(runtime.find(name, runtime_dir))
        except DaemonNotRunning:
            places = runtime.candidates(name, runtime_dir)
            if time.monotonic() >= give_up or not any(map(presence.is_left, places)):
                raise
        time.sleep(PAUSE)
