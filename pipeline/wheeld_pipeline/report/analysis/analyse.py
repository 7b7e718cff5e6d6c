"""From a trace to a report: numbers and tables, no files.

It takes two scans: one of everything, and one of the few parts with herds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pandas as pd

from wheeld_pipeline.errors import PipelineError
from wheeld_pipeline.report.analysis import advice, figures, verdict
from wheeld_pipeline.report.counts import bins, herds, wheels
from wheeld_pipeline.report.counts.columns import TICKS, WHEEL
from wheeld_pipeline.report.counts.engine import Engine

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from wheeld_pipeline.trace_files import TraceFiles

HERDS: Final = 20
_STEPS: Final = ((300, 1), (3000, 10), (25 * 3600, 60), (5 * 86400, 300), (32 * 86400, 1800))
"""Pairs: a trace of up to this many seconds, and the length of its steps of time in seconds."""
_LONGEST_STEP: Final = 3600
Say = Callable[[str], None]


@dataclass
class Report:
    """The figures of a trace."""

    facts: dict[str, Any]
    """Single numbers; all can be written as JSON."""
    tables: dict[str, Any]
    """pandas DataFrames by name; see docs/report.md."""
    notes: list[str] = field(default_factory=list)
    """Notes for the reader: what is missing, what is estimated."""


def _silent(_: str) -> None:
    """Nobody watches."""


def step_seconds(seconds: float) -> int:
    return next((step for limit, step in _STEPS if seconds <= limit), _LONGEST_STEP)


def analyse(
    events: DataFrame,
    counters: DataFrame | None = None,
    say: Say = _silent,
    files: TraceFiles | None = None,
) -> Report:
    """Compute everything that a report has.

    Parameters
    ----------
    events : DataFrame
        See `wheeld_pipeline.trace.read_events`.
    counters : DataFrame, optional
        See `wheeld_pipeline.trace.read_counters`; without it, figures from the daemon's counters
        are left out.
    say : callable, optional
        Called with a description of each step before it starts.
    files : TraceFiles, optional
        See `wheeld_pipeline.trace_files.share`: the same rows as `events`, several times faster.

    Raises
    ------
    PipelineError
        There is not one event.
    """
    from wheeld_pipeline.report.counts.on_spark import SparkEngine

    with SparkEngine(events, counters, files) as engine:
        return analysed(engine, say)


def analysed(engine: Engine, say: Say = _silent) -> Report:
    """Compute everything that a report has; `engine` does the long work.

    Raises
    ------
    PipelineError
        There is not one event.
    """
    return _Analysis(engine, say).report()


class _Analysis:
    def __init__(self, engine: Engine, say: Say) -> None:
        self.engine, self.say = engine, say
        self.facts: dict[str, Any] = {}
        self.tables: dict[str, Any] = {}
        self.notes: list[str] = []

    def report(self) -> Report:
        self._read_counters()
        first, last = self._period()
        self.step = step_seconds((last - first) / 1e6)
        self.tried = wheels.candidates(self.wheel["tick_ns"], self.wheel["wheel_size"])
        self.say("counting all events")
        self.engine.scan(self.step, self.tried)
        counted = self._count()
        self._replay(counted)
        self._daemon()
        self._notes()
        self.facts["verdict"] = verdict.verdict(self.facts, self.tables)
        return Report(self.facts, self.tables, self.notes)

    def _read_counters(self) -> None:
        self.say("reading the daemon's counters")
        counters = self.engine.counters
        found = None if counters is None else counters.settings()
        self.settings = found if found is not None and len(found) else None
        if self.settings is None:
            self.notes.append(
                "The trace has no counters of the daemon: wake-ups, pools and peaks are left "
                "out, and the report assumes a wheel with a tick of 1 ms and 64 buckets per "
                "level."
            )
            self.wheel: dict[str, Any] = {"tick_ns": 1_000_000, "wheel_size": 64, "capacity": None}
            return
        sorts = self.settings.groupby(["tick_ns", "wheel_size"])["wakes"].sum()
        tick_ns, wheel_size = sorts.idxmax()
        self.wheel = {
            "tick_ns": int(tick_ns),
            "wheel_size": int(wheel_size),
            "capacity": int(self.settings["capacity"].max()),
        }
        if len(sorts) > 1:
            self.notes.append(
                "The wheels of this trace differ in tick or size; herds and advice use the "
                f"busiest one, {int(tick_ns) / 1e6:g} ms and {int(wheel_size)} buckets."
            )

    def _period(self) -> tuple[int, int]:
        if self.settings is not None:
            return int(self.settings["began_us"].min()), int(self.settings["ended_us"].max())
        return self.engine.period()

    def _count(self) -> figures.Counted:
        counted = figures.Counted(**self.engine.counted())
        if not len(counted.wheels):
            raise PipelineError(
                "no events: expected at least one row in the trace's events; widen "
                "--from and --to, or wait until the daemon has had a timer"
            )
        self.tables |= {
            "minutes": figures.by_step(counted, self.step),
            "workers": figures.by_worker(counted),
            "delays": figures.by_delay(counted),
            "lateness": figures.lateness_histogram(counted),
        }
        self._head(counted)
        self._slots(counted)
        return counted

    def _head(self, counted: figures.Counted) -> None:
        own, minutes = counted.wheels, self.tables["minutes"]
        first, last = -int(own["first_low"].max()), int(own["last_us"].max())
        totals = figures.totals(counted)
        ended = totals["expired"] + totals["cancelled"]
        late = figures.lateness_of(counted.late_by_step)
        self.seconds = max((last - first) / 1e6, 1e-6)
        self.facts |= {
            "from": _iso(first),
            "to": _iso(last),
            "seconds": self.seconds,
            "step_seconds": self.step,
            "rows": int(counted.counts["n"].sum()),
            "events": totals,
            "lost": figures.lost(counted),
            "open": figures.open_timers(counted),
            "hosts": sorted(set(own["host"])),
            "daemons": sorted(set(own["daemon"])),
            "runs": sorted(set(own["run"])),
            "workers": len(self.tables["workers"]),
            "lateness_ns": dict(zip(figures.LATENESS_COLUMNS, late, strict=True)),
            "lateness_error": bins.LATENESS_ERROR,
            "timeout_rate": totals["expired"] / ended if ended else None,
            "cancel_rate": totals["cancelled"] / ended if ended else None,
            "pending_max": int(minutes["pending_max"].max()),
            "wheel": self.wheel,
        }

    def _daemon(self) -> None:
        counters = self.engine.counters
        if counters is None or self.settings is None:
            return
        wakes = counters.wakes(self.step)
        self.tables |= {
            "full_rings": counters.full_rings(),
            "wakes": wakes,
            "pools": counters.pools(self.step),
        }
        wheels_seconds = ((self.settings["ended_us"] - self.settings["began_us"]) / 1e6).sum()
        total, before = int(wakes["wakes"].sum()), int(self.settings["wakes_before"].sum())
        fired = int(wakes["fired"].sum())
        names = ("scheduled", "rescheduled", "cancelled", "expired", "ended", "lost")
        self.facts |= {
            "peak_per_second": counters.peaks(),
            "wakes": {
                "total": total,
                "per_second": (total - before) / wheels_seconds if wheels_seconds else None,
                "timers_per_wake": fired / total if total else None,
                "longest_oversleep_ns": int(self.settings["wake_late_ns"].max()),
                "most_run_delay_ns": int(self.settings["run_delay_ns"].max()),
            },
            "daemon_account": {name: int(wakes[name].sum()) for name in names},
            "clock_restarts": int(self.settings["restarts"].sum()),
            "complete": bool(self.settings["last"].all()),
        }

    def _slots(self, counted: figures.Counted) -> None:
        found = counted.wheels
        scheduled = self.facts["events"]["scheduled"]
        whole = not (self.engine.window.since_us or self.engine.window.cut)
        known = whole and "scheduled" not in self.facts["lost"]
        fresh, most = figures.slots(counted) if known else (None, None)
        self.facts["found"] = int(found["found"].sum())
        self.facts["missed_ticks"] = int(found["missed"].sum())
        self.facts["slots"] = {
            "first_uses": fresh,
            "timers_per_slot": scheduled / fresh if fresh else None,
            "most_used": most,
            "reused_share": 1 - fresh / scheduled if known and scheduled else None,
        }

    def _replay(self, counted: figures.Counted) -> None:
        self.say("replaying the timers on other wheels")
        tried = self.tried
        found = self.engine.replayed()
        timers = self.facts["events"]["scheduled"]
        options = advice.table(found, tried, self.seconds, timers)
        found_herds = advice.herds(found, tried, HERDS)
        self.say("finding the workers behind the herds")
        late = self.facts["lateness_ns"]["max"] or 0.0
        made = herds.makers(found_herds, tried, late, self.engine.ask)
        for frame in (found_herds, made):
            frame.insert(0, "time", pd.to_datetime(frame["tick_end_us"], unit="us", utc=True))
        self.tables |= {
            "candidates": options,
            "herds": found_herds.drop(columns=list(WHEEL)),
            "herd_makers": made,
            "herd_sizes": advice.herd_sizes(found),
        }
        short = advice.short_delay_ns(counted.waits)
        self.facts["advice"] = plain(advice.choose(options, short, self.facts["pending_max"]))

    def _notes(self) -> None:
        lost = self.facts["events"]["lost"]
        if lost:
            named = ", ".join(f"{n:,} {event}" for event, n in self.facts["lost"].items())
            self.notes.append(
                f"The trace lost {lost:,} events ({named}) because its ring was full: the counts "
                f"here lack them. A larger `wheeld start --trace-ring` keeps them."
            )
        if self.facts.get("complete") is False:
            self.notes.append(
                "At least one daemon of this trace had not stopped when it was read: its last "
                "minute may be missing."
            )
        if ticks := self.facts["events"][TICKS]:
            self.notes.append(
                f"{ticks:,} expirations were ticks of periodic timers: they are no timeouts, and "
                f"in the replay they are due but never cascade."
            )
        if self.facts["open"] > 0:
            self.notes.append(
                f"{self.facts['open']:,} timers were still armed at the end; the replay does not "
                f"have them."
            )


def plain(value: Any) -> Any:
    """Convert numbers of numpy and pandas to Python's, and NaN to None, for JSON."""
    if isinstance(value, dict):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, pd.Timestamp):
        return value.isoformat()
    if isinstance(value, float) and not np.isfinite(value):
        return None
    return value


def _iso(micros: int) -> str:
    return str(pd.Timestamp(micros, unit="us", tz="UTC").isoformat(timespec="milliseconds"))
