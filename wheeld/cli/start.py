"""The command `wheeld start`, and the application that all commands are added to.

Programs wait for a start, so this module loads no other command.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from wheeld import __version__
from wheeld.cli.options import errors_to_exit, with_bare, wrap_help_once
from wheeld.config.options import Option
from wheeld.config.settings import OPTIONS
from wheeld.supervisor.launch import launch

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
_TYPES: Final = {"switch": bool, "directory": Path, "pools": list[str]}


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"wheeld {__version__}")
        raise typer.Exit


@app.callback()
def wheeld(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Print the version."),
    ] = False,
) -> None:
    """A timer daemon for the processes of one host."""


def _parameter(option: Option) -> inspect.Parameter:
    """An option as a parameter of a command."""
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
    """A command that takes the options of a daemon in place of its `**given`."""
    own = inspect.signature(command, eval_str=True)
    parameters = [*map(_parameter, OPTIONS.values()), *list(own.parameters.values())[:-1]]
    vars(command)["__signature__"] = own.replace(parameters=parameters)
    return command


@app.command(cls=with_bare({o.flag: o.bare for o in OPTIONS.values() if o.bare}))
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
    parent_pid: Annotated[
        int | None, typer.Option(help="Stop when this process dies.", hidden=True)
    ] = None,
    remove_base: Annotated[
        bool, typer.Option("--remove-base", help="Remove the runtime dir's parent.", hidden=True)
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print warnings only.")] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Only check that it could start.", hidden=True)
    ] = False,
    **given: Any,
) -> None:
    """Run a daemon in the foreground until SIGTERM, Ctrl-C or `wheeld stop`.

    SIGPWR stops it and keeps its memory, like `wheeld stop --keep`. SIGHUP reloads the environment
    and the TOML file.

    Each option of the daemon can also be set in the environment (WHEELD_CAPACITY=...) or in the
    TOML file (capacity = ...). The command line wins over the environment, and that over the file.

    Example: wheeld start --name shop --capacity 4000000 --metrics 127.0.0.1:9464
    """
    given["pools"] = given["pools"] or None
    if quiet:
        given["log_level"] = "warning"
    with errors_to_exit():
        launch(
            given,
            config,
            parent_pid=parent_pid,
            remove_base=remove_base,
            fresh=fresh,
            check=check,
        )


wrap_help_once(app)
