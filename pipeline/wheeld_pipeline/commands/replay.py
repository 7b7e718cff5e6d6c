"""`wheeld pipeline replay`."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Annotated

import typer

from wheeld_pipeline.commands.options import Json, errors_to_exit


def register(app: typer.Typer) -> None:
    app.command()(replay)


def replay(
    workload: Annotated[Path, typer.Argument(help="A workload's Parquet: a file or a folder.")],
    name: Annotated[
        str,
        typer.Option(
            envvar="WHEELD_NAME", help="Name of the daemon, or path of its runtime directory."
        ),
    ] = "default",
    speed: Annotated[
        str, typer.Option(help="Speed of arrivals relative to the recording; or max.")
    ] = "1",
    workers: Annotated[int, typer.Option(help="Worker processes.")] = 2,
    payloads: Annotated[bool, typer.Option(help="Also schedule the payloads.")] = True,
    worker: Annotated[
        str, typer.Option(help="Prefix of the workers' names: WORKER-0, WORKER-1 ...")
    ] = "replay",
    runtime_dir: Annotated[
        Path | None,
        typer.Option(
            envvar="WHEELD_RUNTIME_DIR", help="Directory that holds the daemon's runtime directory."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Replay a workload against a running daemon, and account for each request.

    A request is a timer, scheduled with its timeout when it arrives, and cancelled when it is done
    earlier. Exit code 1: a request was lost, doubled, early or damaged.

    Example: wheeld pipeline replay workload --name shop --speed max
    """
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends like Ctrl-C: nothing stays
    with errors_to_exit():
        from wheeld_core.progress import show_progress
        from wheeld_pipeline.replay import run, source

        run.check(speed, workers)
        rows = source.look(workload).rows
        with show_progress("replay", rows, "requests") as tell:
            outcome = run.replay(
                workload,
                name,
                speed=speed,
                workers=workers,
                payloads=payloads,
                worker=worker,
                runtime_dir=runtime_dir,
                tell=tell,
            )
        typer.echo(json.dumps(outcome.as_json(), indent=1) if as_json else outcome.text())
        if outcome.faults:
            raise typer.Exit(1)
