"""The commands `wheeld top`, `health` and `metrics`, which watch a running daemon."""

from __future__ import annotations

import contextlib
import functools
import json
import re
import threading
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from wheeld.cli.options import Json, Name, RuntimeDir, duration_ns, errors_to_exit, status_of
from wheeld.config import addresses
from wheeld.metrics.jobs import with_jobs
from wheeld.supervisor.health import Health, examine
from wheeld_core import extras, runtime
from wheeld_core.errors import UsageError, WheelError
from wheeld_core.units import duration

SHORTEST_LOOK, LONGEST_LOOK = 0.01, 3600.0


def health(
    name: Name = "default",
    runtime_dir: RuntimeDir = None,
    max_lateness: Annotated[
        str, typer.Option(help="How late a timer may be, such as 50ms.")
    ] = "100ms",
    window: Annotated[str, typer.Option(help="How long to observe, such as 1s.")] = "1s",
    as_json: Json = False,
) -> None:
    """Check that the clock runs and is on time; for systemd, Docker, Kubernetes.

    Exit code 0: it runs, and no timer that fired during --window was later than --max-lateness.
    1: otherwise, or there is no daemon.

    Example: wheeld health --max-lateness 20ms --window 500ms
    """
    with errors_to_exit():
        limit = duration_ns(max_lateness, "--max-lateness")
        seconds = duration_ns(window, "--window") / 1e9
        if seconds > LONGEST_LOOK:
            raise UsageError(f"--window {window}: expected at most 1h")
        runtime.candidates(name, runtime_dir)  # a name that none can have is no ill health
    try:
        first = status_of(name, runtime_dir)
        time.sleep(seconds)
        found = examine(first, status_of(name, runtime_dir), limit)
    except (WheelError, OSError, ValueError) as error:
        found = Health(False, (str(error),), 0, 0)
    if as_json:
        typer.echo(json.dumps(found.as_dict(), indent=1))
    elif found.ok:
        typer.echo(
            f"{name} is healthy: {found.fired:,} fired in {seconds:g} s, at most "
            f"{duration(found.late)} late"
        )
    else:
        typer.echo(f"wheeld: {name} is unhealthy: {'; '.join(found.why)}", err=True)
    raise typer.Exit(0 if found.ok else 1)


def _status(name: str, runtime_dir: Path | None) -> dict[str, Any]:
    return with_jobs(status_of(name, runtime_dir), name, runtime_dir)


def metrics(
    name: Name = "default",
    runtime_dir: RuntimeDir = None,
    listen: Annotated[
        str, typer.Option(help="HOST:PORT to listen on; port 0: any free one.")
    ] = addresses.DEFAULT,
    otlp: Annotated[
        str | None,
        typer.Option(
            metavar="[URL]",
            help="Export to OpenTelemetry instead, at this base URL, such as "
            "http://127.0.0.1:4318; without a URL, the variables OTEL_* "
            "decide.",
        ),
    ] = None,
    once: Annotated[
        bool,
        typer.Option(
            "--once", help="Print the metrics, or export them, once; for `promtool check metrics`."
        ),
    ] = False,
) -> None:
    """Serve a daemon's metrics to Prometheus, or export them, until Ctrl-C.

    It survives restarts of the daemon. It needs the extra `metrics` of the package, with --otlp the
    extra `otel`. The meaning of each metric: docs/metrics.md.

    Example: wheeld metrics --name shop --listen 127.0.0.1:9464
    """
    if otlp is not None:
        _export(name, runtime_dir, otlp, once)
        return
    with errors_to_exit():
        runtime.candidates(name, runtime_dir)  # it may come later, but not under a wrong name
        _check_address(listen)
        try:
            from wheeld.metrics.prometheus import registry, text
            from wheeld.metrics.scrapes import Scrapes
            from wheeld.metrics.server import serve
        except ModuleNotFoundError as error:
            raise WheelError(f"{error}; try {extras.command('metrics')}") from None
        label = Path(name).name
        if once:
            typer.echo(text(registry(_status(name, runtime_dir), label)), nl=False)
            return
        site = Scrapes(functools.partial(_status, name, runtime_dir), label)
        sites = {"--listen": (listen, site)}
        with serve(sites) as (where,), contextlib.suppress(KeyboardInterrupt):
            typer.echo(f"wheeld: metrics of {name} on http://{where}/metrics", err=True)
            threading.Event().wait()


def _check_address(listen: str) -> None:
    try:
        addresses.parse(listen)
    except ValueError as error:
        raise UsageError(f"--listen {listen}: {error}") from None


def _export(name: str, runtime_dir: Path | None, endpoint: str, once: bool) -> None:
    """Export to OpenTelemetry; an empty endpoint means the one of the environment."""
    with errors_to_exit():
        runtime.candidates(name, runtime_dir)
        if endpoint and not re.fullmatch(r"https?://[^/?#\s]+\S*", endpoint):
            raise UsageError(f"--otlp {endpoint}: expected a URL, such as http://127.0.0.1:4318")
        try:
            from wheeld.metrics.otel import Export
        except ModuleNotFoundError as error:
            raise WheelError(f"--otlp: {error}; try {extras.command('otel')}") from None
        if once:
            status_of(name, runtime_dir)  # is it there?
        export = Export(name, functools.partial(_status, name, runtime_dir), endpoint or None)
        try:
            if not once:
                where = endpoint or "where OTEL_EXPORTER_OTLP_ENDPOINT says"
                typer.echo(f"wheeld: metrics of {name} go to {where}", err=True)
                with contextlib.suppress(KeyboardInterrupt):
                    threading.Event().wait()
            elif not export.now():
                raise WheelError("the receiver did not take the metrics: see the message above")
        finally:
            export.close()


def top(
    name: Name = "default",
    runtime_dir: RuntimeDir = None,
    sort: Annotated[
        str, typer.Option(help="Sort by name, pending, scheduled, fired, ring or late.")
    ] = "fired",
    interval: Annotated[str, typer.Option(help="Time between updates, such as 1s.")] = "1s",
    once: Annotated[bool, typer.Option("--once", help="Print one interval and exit.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Like --once, as JSON.")] = False,
) -> None:
    """Show a daemon's activity, live: rates, lateness, workers, groups, pools, full rings.

    Keys: the first letter of a --sort column sorts by it; q or Ctrl-C quits. When the output is not
    a terminal, it prints one interval and exits.

    Example: wheeld top --name shop --sort pending
    """
    from rich.console import Console

    from wheeld.cli import top as shown
    from wheeld.metrics.activity import once as observe

    with errors_to_exit():
        if sort not in shown.SORTS:
            raise UsageError(f"--sort {sort}: expected one of {', '.join(shown.SORTS)}")
        seconds = duration_ns(interval, "--interval") / 1e9
        if not SHORTEST_LOOK <= seconds <= LONGEST_LOOK:
            raise UsageError(f"--interval {interval}: expected 10ms to 1h")
        console = Console(highlight=False)
        with contextlib.suppress(KeyboardInterrupt):
            if not (once or as_json) and console.is_terminal:
                shown.watch(lambda: _status(name, runtime_dir), seconds, sort, console)
                return
            found = observe(lambda: _status(name, runtime_dir), seconds)
            found["workers"] = shown.ordered(found["workers"], sort)
            if as_json:
                typer.echo(json.dumps(found, indent=1))
            else:
                console.print(shown.screen(found, sort))
