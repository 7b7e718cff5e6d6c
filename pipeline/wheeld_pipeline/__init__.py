"""wheeld's data pipeline on Spark: workloads, traces, reports, timers that outgrow a host.

Everything that needs Spark is loaded when it is first used: importing this package is cheap and
works without Spark.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wheeld_core.progress import show_progress
from wheeld_core.trace_schema import (
    COUNTER_COLUMNS,
    COUNTERS_FOLDER,
    EVENT_COLUMNS,
    EVENTS,
    EVENTS_FOLDER,
    Column,
)
from wheeld_pipeline.errors import PipelineError

if TYPE_CHECKING:
    import typer


def command_line() -> typer.Typer:
    """The commands `wheeld pipeline ...`; loads typer, which the recorder does not need."""
    from wheeld_pipeline.commands import app

    return app


__all__ = [
    "COUNTERS_FOLDER",
    "COUNTER_COLUMNS",
    "EVENTS",
    "EVENTS_FOLDER",
    "EVENT_COLUMNS",
    "Column",
    "PipelineError",
    "command_line",
    "show_progress",
]
