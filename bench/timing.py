"""A watch for a machine that is not ours alone."""

from __future__ import annotations

import os
import time

READ_NS = 100_000
"""Reading two clocks takes less, unless another process runs in between."""


class Watch:
    """Measures the time of this thread, less what it waited for a processor that others had.

    Waits of its own (a sleep, a full ring) count; being preempted does not. Where the kernel does
    not say how long a thread was kept waiting, that counts too.
    """

    def __init__(self) -> None:
        try:
            self._file = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            self._file = -1
        self._kept = self._start = 0

    def _waited_ns(self) -> int:
        return int(os.pread(self._file, 100, 0).split()[1]) if self._file >= 0 else 0

    def start(self) -> None:
        """Begin."""
        kept = -1
        while kept != (kept := self._waited_ns()):  # or it was preempted just before the start
            self._start = time.perf_counter_ns()
        self._kept = kept

    def ns_each(self, count: int) -> float:
        """ns since `start`, for each of `count` operations."""
        end = time.perf_counter_ns()
        kept = self._waited_ns() - self._kept
        after = time.perf_counter_ns() - end
        if after > READ_NS:  # it was preempted after the end
            kept -= after
        return (end - self._start - max(kept, 0)) / count
