"""Chooses what reads a trace: this process, or Spark."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Final

import typer

from wheeld_pipeline import session, trace as traces, trace_files
from wheeld_pipeline.errors import UsageError
from wheeld_pipeline.session import SparkOptions

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

MOST_ROWS: Final = 20_000_000
"""Up to this number of events, this process is faster than Spark; docs/report.md has the
figures."""
_SETTINGS: Final = {"spark.sql.shuffle.partitions": "16"}
_PLANNING_ONLY: Final = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}
"""For a JVM that only distributes work: otherwise it spends half of the command's CPU time on
optimizing code that runs once."""


class EngineChoice(StrEnum):
    AUTO = "auto"
    LOCAL = "local"
    SPARK = "spark"


EngineName = Annotated[
    EngineChoice,
    typer.Option(
        help=f"Read the trace by local (this process), spark, or auto: local up to "
        f"{MOST_ROWS // 10**6} million events."
    ),
]


def say(text: str) -> None:
    typer.echo(f"report: {text}", err=True)


@contextmanager
def opened(trace: str, engine: EngineChoice, spark: SparkOptions) -> Iterator[SparkSession | None]:
    """Open the Spark session that reads a trace; None: this process reads it.

    Raises
    ------
    PipelineError
        There is no trace, or no event in it, which is checked before Spark starts.
    """
    if engine == EngineChoice.LOCAL and spark.is_given:
        raise UsageError("got --engine local and options of Spark: expected only one of them")
    traces.check_trace(trace)
    if _is_local(trace, engine, spark):
        yield None
        return
    say("starting Spark")
    with session.opened("wheeld report", spark, settings(trace)) as found:
        yield found


def _is_local(trace: str, engine: EngineChoice, spark: SparkOptions) -> bool:
    if engine != EngineChoice.AUTO:
        return engine == EngineChoice.LOCAL
    files = trace_files.share(trace)
    return files is not None and files.rows <= MOST_ROWS and not spark.is_given


def settings(trace: str) -> dict[str, str]:
    return _SETTINGS | (_PLANNING_ONLY if traces.is_local(trace) else {})
