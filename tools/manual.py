"""Write the manual page and the shells' completions, as a wheel's build does (setup.py).

python tools/manual.py DIRECTORY VERSION    into DIRECTORY/man/man1 and so on, as below /usr/share
"""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
from typer.completion import get_completion_script

from wheeld.cli.app import app

COMPLETIONS = {
    "bash": "bash-completion/completions/wheeld",
    "zsh": "zsh/site-functions/_wheeld",
    "fish": "fish/vendor_completions.d/wheeld.fish",
}
FILES = """\
.TP
/etc/wheeld/NAME.toml
Options of the daemon NAME.
.TP
/run/wheeld/NAME, $XDG_RUNTIME_DIR/wheeld/NAME
Its runtime directory: control socket, doorbells.
.TP
/dev/shm/wheeld-*
Its shared memory.
"""


def escaped(text: str) -> str:
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return re.sub(r"^([.'])", r"\\&\1", text, flags=re.M)


def paragraphs(text: str | None) -> str:
    parts = re.split(r"\n\s*\n", inspect.cleandoc(text or "").replace("\b\n", ""))
    return "\n.PP\n".join(escaped(" ".join(part.split())) for part in parts)


def option(parameter: Any, context: Any) -> str:
    """One option: how it is written, and its help with default and variable."""
    record = parameter.get_help_record(context)
    if record is None:  # hidden
        return ""
    written, text = record
    return f".TP\n\\fB{escaped(written)}\\fR\n{escaped(' '.join(text.split()))}\n"


def sections(command: Any, context: Any) -> Iterator[str]:
    if command.hidden:
        return
    children = getattr(command, "commands", {})
    if context.parent is not None and not children:
        usage = " ".join(command.collect_usage_pieces(context))
        yield f".SS {escaped(f'{context.command_path} {usage}')}\n{paragraphs(command.help)}\n"
        for parameter in command.params:
            yield option(parameter, context)
    for name, child in children.items():
        with typer.Context(child, info_name=name, parent=context) as inner:
            yield from sections(child, inner)


def page(version: str) -> str:
    command = typer.main.get_command(app)
    with typer.Context(command, info_name="wheeld") as context:
        body = "".join(sections(command, context))
    return (
        '.\\" Made by tools/manual.py from the commands.\n'
        f'.TH WHEELD 1 "{DATE}" "wheeld {version}"\n'
        f".SH NAME\nwheeld \\- timer daemon for the processes of one host\n"
        f".SH SYNOPSIS\n.B wheeld\n\\fICOMMAND\\fR [\\fIOPTIONS\\fR]\n"
        f".SH DESCRIPTION\n{paragraphs(DESCRIPTION)}\n.SH COMMANDS\n{body}"
        f".SH FILES\n{FILES}.SH SEE ALSO\n.BR systemd.service (5),\n.BR shm_overview (7)\n"
    )


DATE = "2026-11-24"
DESCRIPTION = """
A daemon keeps the timers of several processes in one hierarchical timing wheel in shared memory.
Its workers schedule, cancel and extend them without a system call, by the Python package
wheeld_client.

This command starts a daemon, looks at it, and ends it. Its exit code is 0 if it did what was asked,
1 if not, which a message says, and 2 if the command line was wrong.
"""


def main(directory: str, version: str) -> None:
    texts = {"man/man1/wheeld.1": page(version)}
    for shell, name in COMPLETIONS.items():
        script = get_completion_script(
            prog_name="wheeld", complete_var="_WHEELD_COMPLETE", shell=shell
        )
        texts[name] = script.rstrip() + "\n"
    for name, text in texts.items():
        path = Path(directory, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


if __name__ == "__main__":
    main(*sys.argv[1:])
