"""Run an overflow until it is told to stop, and report its progress."""

from __future__ import annotations

import signal
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from wheeld_pipeline.errors import PipelineError, brief
from wheeld_pipeline.overflow.driver import metrics, query
from wheeld_pipeline.overflow.driver.commands import OBSERVED
from wheeld_pipeline.overflow.driver.query import Batch, Plan

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

LINE_SECONDS: Final = 5.0
LOOK_SECONDS: Final = 0.2


class Account:
    """Adds up the work of this run's batches, and reports it in lines.

    Parameters
    ----------
    say : callable
        Takes a line.
    tell : callable, optional
        Gets the result of `facts`, in place of lines.
    file : Path, optional
        Is replaced with each line, for Prometheus: see `metrics`.
    """

    def __init__(
        self,
        say: Callable[[str], object],
        tell: Callable[[dict[str, Any]], object] | None = None,
        file: Path | None = None,
    ) -> None:
        self.totals: dict[str, int] = {}
        self.batches = self.commands = 0
        self.pending = self.remembered = 0
        self._say, self._tell, self._file = say, tell, file
        self._shards: dict[int, Counter[str]] = {}
        self._last: Batch | None = None
        self._late_us: dict[str, int] | None = None
        self._finished = -1
        self._spark: dict[str, float] = {}
        self._last_line = -LINE_SECONDS
        self._troubles: set[str] = set()
        self._lock = threading.Lock()

    def note(self, batch: Batch) -> None:
        with self._lock:
            self.batches += 1
            self._last = batch
            for name, count in batch.totals.items():
                self.totals[name] = self.totals.get(name, 0) + count
            for result in batch.shards:
                self._shards.setdefault(result.shard, Counter()).update(result.counts)
            self.pending, self.remembered = batch.pending, batch.remembered
            self._late_us = batch.late_us or self._late_us
            new = set(batch.troubles) - self._troubles
            over = self._troubles - set(batch.troubles)
            self._troubles = set(batch.troubles)
        for lost in batch.lost:
            self._say(f"overflow: {lost}")
        for trouble in sorted(new):
            self._say(f"overflow: {trouble}; its timers will be handed out again later")
        if over and not self._troubles:
            self._say("overflow: all daemons answer again")

    def hear(self, progress: Iterable[Mapping[str, Any]]) -> None:
        """Take in Spark's progress of recent batches, in order, some of them repeatedly."""
        with self._lock:
            for batch in progress:
                if batch["batchId"] > self._finished:
                    self._finished = batch["batchId"]
                    observed = batch["observedMetrics"].get(OBSERVED)
                    self.commands += observed["commands"] if observed else 0
                    self._spark = {name: ms / 1000 for name, ms in batch["durationMs"].items()}

    def facts(self) -> dict[str, Any]:
        """Counts since the start, in total and for each shard; `seconds` belong to the last batch,
        and so do `spark_seconds`, Spark's parts of it."""
        with self._lock:
            results = () if self._last is None else self._last.shards
            shards = [
                {
                    "shard": result.shard,
                    "pending": result.pending,
                    "remembered": result.remembered,
                    "in_wheel": result.in_wheel,
                    **{name: self._shards[result.shard][name] for name in result.counts},
                    "seconds": round(sum(result.seconds.values()), 3),
                    "trouble": result.trouble,
                }
                for result in results
            ]
            return {
                "batches": self.batches,
                "commands": self.commands,
                "spark_seconds": self._spark,
                "pending": self.pending,
                "remembered": self.remembered,
                **self.totals,
                "lateness_us": self._late_us,
                "shards": shards,
            }

    def line(self, now: bool = False, running: StreamingQuery | None = None) -> None:
        """Report the progress every few seconds, with that of the running query."""
        if not now and time.monotonic() < self._last_line + LINE_SECONDS:
            return
        self._last_line = time.monotonic()
        if running is not None:
            self.hear(running.recentProgress)
        facts = self.facts()
        if self._file is not None:
            metrics.write(self._file, facts)
        if self._tell is not None:
            self._tell(facts)
        else:
            self._say(_text(facts))


def _text(facts: dict[str, Any]) -> str:
    names = ("handed", "expired", "rejected", "refused", "withdrawn")
    counts = ", ".join(f"{facts.get(name, 0):,} {name}" for name in names)
    held = f"{facts['pending']:,} pending, {facts['remembered']:,} remembered"
    line = f"overflow: {facts['batches']} batches, {held}, {counts}"
    if facts["lateness_us"] is not None:
        p50, worst = (facts["lateness_us"][name] / 1000 for name in ("p50", "max"))
        line += f", lateness p50 {p50:.1f} ms, max {worst:.1f} ms"
    if facts["shards"]:
        slow = max(facts["shards"], key=lambda shard: shard["seconds"])
        line += f"; slowest is shard {slow['shard']}: {slow['seconds']:.2f} s in the last batch"
    return line


def run(
    spark: SparkSession,
    plan: Plan,
    say: Callable[[str], object],
    tell: Callable[[dict[str, Any]], object] | None = None,
    file: Path | None = None,
) -> Account:
    """Run until SIGINT or SIGTERM; without a trigger, until all present commands are done.

    `say`, `tell` and `file` are as in `Account`.

    Raises
    ------
    PipelineError
        The query ended with an error; the next start continues from the checkpoint.
    """
    account = Account(say, tell, file)
    asked = threading.Event()
    with _signals(asked):
        running = query.start(spark, plan, account.note)
        try:
            while not asked.is_set() and running.isActive:
                with suppress(KeyboardInterrupt):
                    running.awaitTermination(LOOK_SECONDS)  # type: ignore[arg-type]
                account.line(running=running)
        except Exception as error:
            raise PipelineError(f"the overflow ended: {brief(error)}") from None
        finally:
            spark.sparkContext.setLogLevel("OFF")  # the batch that is cut short complains at length
            with suppress(Exception):
                running.stop()
            spark.sparkContext.setLogLevel("ERROR")
        account.line(now=True, running=running)
    return account


@contextmanager
def _signals(asked: threading.Event) -> Iterator[None]:
    """SIGINT and SIGTERM request the end, if this is the main thread."""
    mine = threading.current_thread() is threading.main_thread()
    numbers = (signal.SIGINT, signal.SIGTERM) if mine else ()
    before = {number: signal.signal(number, lambda *_: asked.set()) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
