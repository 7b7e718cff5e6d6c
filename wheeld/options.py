"""Options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Name = Annotated[
    str, typer.Option(envvar="WHEELD_NAME", help="Name of the daemon, or its runtime directory.")
]
RuntimeDir = Annotated[
    Path | None,
    typer.Option(envvar="WHEELD_RUNTIME_DIR", help="Directory that holds the runtime directory."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
