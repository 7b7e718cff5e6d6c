"""Engines read a trace for a report: Spark, or this process. Both count by the same SQL."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from wheeld_pipeline.report.counts import wheels
from wheeld_pipeline.report.counts.counters import Counters, RowWindow


class Engine(ABC):
    window: RowWindow
    counters: Counters | None = None
    """None: the trace has none."""

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *exception: object) -> None:
        return

    @abstractmethod
    def ask(self, sql: str) -> Any:
        """The answer to SQL about {events}, as pandas has it. Both understand the SQL: DuckDB has
        Spark's functions as macros (`trace_files.connection`)."""

    @abstractmethod
    def scan(self, step_seconds: int, tried: wheels.Candidates) -> None:
        """Count everything; the functions below read the counts."""

    @abstractmethod
    def counted(self) -> dict[str, Any]:
        """The result of `cube.tables`, over all parts."""

    @abstractmethod
    def replayed(self) -> Any:
        """The result of `tried_wheels.try_block`, over all blocks, as pandas has it."""

    def period(self) -> tuple[int, int]:
        """First and last microsecond of the events; no events: 0, 0."""
        found = self.ask(
            "SELECT coalesce(min(unix_micros(time)), 0) AS a, "
            "coalesce(max(unix_micros(time)), 0) AS b FROM {events}"
        )
        return int(found["a"][0]), int(found["b"][0])
