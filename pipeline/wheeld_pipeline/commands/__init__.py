"""The commands `wheeld pipeline ...`: thin wrappers of plain functions, one module each.

They load Spark when they run, not when they are imported.
"""

from __future__ import annotations

import typer

from wheeld_pipeline.commands import compare, generate, overflow, replay, report

app = typer.Typer(
    help="Workloads, recorded traces and reports, on Spark.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
for module in (generate, replay, report, compare, overflow):
    module.register(app)
