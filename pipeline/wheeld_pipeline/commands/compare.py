"""`wheeld pipeline compare`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wheeld_pipeline import session
from wheeld_pipeline.commands.options import Json, Master, Remote, errors_to_exit
from wheeld_pipeline.commands.report import say, settings

if TYPE_CHECKING:
    from wheeld_pipeline.report import Report


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command(name="compare")(compare)


def _report(source: str, folder: Path, master: str | None, remote: str | None) -> Report:
    """The report in a directory; of a trace it is made first."""
    from wheeld_pipeline.report import load, write

    if (Path(source) / "report.json").exists() or not (Path(source) / "events").exists():
        return load(source)
    say(f"{source} is a trace: making its report")
    with session.opened(
        "wheeld compare", master, remote, settings(source) if not remote else None
    ) as spark:
        write(spark, source, folder, say)
    return load(folder)


def compare(
    first: Annotated[str, typer.Argument(help="A report's directory, or a trace: before.")],
    second: Annotated[str, typer.Argument(help="The other: after.")],
    out: Annotated[
        Path, typer.Option(help="Directory for page and JSON.", show_default=True)
    ] = Path("wheeld-compare"),
    names: Annotated[
        str, typer.Option(help="Names for the two.", show_default=True)
    ] = "before,after",
    master: Master = None,
    remote: Remote = None,
    as_json: Json = False,
) -> None:
    """Two reports side by side: both curves in one plot, and a table of differences."""
    with errors_to_exit():
        session.check()
        from wheeld_pipeline.report import compare as put_together, write_comparison

        called = names.split(",")
        if len(called) != 2 or not all(called):
            raise ValueError(f"--names {names}: expected two names, as before,after")
        reports = [
            _report(source, out / f"report-{place}", master, remote)
            for source, place in ((first, "first"), (second, "second"))
        ]
        found = put_together(reports[0], reports[1], (called[0], called[1]))
        page = write_comparison(found, out)
        if as_json:
            typer.echo(json.dumps(found.as_json(), indent=1))
            return
        typer.echo(page)
        typer.echo(out / "compare.json")
