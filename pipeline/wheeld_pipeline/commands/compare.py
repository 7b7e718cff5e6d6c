"""`wheeld pipeline compare`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wheeld_pipeline import trace as traces
from wheeld_pipeline.commands.options import Json, errors_to_exit, with_spark
from wheeld_pipeline.commands.readers import EngineChoice, EngineName, opened, say
from wheeld_pipeline.errors import UsageError
from wheeld_pipeline.files import on_disk, writable
from wheeld_pipeline.session import SparkOptions

if TYPE_CHECKING:
    from wheeld_pipeline.report import Report


def register(app: typer.Typer) -> None:
    app.command(name="compare")(compare)


def _report(source: str, folder: Path, engine: EngineChoice, spark: SparkOptions) -> Report:
    """The report in a directory; for a trace, the report is made first."""
    from wheeld_pipeline.report import load, write

    if traces.is_local(source):
        place_ = on_disk("the report or trace", source)
        if (place_ / "report.json").exists() or not (place_ / "events").exists():
            return load(place_)
    say(f"{source} is a trace: making its report")
    with opened(source, engine, spark) as found:
        write(found, source, folder, say)
    return load(folder)


@with_spark
def compare(
    first: Annotated[str, typer.Argument(help="The first: a report's directory, or a trace.")],
    second: Annotated[str, typer.Argument(help="The second, likewise.")],
    out: Annotated[
        str, typer.Option(help="Directory for page and JSON.", show_default=True)
    ] = "wheeld-compare",
    names: Annotated[
        str, typer.Option(help="Names for the two.", show_default=True)
    ] = "before,after",
    engine: EngineName = EngineChoice.AUTO,
    as_json: Json = False,
    *,
    spark: SparkOptions,
) -> None:
    """Compare two reports: both curves in one plot, and a table of differences.

    Example: wheeld pipeline compare report-monday report-tuesday --names monday,tuesday
    """
    with errors_to_exit():
        from wheeld_pipeline.report import compare as put_together, write_comparison

        folder = writable("--out", out)
        called = names.split(",")
        if len(called) != 2 or not all(called):
            raise UsageError(f"--names {names}: expected two names, as before,after")
        reports = [
            _report(source, folder / f"report-{place}", engine, spark)
            for source, place in ((first, "first"), (second, "second"))
        ]
        found = put_together(reports[0], reports[1], (called[0], called[1]))
        page = write_comparison(found, folder)
        if as_json:
            typer.echo(json.dumps(found.as_json(), indent=1))
            return
        typer.echo(page)
        typer.echo(folder / "compare.json")
