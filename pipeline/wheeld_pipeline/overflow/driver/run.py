"""Run an overflow until it is told to stop, and say how it goes."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from wheeld_pipeline.errors import PipelineError
from wheeld_pipeline.overflow.driver import query
from wheeld_pipeline.overflow.driver.query import Batch, Plan

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LINE_SECONDS: Final = 5.0
LOOK_SECONDS: Final = 0.2


class Account:
    """What the batches of this run did, added up; and lines about it.

    Parameters
    ----------
    say : callable
        Takes a line.
    """

    def __init__(self, say: Callable[[str], object]) -> None:
        self.totals: dict[str, int] = {}
        self.batches = 0
        self.pending = self.remembered = 0
        self._say = say
        self._late_us: dict[str, int] | None = None
        self._last_line = -LINE_SECONDS
        self._troubles: set[str] = set()
        self._lock = threading.Lock()

    def note(self, batch: Batch) -> None:
        """Called by the query's thread after each batch."""
        with self._lock:
            self.batches += 1
            for name, count in batch.totals.items():
                self.totals[name] = self.totals.get(name, 0) + count
            self.pending, self.remembered = batch.pending, batch.remembered
            self._late_us = batch.late_us or self._late_us
            new = set(batch.troubles) - self._troubles
            over = self._troubles - set(batch.troubles)
            self._troubles = set(batch.troubles)
        for trouble in sorted(new):
            self._say(f"overflow: {trouble}; its timers will be handed out again later")
        if over and not self._troubles:
            self._say("overflow: all daemons answer again")

    def line(self, now: bool = False) -> None:
        """Say how it goes, every few seconds."""
        if not now and time.monotonic() < self._last_line + LINE_SECONDS:
            return
        self._last_line = time.monotonic()
        with self._lock:
            names = ("handed", "expired", "rejected", "refused", "withdrawn")
            counts = [f"{self.totals.get(name, 0):,} {name}" for name in names]
            late = ""
            if self._late_us is not None:
                p50, worst = (self._late_us[name] / 1000 for name in ("p50", "max"))
                late = f", lateness p50 {p50:.1f} ms, max {worst:.1f} ms"
            held = f"{self.pending:,} pending, {self.remembered:,} remembered"
            self._say(f"overflow: {self.batches} batches, {held}, {', '.join(counts)}{late}")


def run(spark: SparkSession, plan: Plan, say: Callable[[str], object]) -> Account:
    """Run until SIGINT or SIGTERM; without a trigger, until all that is there now is done.

    Raises
    ------
    PipelineError
        The query ended by an error; what is in the checkpoint goes on at the next start.
    """
    account = Account(say)
    asked = threading.Event()
    with _signals(asked):
        running = query.start(spark, plan, account.note)
        try:
            while not asked.is_set() and running.isActive:
                with suppress(KeyboardInterrupt):
                    running.awaitTermination(LOOK_SECONDS)  # type: ignore[arg-type]
                account.line()
        except Exception as error:
            raise PipelineError(f"the overflow ended: {query.brief(error)}") from None
        finally:
            spark.sparkContext.setLogLevel("OFF")  # the batch that is cut short complains at length
            with suppress(Exception):
                running.stop()
            spark.sparkContext.setLogLevel("ERROR")
        account.line(now=True)
    return account


class _signals:
    """SIGINT and SIGTERM ask for the end; only where this is the main thread."""

    def __init__(self, asked: threading.Event) -> None:
        self._asked = asked
        self._before: dict[int, Any] = {}

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._ask)

    def _ask(self, number: int, frame: FrameType | None) -> None:
        self._asked.set()

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
