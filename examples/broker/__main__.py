"""The command: `python -m examples.broker`."""

from __future__ import annotations

import typer

from examples.broker import client_commands, run_commands

app = typer.Typer(
    help="A log broker of several processes, on wheeld's purgatory, pool and Intake.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for command in (
    run_commands.start,
    run_commands.demo,
    run_commands.load,
    client_commands.produce,
    client_commands.fetch,
    client_commands.tail,
    client_commands.join,
    client_commands.status,
):
    app.command()(command)

if __name__ == "__main__":
    app()
