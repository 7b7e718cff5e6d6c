"""`wheeld pipeline report`."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Annotated

import typer

from wheeld_pipeline.commands.options import Json, errors_to_exit, with_spark
from wheeld_pipeline.commands.readers import EngineChoice, EngineName, opened, say
from wheeld_pipeline.errors import UsageError
from wheeld_pipeline.files import writable
from wheeld_pipeline.session import SparkOptions


def register(app: typer.Typer) -> None:
    app.command(name="report")(report)


def moment(text: str | None, option: str) -> datetime | None:
    """A point in time in ISO 8601; UTC unless it names another zone."""
    if text is None:
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(
            f"{option} {text}: expected a time such as 2026-03-01 or 2026-03-01T12:30 (UTC)"
        ) from None
    return found if found.tzinfo else found.replace(tzinfo=UTC)


@with_spark
def report(
    trace: Annotated[str, typer.Argument(help="A trace: the directory of `start --trace`.")],
    out: Annotated[
        str, typer.Option(help="Directory for page, JSON and tables.", show_default=True)
    ] = "wheeld-report",
    since: Annotated[
        str | None,
        typer.Option(
            "--from", help="Only events from this time on (UTC), such as 2026-03-01T12:30."
        ),
    ] = None,
    until: Annotated[
        str | None, typer.Option("--to", help="Only events before this time (UTC).")
    ] = None,
    incremental: Annotated[
        str | None,
        typer.Option(help="Directory for hourly counts, so that only new hours are read."),
    ] = None,
    note: Annotated[
        list[str] | None,
        typer.Option(help="A sentence for the page's notes, such as the origin of the load."),
    ] = None,
    engine: EngineName = EngineChoice.AUTO,
    as_json: Json = False,
    *,
    spark: SparkOptions,
) -> None:
    """Report on a recorded trace: lateness, timeouts, herds, wake-ups, and advice on the wheel.

    Writes one self-contained HTML page, all numbers as JSON, and the tables as Parquet. This
    process reads up to 20 million events, without Java; Spark reads more, or a trace at a URL. Both
    write the same report.

    Example: wheeld pipeline report /var/lib/wheeld/shop/trace --from 2026-03-01T12:30
    """
    with errors_to_exit():
        first, last = moment(since, "--from"), moment(until, "--to")
        from wheeld_pipeline.report import write

        writable("--out", out)
        if incremental is not None and engine == EngineChoice.AUTO:
            engine = EngineChoice.LOCAL
        with opened(trace, engine, spark) as found:
            paths = write(found, trace, out, say, first, last, incremental, note or ())
        facts = json.loads(paths.json.read_text(encoding="utf-8"))["facts"]
        if as_json:
            typer.echo(json.dumps(facts, indent=1))
            return
        for sentence in facts["verdict"]["sentences"]:
            typer.echo(sentence, err=True)
        for path in (paths.page, paths.json, paths.tables):
            typer.echo(path)
