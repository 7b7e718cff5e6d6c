"""The recorder's second thread: converts spools to Parquet, and removes files that are too old."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Final

from wheeld.recorder import parquet
from wheeld.recorder.retention import retain
from wheeld.recorder.spool import COUNTERS, aside, remove, set_aside

BUSY: Final = 1_000_000
"""Records per second above which conversion to Parquet waits."""
BUSY_SECONDS: Final = 0.1
"""Seconds over which the rate is measured."""
SHARE: Final = 0.02
"""The share of a processor that each thread may take while the ring overflows: then the trace has
gaps anyway, and the clock and the workers take precedence."""
LOSSY_SECONDS: Final = 1.0
"""How long the limit applies after an overflow."""
LEAST_PAUSE, LONGEST_PAUSE = 0.1, 10.0
"""Seconds between retries after a system error."""
LAST_TRIES: Final = 3
"""Attempts at the end; the next recorder gets spools that still cannot be converted."""
RETAIN_SECONDS: Final = 30.0
MOST_WAITING: Final = 16
"""How many spools may wait for a quieter time; with more, conversion continues regardless of
load."""
BUSY_PAUSE: Final = 0.25
"""Seconds between two checks of the load."""


class Load:
    """The thread that takes records measures it; the other one only reads it. `now` is the time in
    seconds."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._measured, self._come = now(), 0
        self._lost, self._lossy_until = 0, float("-inf")
        self._fast = False

    def measure(self, waiting: int, lost: int) -> None:
        """Record the number of new records since the last call, and of all lost ones."""
        self._come += waiting
        passed = self._now() - self._measured
        if lost > self._lost:
            self._lost, self._lossy_until = lost, self._now() + LOSSY_SECONDS
        if self._come > BUSY * max(passed, BUSY_SECONDS):
            self._fast = True  # at once, so that a spool that fills now already waits
        elif passed >= BUSY_SECONDS:
            self._fast = False
        if passed >= BUSY_SECONDS:
            self._measured, self._come = self._now(), 0

    @property
    def lossy(self) -> bool:
        return self._now() < self._lossy_until

    @property
    def busy(self) -> bool:
        """Whether records come so fast that the clock and the workers may need the processors."""
        return self._fast or self.lossy

    def rest(self, worked: float) -> float:
        """How many seconds to pause after `worked` seconds of processor time."""
        return worked * (1 / SHARE - 1) if self.lossy else 0.0


class Converter(threading.Thread):
    """Converts spools in order of arrival, and keeps `keep_ns` and `most_bytes` of the trace; None:
    all.

    It calls `written` with each new file and its rows, `trouble` with the reason when a write fails
    and with None once writing works again, and `warn` with errors that cannot be retried. At a high
    `load` spools wait, because the clock and the workers may need the processors.
    """

    def __init__(
        self,
        trace: Path,
        keep_ns: int | None,
        most_bytes: int | None,
        written: Callable[[Path, int], None],
        trouble: Callable[[str | None], None],
        warn: Callable[[str], None],
        load: Load | None = None,
    ) -> None:
        super().__init__(name="converter", daemon=True)
        self._trace, self._keep_ns, self._most_bytes = trace, keep_ns, most_bytes
        self._written, self._trouble, self._warn = written, trouble, warn
        self._load = load or Load()
        self._spools: deque[Path] = deque()
        self._known: set[Path] = set()
        self._change = threading.Condition()
        self._ending = False
        self._retained = 0.0
        self.steps = 0
        """Grows with each step that is done."""

    def add(self, spool: Path) -> None:
        with self._change:
            if spool not in self._known:
                self._known.add(spool)
                self._spools.append(spool)
                self._change.notify()

    @property
    def waiting(self) -> int:
        return len(self._spools)

    @property
    def _retains(self) -> bool:
        return self._keep_ns is not None or self._most_bytes is not None

    def end(self) -> None:
        """End the thread after its current spool; `finish` converts the others."""
        with self._change:
            self._ending = True
            self._change.notify()

    def run(self) -> None:
        failures = 0
        while not self._ending:
            with self._change:
                if not self._spools:
                    self._change.wait(RETAIN_SECONDS if self._retains else None)
                if 0 < len(self._spools) <= MOST_WAITING and self._load.busy:
                    self._change.wait(BUSY_PAUSE)
                    continue
                spool = self._spools[0] if self._spools else None
            began = time.thread_time()
            if self._attempt(spool):
                failures = 0
                self._rest(time.thread_time() - began)
                continue
            failures += 1
            with self._change:
                self._change.wait(min(LEAST_PAUSE * 2**failures, LONGEST_PAUSE))

    def _rest(self, worked: float) -> None:
        until = time.monotonic() + self._load.rest(worked)
        while not self._ending and self._load.lossy and (left := until - time.monotonic()) > 0:
            with self._change:
                self._change.wait(min(left, BUSY_PAUSE))

    def finish(self) -> None:
        """Convert all remaining spools, in the calling thread; the other one has ended.

        Spools that cannot be converted (`waiting` counts them) stay for the next recorder.
        """
        failures = 0
        while self._spools and failures < LAST_TRIES:
            failures = 0 if self._attempt(self._spools[0]) else failures + 1
            if failures:
                time.sleep(LEAST_PAUSE)

    def _attempt(self, spool: Path | None) -> bool:
        """Convert a spool, and remove old files. False: a system error."""
        try:
            if spool is not None:
                self._convert(spool)
                with self._change:
                    self._spools.popleft()
                    self._known.discard(spool)
            if spool is not None or time.monotonic() - self._retained >= RETAIN_SECONDS:
                self._retain()
        except OSError as error:
            where = error.filename or spool or self._trace
            self._trouble(f"{where}: {error.strerror or error}")
            return False
        self._trouble(None)
        self.steps += 1
        return True

    def _convert(self, spool: Path) -> None:
        if not spool.exists():
            self._warn(f"{spool} was removed before it became Parquet")
            return
        try:
            if spool.suffix == COUNTERS:
                parquet.convert_counters(spool, self._trace, self._file)
            else:
                parquet.convert_records(spool, self._trace, self._file, self._warn)
        except (ValueError, TypeError, KeyError) as error:  # retrying would not help
            self._warn(f"{spool} cannot be read, and is kept as {aside(spool).name}: {error}")
            set_aside(spool)
            return
        remove(spool)

    def _file(self, path: Path, rows: int) -> None:
        self.steps += 1
        self._written(path, rows)

    def _retain(self) -> None:
        self._retained = time.monotonic()
        retain(self._trace, self._keep_ns, self._most_bytes, time.time_ns())
