"""wheeld's data pipeline on Spark: workloads, traces, reports, timers that outgrow a host.

Everything that needs Spark is loaded when it is first used: importing this package is cheap and
works without Spark.
"""

from wheeld_pipeline.commands import app
from wheeld_pipeline.errors import PipelineError
from wheeld_pipeline.trace_schema import (
    COUNTER_COLUMNS,
    COUNTERS_FOLDER,
    EVENT_COLUMNS,
    EVENTS,
    EVENTS_FOLDER,
    Column,
)

__all__ = [
    "COUNTERS_FOLDER",
    "COUNTER_COLUMNS",
    "EVENTS",
    "EVENTS_FOLDER",
    "EVENT_COLUMNS",
    "Column",
    "PipelineError",
    "app",
]
