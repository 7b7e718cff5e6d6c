"""The command `wheeld install-service`."""

from __future__ import annotations

import difflib
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from wheeld.cli.options import Json, errors_to_exit
from wheeld.service import Installation, PlannedFile, plan
from wheeld_core.errors import WheelError


def install_service(
    name: Annotated[str, typer.Option(help="Name of the daemon.")] = "default",
    for_user: Annotated[
        bool, typer.Option("--user/--system", help="Make a user service, or a system service.")
    ] = False,
    write: Annotated[
        bool, typer.Option("--write", help="Write the files instead of only printing them.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Replace a unit that differs; the options stay.")
    ] = False,
    root: Annotated[Path, typer.Option(help="Write below this directory, as for an image.")] = Path(
        "/"
    ),
    as_json: Json = False,
) -> None:
    """Set up a daemon as a systemd service: print the files, or write them.

    Without --write it changes nothing: it prints each file and the commands to run then. With
    --write it writes the files; it never runs the commands. If a unit exists and differs, it stays
    and the exit code is 1, unless --force is given. The file of options is never replaced.

    Examples: `wheeld install-service`, `sudo /opt/wheeld/bin/wheeld install-service --write`,
    `wheeld install-service --user --write`.
    """
    with errors_to_exit():
        made = plan(name, _program(), for_user=for_user, root=root)
        found = [(file, file.state) for file in made.files]
        if write:
            _write(found, force)
        if as_json:
            typer.echo(json.dumps(_as_json(made, found), indent=1))
        else:
            typer.echo("\n".join(_lines(made, found, write)))


def _program() -> str:
    """Path of the command that the unit starts: beside this Python, else found on the PATH."""
    beside = Path(sys.executable).with_name("wheeld")
    found = str(beside) if os.access(beside, os.X_OK) else shutil.which("wheeld")
    if found is None:
        raise WheelError(
            f"found no command `wheeld` beside {sys.executable} or on the PATH: install the "
            "package `wheeld` with this Python"
        )
    return os.path.abspath(found)


def _write(found: list[tuple[PlannedFile, str]], force: bool) -> None:
    differing = [file for file, state in found if state == "differs"]
    if differing and not force:
        text = "\n".join(_difference(file) for file in differing)
        raise WheelError(f"not written: the existing unit differs (--force replaces it):\n{text}")
    for file, state in found:
        if state in {"new", "differs"}:
            file.path.parent.mkdir(parents=True, exist_ok=True)
            file.path.write_text(file.text, encoding="utf-8")


def _difference(file: PlannedFile) -> str:
    now = file.path.read_text(encoding="utf-8").splitlines()
    return "\n".join(
        difflib.unified_diff(now, file.text.splitlines(), str(file.path), "new", lineterm="", n=1)
    )


def _as_json(made: Installation, found: list[tuple[PlannedFile, str]]) -> dict[str, Any]:
    files = [{"path": str(file.path), "state": state, "text": file.text} for file, state in found]
    return {"files": files, "commands": made.commands, "notes": made.notes}


def _lines(made: Installation, found: list[tuple[PlannedFile, str]], written: bool) -> list[str]:
    lines = []
    for file, state in found:
        done = written and state in {"new", "differs"}
        lines.append(f"# {'written' if done else state}: {file.path}")
        if not written and state in {"new", "differs"}:
            lines += ["", *(f"    {line}".rstrip() for line in file.text.splitlines()), ""]
    lines += ["", "Then:", *(f"    {command}" for command in made.commands)]
    lines += [f"Note: {note}" for note in made.notes]
    return lines if written else [*lines, "", "Nothing was changed; --write writes the files."]
