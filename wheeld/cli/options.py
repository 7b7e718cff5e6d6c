"""Options that several commands share, and how errors become exit codes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from wheeld.supervisor.launch import EXPECTED
from wheeld_core.units import parse_duration

Name = Annotated[
    str, typer.Option(envvar="WHEELD_NAME", help="Name of the daemon, or its runtime directory.")
]
RuntimeDir = Annotated[
    Path | None,
    typer.Option(envvar="WHEELD_RUNTIME_DIR", help="Directory that holds the runtime directory."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@contextmanager
def errors_to_exit() -> Iterator[None]:
    """Print an expected error as one line and exit with 1."""
    try:
        yield
    except EXPECTED as error:
        typer.echo(f"wheeld: {error}", err=True)
        raise typer.Exit(1) from None


def duration_ns(text: str, what: str = "duration") -> int:
    """Nanoseconds of "250ms" or "2h"; a bare number is seconds. `what` names it in the error."""
    try:
        return parse_duration(text if text[-1:].isalpha() else f"{text}s")
    except ValueError as error:
        raise ValueError(f"{what} {text!r}: {error}") from None
