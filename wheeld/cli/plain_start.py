"""Reads the usual forms of `wheeld start` without the command-line library.

What that library loads would stay in the daemon for good: a third of its private memory. It is
still used for everything else: --help, an unknown option, a value that is missing or looks wrong.
Both read a command line alike: tests/daemon/test_plain_start.py.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from wheeld.config.options import Option
from wheeld.config.settings import OPTIONS
from wheeld.supervisor.launch import EXPECTED, exit_code, launch

OWN: Final = (
    *(
        Option(key=key, kind="switch", help="")
        for key in ("fresh", "remove_base", "quiet", "check")
    ),
    Option(key="config", kind="directory", help=""),
    Option(key="parent_pid", kind="integer", help=""),
)
"""Options of the command that are not the daemon's."""


def read(words: Sequence[str]) -> dict[str, Any] | None:
    """Parse the arguments of `wheeld.cli.start.start`; None: leave them to the library."""
    by_flag, off = dict[str, Option](), set[str]()
    for option in (*OPTIONS.values(), *OWN):
        on, _, no = option.flag.partition("/")  # "--reserve/--no-reserve"
        by_flag |= dict.fromkeys([on, no] if no else [on], option)
        off.add(no)
    found: dict[str, Any] = dict.fromkeys(OPTIONS)
    found |= {option.key: False if option.kind == "switch" else None for option in OWN}
    rest = list(reversed(words))
    while rest:
        flag, has_value, value = rest.pop().partition("=")
        known = by_flag.get(flag)
        if known is None or (known.kind == "switch" and has_value):
            return None
        if known.kind == "switch":
            found[known.key] = flag not in off
            continue
        if not has_value:
            value = rest.pop() if rest and not rest[-1].startswith("-") else known.bare
        if not value or (known in OWN and known.kind == "integer" and not value.isdecimal()):
            return None  # the library says what is wrong
        kinds = {"directory": Path, **({"integer": int} if known in OWN else {})}
        made = kinds.get(known.kind, str)(value)
        found[known.key] = [*(found["pools"] or ()), made] if known.kind == "pools" else made
    return found


def run(given: dict[str, Any]) -> None:
    """As `wheeld.cli.start.start`."""
    own = {option.key: given.pop(option.key) for option in OWN}
    if own.pop("quiet"):
        given["log_level"] = "warning"
    try:
        launch(given, own.pop("config"), **own)
    except EXPECTED as error:
        print(f"wheeld: {error}", file=sys.stderr)
        raise SystemExit(exit_code(error)) from None


def command(words: Sequence[str]) -> Callable[[], None] | None:
    """A function that runs that daemon; None: the library has to parse the command."""
    if "_WHEELD_COMPLETE" in os.environ:
        return None
    given = read(words)
    return None if given is None else lambda: run(given)
