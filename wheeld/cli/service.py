"""Makes a daemon a service of systemd: the files, where they go, and the commands after that.

`wheeld install-service` prints this plan, or carries it out. The files are installed with the
package (`share/wheeld/systemd`); a checkout has them in `systemd/`.
"""

from __future__ import annotations

import difflib
import importlib.metadata
import json
import os
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from wheeld.cli.options import Json, errors_to_exit
from wheeld_core import runtime
from wheeld_core.errors import WheelError

UNIT: Final = "wheeld@.service"
USER_UNIT: Final = "wheeld-user@.service"
SOCKET: Final = "wheeld@.socket"
USER_SOCKET: Final = "wheeld-user@.socket"
OPTIONS_FILE: Final = "default.toml"
ACCOUNT: Final = "wheeld.sysusers"
_CHECKOUT: Final = Path(__file__).parents[2] / "systemd"
_PROGRAM: Final = "/usr/local/bin/wheeld"
"""The path in the unit files, to be replaced by the program's."""
_HIDDEN: Final = ("home", "root", "run/user", "tmp", "var/tmp")
"""Directories that the system's unit cannot see (ProtectHome=, PrivateTmp=)."""


@dataclass(frozen=True)
class PlannedFile:
    path: Path
    text: str
    is_users: bool = False
    """Once it exists it belongs to the administrator and is never replaced."""

    @property
    def state(self) -> str:
        """`new`, `unchanged`, `kept` (an existing file of the administrator) or `differs`."""
        try:
            found = self.path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return "new"
        return "kept" if self.is_users else "unchanged" if found == self.text else "differs"


@dataclass(frozen=True)
class Installation:
    files: tuple[PlannedFile, ...]
    commands: tuple[str, ...]
    """Commands that the user runs after the files are written."""
    notes: tuple[str, ...] = ()


def plan(name: str, program: str, *, for_user: bool, root: Path = Path("/")) -> Installation:
    """The plan for running the daemon `name` by the command at `program`, as a service of the
    system or `for_user`. `root` is the root directory of an image or a test.

    `WheelError`: the name is not allowed in the name of a unit, or the unit could not see the
    program.
    """
    runtime.check_name(name)
    return _users_plan(name, program) if for_user else _systems_plan(name, program, root)


def _systems_plan(name: str, program: str, root: Path) -> Installation:
    if program.startswith(tuple(f"/{folder}/" for folder in _HIDDEN)):
        raise WheelError(
            f"the program is {program}, which the service cannot see (ProtectHome=, PrivateTmp=): "
            "install wheeld into a virtual environment elsewhere, such as /opt/wheeld, and run "
            "/opt/wheeld/bin/wheeld install-service"
        )
    etc = root / "etc"
    files = (
        PlannedFile(etc / "sysusers.d/wheeld.conf", _text(ACCOUNT)),
        PlannedFile(etc / "systemd/system" / UNIT, _unit(UNIT, program)),
        PlannedFile(etc / "systemd/system" / SOCKET, _text(SOCKET)),
        PlannedFile(etc / f"wheeld/{name}.toml", _text(OPTIONS_FILE), is_users=True),
    )
    commands = (
        "systemd-sysusers wheeld.conf",
        "systemctl daemon-reload",
        f"systemctl enable --now wheeld@{name}",
    )
    return Installation(files, commands)


def _users_plan(name: str, program: str) -> Installation:
    home = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    files = (
        PlannedFile(home / "systemd/user" / UNIT, _unit(USER_UNIT, program)),
        PlannedFile(home / "systemd/user" / SOCKET, _text(USER_SOCKET)),
        PlannedFile(home / f"wheeld/{name}.toml", _text(OPTIONS_FILE), is_users=True),
    )
    commands = ("systemctl --user daemon-reload", f"systemctl --user enable --now wheeld@{name}")
    notes = (
        "logind removes the shared memory of a user who has logged out from everywhere: set "
        "RemoveIPC=no in /etc/systemd/logind.conf, or `loginctl enable-linger`.",
    )
    return Installation(files, commands, notes)


def _unit(name: str, program: str) -> str:
    return _text(name).replace(_PROGRAM, program)


def _text(name: str) -> str:
    for path in _places(name):
        if path.is_file():
            return path.read_text(encoding="utf-8")
    raise WheelError(f"this installation of wheeld has no {name}: install it again")


def _places(name: str) -> Iterator[Path]:
    """Where a file of the service may be; a checkout comes first, because its files match the
    code."""
    yield _CHECKOUT / name
    for file in importlib.metadata.files("wheeld") or ():
        if file.parts[-3:] == ("wheeld", "systemd", name):
            yield Path(str(file.locate()))


def install_service(
    name: Annotated[str, typer.Option(help="Name of the daemon.")] = "default",
    for_user: Annotated[
        bool, typer.Option("--user/--system", help="Make a user service, or a system service.")
    ] = False,
    write: Annotated[
        bool, typer.Option("--write", help="Write the files instead of only printing them.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Replace a unit that differs; the options file stays.")
    ] = False,
    root: Annotated[Path, typer.Option(help="Write below this directory, as for an image.")] = Path(
        "/"
    ),
    as_json: Json = False,
) -> None:
    """Set up a daemon as a systemd service: print the files, or write them.

    Without --write it changes nothing: it prints each file, and the commands to run afterwards.
    With --write it writes the files; it never runs the commands. If a unit exists and differs, it
    stays and the exit code is 1, unless --force is given. The options file is never replaced.

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
    """Path of the command that the unit starts: next to this Python, else found on the PATH."""
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
