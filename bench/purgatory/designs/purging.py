"""wheeld's purgatory if it kept what is completed under its keys until a purge, as the old design
does: what leaving at once is compared with."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from wheeld_client import DelayedOperation, Purgatory, Timers


class PurgingPurgatory(Purgatory):
    """It purges when more than `purge_interval` operations are over, by its estimate."""

    def __init__(self, timers: Timers, name: str, purge_interval: int) -> None:
        super().__init__(timers, name)
        self.purge_interval, self.purges = purge_interval, 0
        self._lock = threading.Lock()
        self._estimated = 0
        self._watchers: dict[Any, list[DelayedOperation]] = {}

    @property
    def watched(self) -> int:
        """Entries of the lists; one operation under three keys counts three times."""
        with self._lock:
            return sum(map(len, self._watchers.values()))

    def try_complete_else_watch(self, op: DelayedOperation, keys: Sequence[Any]) -> bool:
        """As in `Purgatory`; what waits stays under its keys when it is over."""
        if super().try_complete_else_watch(op, keys):
            return True
        with self._lock:
            for key in dict.fromkeys(keys):
                self._watchers.setdefault(key, []).append(op)
            self._estimated += 1
            if self._estimated - self.num_delayed > self.purge_interval:
                self._purge()
        return False

    def _purge(self) -> None:
        self.purges += 1
        self._estimated = self.num_delayed
        kept = {
            key: [op for op in ops if not op.is_completed] for key, ops in self._watchers.items()
        }
        self._watchers = {key: ops for key, ops in kept.items() if ops}
