"""Writes a report to files, and reads it back."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pandas as pd

from wheeld_pipeline import trace as traces, trace_files
from wheeld_pipeline.errors import PipelineError
from wheeld_pipeline.files import writable
from wheeld_pipeline.report.analysis.analyse import Report, Say, _silent, analysed, plain
from wheeld_pipeline.report.counts.counters import RowWindow
from wheeld_pipeline.report.page import page

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from wheeld_pipeline.report.counts.in_process import LocalEngine
    from wheeld_pipeline.report.counts.on_spark import SparkEngine

FORMAT: Final = 1
PAGE, JSON, TABLES = "report.html", "report.json", "tables"
_TIMES: Final = ("time", "scheduled_from", "scheduled_to")


class ShownReport(Report):
    """A report that a notebook shows as its page."""

    def _repr_html_(self) -> str:
        """The page in a frame, so that its styles do not affect the notebook."""
        frame = 'style="width: 100%; height: 50em; border: 0"'
        return f'<iframe {frame} srcdoc="{escape(page.render(self))}"></iframe>'


@dataclass(frozen=True)
class Paths:
    """The files of a report."""

    page: Path
    """One HTML page that needs nothing else."""
    json: Path
    tables: Path
    """A directory with one Parquet file per table."""


def write(
    spark: SparkSession | None,
    trace: str | Path,
    out: str | Path,
    say: Say | None = None,
    since: datetime | None = None,
    until: datetime | None = None,
    state: str | Path | None = None,
    notes: Sequence[str] = (),
) -> Paths:
    """Read a trace and write its report: a page, JSON, and tables as Parquet.

    Parameters
    ----------
    spark : SparkSession, optional
        Its tasks read the trace; None: this process does, without Spark or Java. Both give the same
        report.
    trace : str or Path
        The directory given to `wheeld start --trace DIR`, or for Spark a URL of one.
    out : str or Path
        Directory for the report; made if missing, an older report in it is replaced.
    say : callable, optional
        Called with a description of each step.
    since, until : datetime, optional
        Only events at or after `since` and before `until`.
    state : str or Path, optional
        A directory in which the counts of hours are kept, so that only new hours are read; see
        `incremental`. Only for the whole trace, in this process.
    notes : sequence of str
        Sentences for the page's notes, before its own.

    Raises
    ------
    PipelineError
        The trace cannot be read, or has no event in that time; or `out` holds something else, or
        is a URL.
    """
    say = say or _silent
    folder = writable("--out", out)
    report = of_trace(spark, trace, say, since, until, state)
    report.notes[:0] = notes
    say("writing the page")
    return save(report, folder)


def of_trace(
    spark: SparkSession | None,
    trace: str | Path,
    say: Say = _silent,
    since: datetime | None = None,
    until: datetime | None = None,
    state: str | Path | None = None,
) -> ShownReport:
    """As `write`, without files."""
    if state is not None and (spark is not None or since is not None or until is not None):
        raise PipelineError(
            "got --incremental together with Spark, --from or --to: the counts of hours are "
            "combined in this process, for the whole trace"
        )
    if since is not None and until is not None and since >= until:
        raise PipelineError(
            f"got --from {since} and --to {until}: expected the first to be earlier"
        )
    say("checking the trace")
    make = partial(_in_process, state=state) if spark is None else partial(_on_spark, spark)
    with traces.reading(trace), make(trace, since, until) as engine:
        report = analysed(engine, say)
    report.facts["trace"] = str(trace)
    return ShownReport(**vars(report))


def _on_spark(
    spark: SparkSession, trace: str | Path, since: datetime | None, until: datetime | None
) -> SparkEngine:
    from wheeld_pipeline.report.counts.on_spark import SparkEngine

    events = traces.read_events(spark, trace)
    counters = traces.read_counters(spark, trace)
    return SparkEngine(
        within(events, since, until),
        counters,
        trace_files.share(trace, since, until),
        _window(trace, since, until),
    )


def _in_process(
    trace: str | Path,
    since: datetime | None,
    until: datetime | None,
    state: str | Path | None = None,
) -> LocalEngine:
    from wheeld_pipeline.report.counts.in_process import LocalEngine

    traces.check_trace(trace)
    files = trace_files.share(trace, since, until)
    if files is None:
        raise PipelineError(
            f"{trace} is a URL: expected a directory, or --engine spark, which reads URLs"
        )
    counters, window = traces.counter_files(trace) or [], _window(trace, since, until)
    if state is not None:
        from wheeld_pipeline.report.counts.incremental import IncrementalEngine

        return IncrementalEngine(traces.event_files(trace) or [], counters, window, state)
    return LocalEngine(files, counters, window)


def _window(trace: str | Path, since: datetime | None, until: datetime | None) -> RowWindow:
    first, last = (None if at is None else round(at.timestamp() * 1e6) for at in (since, until))
    return RowWindow(first, last, traces.runs_cut_short(trace))


def within(rows: DataFrame, since: datetime | None, until: datetime | None) -> DataFrame:
    """Rows of a trace from `since` to before `until`; files of other hours are not read."""
    from pyspark.sql import functions as F

    for moment, late in ((since, False), (until, True)):
        if moment is None:
            continue
        value = F.timestamp_micros(F.lit(round(moment.timestamp() * 1e6)))
        rows = rows.where(F.col("time") < value if late else F.col("time") >= value)
        if "date" in rows.columns:
            day = F.to_date(value)
            rows = rows.where(F.col("date") <= day if late else F.col("date") >= day)
    return rows


def save(report: Report, folder: Path) -> Paths:
    """Write a report's files; each appears by rename."""
    paths = Paths(folder / PAGE, folder / JSON, folder / TABLES)
    paths.tables.mkdir(parents=True, exist_ok=True)
    for name, table in report.tables.items():
        target = paths.tables / f"{name}.parquet"
        _replace(target, lambda part, table=table: table.to_parquet(part, index=False))
    _replace(paths.json, lambda part: part.write_text(as_json(report), encoding="utf-8"))
    _replace(paths.page, lambda part: part.write_text(page.render(report), encoding="utf-8"))
    return paths


def _replace(target: Path, make: Any) -> None:
    part = target.with_name(f".{target.name}.part")
    make(part)
    os.replace(part, target)


def as_json(report: Report) -> str:
    tables = {name: plain(table.to_dict("records")) for name, table in report.tables.items()}
    content = {
        "format": FORMAT,
        "facts": plain(report.facts),
        "notes": report.notes,
        "tables": tables,
    }
    return json.dumps(content, allow_nan=False) + "\n"


def load(folder: str | Path) -> ShownReport:
    """Read back a report that `write` wrote.

    Raises
    ------
    PipelineError
        There is none, or it is of another version.
    """
    path = Path(folder) / JSON
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise PipelineError(
            f"{folder} is no report: expected {JSON} in it; make it with `wheeld pipeline report`"
        ) from error
    except ValueError as error:
        raise PipelineError(f"{path} is not a report: {error}; make it again") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        got = content.get("format") if isinstance(content, dict) else type(content).__name__
        raise PipelineError(f"{path} has format {got}, expected {FORMAT}: make the report again")
    tables = {}
    for name, rows in content["tables"].items():
        table = pd.DataFrame(rows)
        for column in (column for column in _TIMES if column in table):
            table[column] = pd.to_datetime(table[column], utc=True, format="ISO8601")
        tables[name] = table
    return ShownReport(content["facts"], tables, content["notes"])
