"""The command `wheeld`: every subcommand is added here."""

from __future__ import annotations

import importlib.metadata
from typing import Annotated

import typer

from wheeld.cli import (
    checks as checks_cli,
    daemons as daemons_cli,
    ending as ending_cli,
    events as events_cli,
    jobs as jobs_cli,
    listing,
    pending,
    service as service_cli,
    shell as shell_cli,
    watching as watching_cli,
)
from wheeld.cli.options import (
    Json,
    Name,
    RuntimeDir,
    check_key,
    duration_ns,
    errors_to_exit,
    show,
    status_of,
    with_bare,
    wrap_help_once,
)
from wheeld.cli.start import app as app
from wheeld.demo import command as demo_command
from wheeld.embedding import advance_ns
from wheeld.metrics.pending import TimerFilter, search
from wheeld_client import Observer
from wheeld_core.errors import UsageError

NO_CLOCK = 3
"""Exit code of `status` when the daemon answers but its clock makes no progress."""


@app.command()
def status(name: Name = "default", runtime_dir: RuntimeDir = None, as_json: Json = False) -> None:
    """Show a daemon's state, counters and workers.

    Exit code 0: the daemon works. 1: there is none, or it does not answer. 3: it answers, but its
    clock makes no progress, so that timers are late.

    Example: wheeld status --name shop --json
    """
    with errors_to_exit():
        found = status_of(name, runtime_dir, 10.0)
    show(found, as_json, listing.status_text(found))
    if not found["clock_ok"]:
        raise typer.Exit(NO_CLOCK)


@app.command()
def advance(
    duration: Annotated[
        str, typer.Argument(help="Such as 250ms, 1.5s or 2h; a number is seconds.")
    ],
    name: Name = "default",
    runtime_dir: RuntimeDir = None,
    as_json: Json = False,
) -> None:
    """Advance a daemon's virtual clock; returns once all timers that fell due were delivered.

    It prints the new virtual time.

    Example: wheeld advance 30s --name test
    """
    with errors_to_exit():
        now = advance_ns(name, duration_ns(duration), runtime_dir)
    show({"now_ns": now}, as_json, f"{now} ns")


@app.command()
def inspect(
    name: Name = "default",
    runtime_dir: RuntimeDir = None,
    worker: Annotated[str | None, typer.Option(help="Show only timers of this worker.")] = None,
    to: Annotated[
        str | None, typer.Option(help="Show only timers for this worker or group:NAME.")
    ] = None,
    cookie: Annotated[
        list[int] | None,
        typer.Option(help="Show only timers with this cookie; may be given several times.", min=0),
    ] = None,
    key: Annotated[
        str | None, typer.Option(help="Show only the timer of this key, a text.")
    ] = None,
    prefix: Annotated[
        str | None, typer.Option(help="Show only timers whose keys are texts that begin with this.")
    ] = None,
    due_before: Annotated[
        str | None, typer.Option(help="Show only timers due within this time, such as 10s.")
    ] = None,
    due_after: Annotated[
        str | None, typer.Option(help="Show only timers due after this time, such as 5m.")
    ] = None,
    limit: Annotated[
        int, typer.Option(min=0, help="Show at most this many, soonest first; 0: all.")
    ] = 100,
    payload: Annotated[bool, typer.Option("--payload", help="Show payloads, too.")] = False,
    format: Annotated[
        str | None, typer.Option(help="table, json or csv.", show_default="table")
    ] = None,
    as_json: Json = False,
) -> None:
    """List pending timers, soonest first. It only reads; the daemon and its workers are not
    disturbed.

    Example: wheeld inspect --worker web-1 --due-before 10s --payload
    """
    with errors_to_exit():
        if format not in (None, *pending.FORMATS):
            raise UsageError(f"--format {format}: expected one of {', '.join(pending.FORMATS)}")
        if as_json and format not in (None, "json"):
            raise UsageError(f"--json and --format {format} exclude each other")
        wanted = TimerFilter(
            worker,
            to,
            cookie or (),
            None if due_before is None else duration_ns(due_before, "--due-before"),
            None if due_after is None else duration_ns(due_after, "--due-after"),
            limit=limit,
            key=key,
            prefix=prefix,
        )
        check_key(key)
        check_key(prefix, "--prefix")
        if any(each >= 1 << 64 for each in wanted.cookies):
            raise UsageError(f"--cookie {max(wanted.cookies)}: expected at most {2**64 - 1}")
        status_of(name, runtime_dir)  # raises if no daemon runs: its timers would not be pending
        with Observer(name, runtime_dir) as observer:
            (found,) = search(observer, [wanted], payload)
        pending.print_timers(found, "json" if as_json else format or "table", payload)


app.command("stop")(ending_cli.stop)
app.command("restart")(ending_cli.restart)
app.command("install-service")(service_cli.install_service)
app.command("demo")(demo_command.demo)
app.command("fsck")(checks_cli.fsck)
app.command("doctor")(checks_cli.doctor)
app.command("list")(daemons_cli.list_daemons)
app.command("config")(daemons_cli.config)
app.command("schedule")(shell_cli.schedule)
app.command("cancel")(shell_cli.cancel)
app.command("reschedule")(shell_cli.reschedule)
app.command("pause")(shell_cli.pause)
app.command("resume")(shell_cli.resume)
app.command("wait")(shell_cli.wait)
app.command("evict")(ending_cli.evict)
app.command("drain")(events_cli.drain)
app.command("events")(events_cli.events)
app.command("top")(watching_cli.top)
app.command("health")(watching_cli.health)
app.command("metrics", cls=with_bare({"--otlp": ""}))(watching_cli.metrics)
wrap_help_once(app)
wrap_help_once(jobs_cli.app)
app.add_typer(jobs_cli.app, name="jobs")
for command_line in importlib.metadata.entry_points(group="wheeld.commands"):
    added = command_line.load()()  # of a package that builds on this one
    wrap_help_once(added)
    app.add_typer(added, name=command_line.name)
