"""The commands `wheeld health` and `wheeld metrics`: is it well, and its figures for others."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from wheeld.cli.options import Json, Name, RuntimeDir, errors_to_exit
from wheeld.health import Health, examine
from wheeld.listing import duration
from wheeld_core import runtime
from wheeld_core.control import ask
from wheeld_core.control_messages import Request
from wheeld_core.errors import WheelError
from wheeld_core.units import parse_duration

ANSWER_SECONDS = 5.0


def _status(name: str, runtime_dir: Path | None) -> dict[str, Any]:
    directory = runtime.find(name, runtime_dir)
    found: dict[str, Any] = ask(directory, Request.STATUS, ANSWER_SECONDS)["status"]
    return found


def health(
    name: Name = "default",
    runtime_dir: RuntimeDir = None,
    max_lateness: Annotated[
        str, typer.Option(help="Latest that a timer may be, such as 50ms.")
    ] = "100ms",
    window: Annotated[str, typer.Option(help="How long to look, such as 1s.")] = "1s",
    as_json: Json = False,
) -> None:
    """Say whether the clock serves, and is on time: for systemd, Docker, Kubernetes.

    The exit code is 0 if it does, and nothing that fired meanwhile was later than --max-lateness;
    else 1, also if there is no daemon.

    Example: wheeld health --max-lateness 20ms --window 500ms
    """
    with errors_to_exit():
        limit, seconds = parse_duration(max_lateness), parse_duration(window) / 1e9
    try:
        first = _status(name, runtime_dir)
        time.sleep(seconds)
        found = examine(first, _status(name, runtime_dir), limit)
    except (WheelError, OSError, ValueError) as error:
        found = Health(False, (str(error),), 0, 0)
    if as_json:
        typer.echo(json.dumps(found.as_dict(), indent=1))
    elif found.ok:
        typer.echo(
            f"{name}: well; {found.fired:,} fired in {window}, {duration(found.late)} late at most"
        )
    else:
        typer.echo(f"wheeld: {name} is not well: {'; '.join(found.why)}", err=True)
    raise typer.Exit(0 if found.ok else 1)


def metrics(
    name: Name = "default",
    runtime_dir: RuntimeDir = None,
    listen: Annotated[
        str, typer.Option(help="ADDRESS:PORT to serve on, such as 127.0.0.1:9464; port 0: any.")
    ] = "127.0.0.1:9464",
    once: Annotated[
        bool,
        typer.Option("--once", help="Print the metrics and end; for `promtool check metrics`."),
    ] = False,
) -> None:
    """Serve a daemon's metrics to Prometheus until Ctrl-C, also while it is restarted.

    Needs `pip install 'wheeld[metrics]'`. What each metric means: docs/metrics.md.

    Example: wheeld metrics --name shop --listen 127.0.0.1:9464
    """
    with errors_to_exit():
        try:
            from wheeld.metrics.prometheus import registry, serve, text
        except ModuleNotFoundError as error:
            raise WheelError(f"{error}; try `pip install 'wheeld[metrics]'`") from None
        known = registry(lambda: _status(name, runtime_dir))
        if once:
            _status(name, runtime_dir)
            typer.echo(text(known), nl=False)
            return
        with serve(known, listen) as where, contextlib.suppress(KeyboardInterrupt):
            typer.echo(f"wheeld: metrics of {name} on http://{where}/metrics", err=True)
            threading.Event().wait()
