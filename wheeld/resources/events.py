"""The last events of a daemon, for `wheeld events`: who died, what was dropped, and why.

They are in the memory of the supervisor, and end with it; its log has them, too.
"""

from __future__ import annotations

import time
from collections import deque
from enum import StrEnum
from typing import Any, Final

MOST: Final = 1000
LONGEST: Final = 500
"""Characters of a text: some of it may come from a client."""


class Kind(StrEnum):
    DEATH = "death"
    """A worker's process has ended without a good-bye."""
    DEPARTURE = "departure"
    """A worker has left in an orderly way, and has left timers."""
    DROPPED = "dropped"
    """Timers were dropped for lack of a receiver."""
    INHERITED = "inherited"
    """A group or a successor has got the timers that a worker left."""
    EVICTION = "eviction"
    """A worker was killed, by `wheeld evict` or for its offences."""
    DRAIN = "drain"
    CLOCK = "clock"
    """The clock has died, or was killed."""
    REFUSAL = "refusal"
    """A request was refused."""


class Events:
    """A ring of events. A repeated event is counted, and does not push others out."""

    def __init__(self) -> None:
        self._ring: deque[dict[str, Any]] = deque(maxlen=MOST)
        self._forgotten = 0

    def note(self, kind: Kind, text: str, worker: str | None = None, **figures: int) -> None:
        """Add one. `figures`: numbers beside the text, such as `dropped`."""
        now, text = time.time(), text[:LONGEST]
        what = {"kind": str(kind), "worker": worker, "text": text, **figures}
        last = self._ring[-1] if self._ring else None
        if last is not None and {key: last.get(key) for key in what} == what:
            last["times"] += 1
            last["until"] = now
            return
        self._forgotten += len(self._ring) == MOST
        self._ring.append({"at": now, "until": now, "times": 1, **what})

    def as_dict(self) -> dict[str, Any]:
        return {"events": list(self._ring), "forgotten": self._forgotten}
