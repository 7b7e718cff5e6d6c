"""Runs a daemon in this process: for `wheeld start`, and embedded.

Embedded daemons pass their options as JSON:

    python -m wheeld --private '{"name": "x", "capacity": 1000, "parent_pid": 7}'

Typer describes `wheeld start` (wheeld/cli/start.py), but does not parse it: what Typer loads would
stay in the daemon, 15 MB beside its own 11 MB.
"""

from __future__ import annotations

import argparse
import asyncio
import functools
import json
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from wheeld.config import settings as configuration
from wheeld.processes import titles
from wheeld.resources import handover
from wheeld.supervisor import logs
from wheeld.supervisor.server import Supervisor
from wheeld_core.errors import UsageError, WheelError

EXPECTED: Final = (WheelError, PermissionError, ValueError)
"""Errors that a daemon can end with, reported in one line."""


def exit_code(error: Exception) -> int:
    return 2 if isinstance(error, UsageError) else 1


def launch(
    given: dict[str, Any],
    file: Path | None = None,
    *,
    parent_pid: int | None = None,
    parent_known: int = 0,
    remove_base: bool = False,
    fresh: bool = False,
    check: bool = False,
) -> None:
    """Run a daemon until it ends, or until this process executes the program again. `given` and
    `file` are as in `config.load`, `parent_pid` to `fresh` as in `Supervisor`. With `check` it only
    prints a description of the daemon. It raises the errors in `EXPECTED`."""
    loaded = configuration.load(given, file)
    if not check:
        titles.set_title(loaded.name, "supervisor")
        logs.set_up(loaded.log_level, loaded.log_format, loaded.name)
    for note in loaded.notes():
        logging.getLogger("wheeld").info(note)
    if check:
        print(handover.introduce(loaded))
        return
    again = functools.partial(configuration.load, given, file)
    supervisor = Supervisor(
        loaded, parent_pid, remove_base, fresh, again, handover.received(), parent_known
    )
    asyncio.run(supervisor.run())
    if supervisor.successor is not None:
        logs.give_back()
        supervisor.successor.execute()


def parser() -> argparse.ArgumentParser:
    """The options of `wheeld start`; it reports mistakes and exits with 2."""
    found = argparse.ArgumentParser(
        "wheeld start",
        usage="wheeld start [OPTIONS]; `wheeld start --help` lists them",
        add_help=False,
        allow_abbrev=False,
    )
    for key, option in configuration.OPTIONS.items():
        on, _, off = option.flag.partition("/")  # "--reserve/--no-reserve"
        if option.kind == "switch":
            found.add_argument(on, dest=key, action="store_true", default=None)
            if off:
                found.add_argument(off, dest=key, action="store_false", default=None)
        elif option.kind == "pools":
            found.add_argument(on, dest=key, action="append")
        elif option.bare:
            found.add_argument(on, dest=key, nargs="?", const=option.bare)
        else:
            found.add_argument(on, dest=key)
    for flag in ("--fresh", "--remove-base", "--quiet", "--check"):
        found.add_argument(flag, action="store_true")
    found.add_argument("--config", type=Path)
    found.add_argument("--parent-pid", type=int)
    return found


def start(words: Sequence[str]) -> None:
    found = vars(parser().parse_args(words))
    given = {key: found.pop(key) for key in configuration.OPTIONS}
    if found.pop("quiet"):
        given["log_level"] = "warning"
    try:
        launch(given, found.pop("config"), **found)
    except EXPECTED as error:
        print(f"wheeld: {error}", file=sys.stderr)
        raise SystemExit(exit_code(error)) from None


def main() -> None:
    """Run the embedded daemon whose options are the second argument."""
    options = json.loads(sys.argv[2])
    options.setdefault("log_level", "warning")
    flags = {name: options.pop(name, False) for name in ("remove_base", "fresh")}
    try:
        launch(
            options,
            parent_pid=options.pop("parent_pid"),
            parent_known=options.pop("parent_known", 0),
            check=handover.CHECK_OPTION in sys.argv[3:],
            **flags,
        )
    except EXPECTED as error:
        print(f"wheeld: {error}", file=sys.stderr)
        raise SystemExit(exit_code(error)) from None
