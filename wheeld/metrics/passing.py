"""A worker for one call: it connects, calls and leaves."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from wheeld_client import Timers, connect
from wheeld_core.errors import WorkersFull

PAUSE: Final = 0.02
MOST_PAUSE: Final = 0.5


def in_passing(
    name: str, runtime_dir: Path | None, seconds: float, call: Callable[[Timers], Any]
) -> Any:
    """The result of the call. Other such workers may occupy all rows for a moment: it retries for
    so many seconds, after random pauses, so that the daemon finds a row for itself."""
    give_up, pause = time.monotonic() + seconds, PAUSE
    while True:
        try:
            with connect(name, runtime_dir=runtime_dir, timeout=seconds) as timers:
                return call(timers)
        except WorkersFull:
            if time.monotonic() >= give_up:
                raise
        time.sleep(random.uniform(0.0, pause))
        pause = min(2 * pause, MOST_PAUSE)
