"""`wheeld pipeline report`."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from wheeld_pipeline import session, trace as traces
from wheeld_pipeline.commands.options import Json, Master, Remote, errors_to_exit
from wheeld_pipeline.errors import PipelineError

_SETTINGS = {"spark.sql.shuffle.partitions": "16"}
_PLANNING_ONLY = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}
"""For a Java that hands out work and does little itself: it then does not spend half of the
command's processor time on optimizing code that runs once."""


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command(name="report")(report)


def moment(text: str | None, option: str) -> datetime | None:
    """A point in time as ISO 8601; UTC if it says nothing else."""
    if text is None:
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise PipelineError(
            f"{option} {text}: expected a time such as 2026-03-01 or 2026-03-01T12:30 (UTC)"
        ) from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def settings(trace: str) -> dict[str, str]:
    """Settings of the Spark that makes the report of a trace."""
    return _SETTINGS | (_PLANNING_ONLY if traces.is_local(trace) else {})


def say(text: str) -> None:
    """Progress, for whoever watches."""
    typer.echo(f"report: {text}", err=True)


def report(
    trace: Annotated[str, typer.Argument(help="A trace: the directory of `start --trace`.")],
    out: Annotated[
        Path, typer.Option(help="Directory for page, JSON and tables.", show_default=True)
    ] = Path("wheeld-report"),
    since: Annotated[
        str | None,
        typer.Option(
            "--from", help="Only events from this time on (UTC), such as 2026-03-01T12:30."
        ),
    ] = None,
    until: Annotated[
        str | None, typer.Option("--to", help="Only events before this time (UTC).")
    ] = None,
    master: Master = None,
    remote: Remote = None,
    as_json: Json = False,
) -> None:
    """What a recorded trace says: lateness, timeouts, herds, wake-ups, and which wheel it wants.

    Writes one HTML page that needs nothing else, all numbers as JSON, and the tables as Parquet.
    """
    with errors_to_exit():
        first, last = moment(since, "--from"), moment(until, "--to")
        session.check()
        from wheeld_pipeline.report import write

        say("starting Spark")
        with session.opened(
            "wheeld report", master, remote, settings(trace) if not remote else None
        ) as spark:
            paths = write(spark, trace, out, say, first, last)
        facts = json.loads(paths.json.read_text(encoding="utf-8"))["facts"]
        if as_json:
            typer.echo(json.dumps(facts, indent=1))
            return
        for sentence in facts["verdict"]["sentences"]:
            typer.echo(sentence, err=True)
        for path in (paths.page, paths.json, paths.tables):
            typer.echo(path)
