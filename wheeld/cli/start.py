"""The application that all commands are added to, and the description of `wheeld start`.

The description is for --help, the manual page and the shells' completion;
wheeld/supervisor/launch.py parses the command line and runs the daemon.
"""

from __future__ import annotations

import importlib.metadata
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from typer.core import TyperCommand

from wheeld.cli.options import wrap_help_once
from wheeld.config.options import Option
from wheeld.config.settings import OPTIONS
from wheeld.supervisor import launch

HELP: Final = ("-h", "--help")
app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": [*HELP]},
)
_TYPES: Final = {"switch": bool, "directory": Path, "file": Path, "pools": list[str]}


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"wheeld {importlib.metadata.version('wheeld')}")
        raise typer.Exit


@app.callback()
def wheeld(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """A timer daemon for the processes of one host.

    Exit code 2 means, for every command, that the command line is wrong and nothing was done.
    """


def _parameter(option: Option) -> inspect.Parameter:
    declared = typer.Option(
        option.flag,
        help=option.help + (" SIGHUP reloads it." if option.live else ""),
        show_default=option.shown_default or False,
        metavar=option.metavar,
        rich_help_panel=option.section,
    )
    kind: Any = _TYPES.get(option.kind, str)
    annotation = Annotated[kind | None, declared]
    keyword = inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter(option.key, keyword, default=None, annotation=annotation)


def _with_options(command: Callable[..., None]) -> Callable[..., None]:
    """A command in which the options of a daemon replace `**given`."""
    own = inspect.signature(command, eval_str=True)
    parameters = [*map(_parameter, OPTIONS.values()), *list(own.parameters.values())[:-1]]
    vars(command)["__signature__"] = own.replace(parameters=parameters)
    return command


class _Start(TyperCommand):
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parses only requests for help, and lines that the shell is completing."""
        if ctx.resilient_parsing or set(args) & set(HELP):
            return super().parse_args(ctx, args)
        ctx.obj = args
        return []

    def invoke(self, ctx: Any) -> None:
        launch.start(ctx.obj)


@app.command(cls=_Start)
@_with_options
def start(
    *,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Discard the timers that a killed daemon left.")
    ] = False,
    config: Annotated[
        Path | None,
        typer.Option(help="TOML file.", show_default="/etc/wheeld/NAME.toml, if it exists"),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print warnings only.")] = False,
    **given: Any,
) -> None:
    """Run a daemon in the foreground until SIGTERM, Ctrl-C or `wheeld stop`.

    SIGPWR stops it and keeps its memory, like `wheeld stop --keep`. SIGHUP reloads the environment
    and the TOML file.

    Each option of the daemon can also be set in the environment (WHEELD_CAPACITY=...) or in the
    TOML file (capacity = ...). The command line overrides the environment, and the environment
    overrides the file.

    Example: wheeld start --name shop --capacity 4000000 --metrics 127.0.0.1:9464
    """


wrap_help_once(app)
