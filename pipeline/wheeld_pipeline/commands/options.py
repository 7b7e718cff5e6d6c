"""What the pipeline's commands share: options, and errors as one line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from wheeld_client import WheelError

Master = Annotated[
    str | None,
    typer.Option(help="A Spark cluster, such as spark://host:7077.", show_default="local"),
]
Remote = Annotated[str | None, typer.Option(help="A Spark Connect server, such as sc://host.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


@contextmanager
def errors_to_exit() -> Iterator[None]:
    """Print an expected error as one line and exit with 1; Ctrl-C exits with 130."""
    try:
        yield
    except (WheelError, OSError, ValueError) as error:
        typer.echo(f"wheeld: {error}", err=True)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
