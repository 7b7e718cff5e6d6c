"""The commands `wheeld list` and `wheeld config`: the daemons of this host, and their options."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import typer

from wheeld.cli.options import Json, Name, RuntimeDir, errors_to_exit, show
from wheeld.config.settings import OPTIONS
from wheeld_core import runtime, trust
from wheeld_core.control import ask
from wheeld_core.control.messages import Request
from wheeld_core.errors import DaemonNotRunning, WheelError

ANSWER_SECONDS: Final = 2.0
_SHOWN: Final = (
    "name", "pid", "clock_ok", "uptime_s", "pending", "capacity", "shared_bytes", "directory",
)  # fmt: skip


def found(runtime_dir: Path | None) -> Iterator[dict[str, Any]]:
    """Each daemon in the usual places, or below the given directory, ready for JSON: `name`,
    `directory` and `trouble`. If `trouble` is None, also figures of its status; otherwise it says
    why the daemon was not asked, or did not answer."""
    for base in [runtime_dir] if runtime_dir else runtime.base_directories():
        for directory in sorted(base.iterdir()) if base.is_dir() else []:
            if directory.is_dir() and _may_serve(directory):
                yield _one(directory)


def _may_serve(directory: Path) -> bool:
    return not os.access(directory, os.X_OK) or (directory / runtime.CONTROL_SOCKET).exists()


def _one(directory: Path) -> dict[str, Any]:
    known = {"name": directory.name, "directory": str(directory), "trouble": None}
    try:
        if not os.access(directory, os.X_OK):
            raise PermissionError("it runs as another user")
        trust.check(directory)
        status = ask(directory, Request.STATUS, ANSWER_SECONDS)["status"]
    except DaemonNotRunning:
        return {**known, "trouble": "it does not answer; `wheeld start` takes over what it left"}
    except (WheelError, OSError, ValueError) as error:
        return {**known, "trouble": str(error)}
    return {**known, **{key: status[key] for key in _SHOWN}, "workers": len(status["workers"])}


def list_daemons(runtime_dir: RuntimeDir = None, as_json: Json = False) -> None:
    """List the daemons of this host that this user can see, including those that do not answer.

    It searches the default directories, so it does not find embedded daemons. The exit code is 0
    even if there are none.

    Example: wheeld list --json
    """
    with errors_to_exit():
        daemons = list(found(runtime_dir))
    if as_json:
        typer.echo(json.dumps(daemons, indent=1))
    elif not daemons:
        typer.echo("no daemons; start one with `wheeld start`")
    else:
        _print(daemons)


def _print(daemons: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    table = Table("name", "pid", "workers", "pending", "up", "state", "directory")
    for one in daemons:
        if one["trouble"]:
            row = ["", "", "", "", one["trouble"]]
        else:
            state = "running" if one["clock_ok"] else "CLOCK STALLED"
            pending = f"{one['pending']:,} of {one['capacity']:,}"
            row = [str(one["pid"]), str(one["workers"]), pending, f"{one['uptime_s']:.0f} s", state]
        table.add_row(*map(escape, [one["name"], *row, one["directory"]]))
    Console(highlight=False).print(table)


def config(name: Name = "default", runtime_dir: RuntimeDir = None, as_json: Json = False) -> None:
    """Print the options that a running daemon uses, from all sources.

    The output is TOML for `wheeld start --config`; --json prints the same as JSON. Some of them
    change when the daemon gets SIGHUP.

    Example: wheeld config --name shop > shop.toml
    """
    with errors_to_exit():
        directory = runtime.find(name, runtime_dir)
        options = ask(directory, Request.STATUS, ANSWER_SECONDS)["status"].get("config")
        if options is None:
            raise WheelError("this daemon runs an older version; try `wheeld restart`")
    show(options, as_json, toml(options))


def toml(options: dict[str, Any]) -> str:
    """Options as a TOML file; those without a value are comments."""
    lines = []
    for key, value in options.items():
        default = OPTIONS[key].default if key in OPTIONS else None
        if value is None:
            lines.append(f"# {key} is not set")
            continue
        usual = value == (list(default) if isinstance(default, tuple) else default)
        # Values of these types are spelled alike in TOML and in JSON.
        lines.append(f"{key} = {json.dumps(value, ensure_ascii=False)}{'  # default' * usual}")
    return "\n".join(lines)
