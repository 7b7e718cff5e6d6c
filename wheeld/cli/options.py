"""Options that several commands share, and how errors become exit codes."""

from __future__ import annotations

import inspect
import itertools
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from wheeld.supervisor.launch import EXPECTED, exit_code
from wheeld_core import _native, runtime
from wheeld_core.control import ask
from wheeld_core.control.messages import Request
from wheeld_core.errors import UsageError
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
    """Print an expected error as one line; exit with 2 if an option is wrong, else with 1."""
    try:
        yield
    except EXPECTED as error:
        typer.echo(f"wheeld: {error}", err=True)
        raise typer.Exit(exit_code(error)) from None


def show(found: Any, as_json: bool, text: str) -> None:
    typer.echo(json.dumps(found, indent=1) if as_json else text)


def wrap_help_once(app: typer.Typer) -> None:
    for each in app.registered_commands:
        paragraphs = inspect.cleandoc(getattr(each.callback, "__doc__", "") or "").split("\n\n")
        each.help = "\n\n".join(" ".join(text.split()) for text in paragraphs)


def duration_ns(text: str, what: str = "duration") -> int:
    """Nanoseconds of "250ms" or "2h"; a bare number is seconds. `what` names the option in the
    error."""
    try:
        return parse_duration(text)
    except ValueError as error:
        raise UsageError(f"{what} {text!r}: {error}") from None


def status_of(name: str, runtime_dir: Path | None, seconds: float = 5.0) -> dict[str, Any]:
    """Ask a daemon for its status, with a timeout: Prometheus waits 10 s for a whole scrape."""
    directory = runtime.find(name, runtime_dir)
    found: dict[str, Any] = ask(directory, Request.STATUS, seconds)["status"]
    return found


def check_text(option: str, text: str | None) -> None:
    """`UsageError`: it is not UTF-8, as the bytes of a command line may be anything."""
    if text is not None and not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise UsageError(f"{option} {text!r}: expected text in UTF-8") from None


def check_key(key: str | None, option: str = "--key") -> None:
    """`UsageError`: no timer has such a key."""
    check_text(option, key)
    if key is not None:
        try:
            _native.encoded_key(key)
        except ValueError as error:
            raise UsageError(f"{option}: {error}") from None


def with_bare(bare: Mapping[str, str]) -> type[TyperCommand]:
    """A class of commands with options whose value may be omitted, and then is the given one. Typer
    has no such options."""

    class Command(TyperCommand):
        def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
            found = []
            for word, following in itertools.zip_longest(args, args[1:], fillvalue="-"):
                found += [word]
                if word in bare and following.startswith("-"):
                    found += [bare[word]]
            return super().parse_args(ctx, found)

    return Command
