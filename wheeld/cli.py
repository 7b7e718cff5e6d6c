"""The command `wheeld`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated, Any

import typer

from wheeld import virtual
from wheeld.config import Config
from wheeld.launch import launch
from wheeld.options import Json, Name, RuntimeDir, errors_to_exit
from wheeld_core import runtime
from wheeld_core.control import Connection

app = typer.Typer(
    help="A timer daemon for the processes of one host.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

NO_CLOCK = 3
"""Exit code of `status` beside a daemon whose clock does nothing."""


def _request(name: str, runtime_dir: Path | None, op: str, **fields: Any) -> dict[str, Any]:
    connection = Connection(runtime.find(name, runtime_dir))
    try:
        return connection.request(op, timeout=fields.pop("timeout", 10.0), **fields)
    finally:
        connection.close()


@app.command()
def start(
    name: Annotated[
        str | None, typer.Option(help="Name of the daemon.", show_default=Config.name)
    ] = None,
    capacity: Annotated[
        int | None, typer.Option(help="Timers it can hold.", show_default=str(Config.capacity))
    ] = None,
    max_workers: Annotated[
        int | None,
        typer.Option(help="Processes that can connect.", show_default=str(Config.max_workers)),
    ] = None,
    max_per_worker: Annotated[
        int | None, typer.Option(help="Slots that one worker may hold.", show_default="all")
    ] = None,
    tick: Annotated[
        str | None, typer.Option(help="Unit of time, such as 1ms.", show_default=Config.tick)
    ] = None,
    wheel_size: Annotated[
        int | None, typer.Option(help="Buckets per level.", show_default=str(Config.wheel_size))
    ] = None,
    payload_bytes: Annotated[
        int | None, typer.Option(help="Payload per timer.", show_default=str(Config.payload_bytes))
    ] = None,
    reserve: Annotated[
        bool | None,
        typer.Option(
            "--reserve/--no-reserve",
            help="Reserve the memory of the whole capacity at once.",
            show_default="as slots are needed",
        ),
    ] = None,
    runtime_dir: Annotated[
        Path | None, typer.Option(help="Directory that holds the runtime directory.")
    ] = None,
    virtual_clock: Annotated[
        bool | None,
        typer.Option("--virtual-clock", help="Time moves by `wheeld advance` only."),
    ] = None,
    virtual_start: Annotated[
        int | None,
        typer.Option(
            help="Where a virtual clock begins, ns.", show_default=str(Config.virtual_start)
        ),
    ] = None,
    pin_cpu: Annotated[int | None, typer.Option(help="CPU for the clock process.")] = None,
    state_dir: Annotated[
        Path | None, typer.Option(help="Directory for snapshots; timers outlive the host then.")
    ] = None,
    snapshot_every: Annotated[
        str | None,
        typer.Option(help="Time between snapshots.", show_default=Config.snapshot_every),
    ] = None,
    restore: Annotated[
        str | None,
        typer.Option(
            help="remaining or wall: does the time that the host was down count?",
            show_default=Config.restore,
        ),
    ] = None,
    misfire: Annotated[
        str | None,
        typer.Option(
            help="fire or skip: what fell due while the host was down.",
            show_default=Config.misfire,
        ),
    ] = None,
    keep_for: Annotated[
        str | None,
        typer.Option(
            help="How long timers wait for a worker to come back.",
            show_default=Config.keep_for,
        ),
    ] = None,
    hang_after: Annotated[
        str | None,
        typer.Option(
            help="Replace a clock that hangs for so long.", show_default=Config.hang_after
        ),
    ] = None,
    evict_after: Annotated[
        int | None, typer.Option(help="Kill a worker after so many offences.", show_default="never")
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(help="Let the users of this group in.", show_default="one user only"),
    ] = None,
    admin_group: Annotated[
        str | None,
        typer.Option(
            help="Let those of them who are in this one stop it.", show_default="its user and root"
        ),
    ] = None,
    pool: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=BYTES[,strict][,largest=BYTES]",
            help="A memory pool, such as requests=64M; may be given several times.",
        ),
    ] = None,
    trace: Annotated[
        Path | None, typer.Option(help="Directory in which every event is recorded as Parquet.")
    ] = None,
    trace_ring: Annotated[
        int | None,
        typer.Option(
            help="Events that can wait for the recorder.", show_default=str(Config.trace_ring)
        ),
    ] = None,
    trace_every: Annotated[
        str | None,
        typer.Option(help="Age of events that become a file.", show_default=Config.trace_every),
    ] = None,
    trace_keep: Annotated[
        str | None, typer.Option(help="Remove older files, such as 7d.", show_default="keep all")
    ] = None,
    trace_bytes: Annotated[
        str | None, typer.Option(help="Remove the oldest files beyond, such as 10G.")
    ] = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Discard what a killed daemon of that name left.")
    ] = False,
    config: Annotated[
        Path | None,
        typer.Option(help="TOML file.", show_default="/etc/wheeld/NAME.toml, if it exists"),
    ] = None,
    parent_pid: Annotated[
        int | None, typer.Option(help="Stop when this process dies.", hidden=True)
    ] = None,
    remove_base: Annotated[
        bool, typer.Option("--remove-base", help="Remove the runtime dir's parent.", hidden=True)
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print warnings only.")] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Start nothing: say what would be.", hidden=True)
    ] = False,
) -> None:
    """Run a daemon in the foreground until SIGTERM, Ctrl-C or `wheeld stop`.

    SIGPWR ends it with its memory left, as `wheeld stop --keep`.

    SIGHUP reads the environment and the TOML file again: --keep-for, --hang-after, --evict-after,
    --snapshot-every, and --max-per-worker for workers that connect then.

    Each option can also stand in the environment (WHEELD_CAPACITY=...) or in the TOML file.
    """
    given = {
        "name": name,
        "capacity": capacity,
        "max_workers": max_workers,
        "max_per_worker": max_per_worker,
        "tick": tick,
        "wheel_size": wheel_size,
        "payload_bytes": payload_bytes,
        "runtime_dir": None if runtime_dir is None else str(runtime_dir),
        "virtual_clock": virtual_clock,
        "reserve": reserve,
        "virtual_start": virtual_start,
        "pin_cpu": pin_cpu,
        "state_dir": None if state_dir is None else str(state_dir),
        "snapshot_every": snapshot_every,
        "restore": restore,
        "misfire": misfire,
        "keep_for": keep_for,
        "hang_after": hang_after,
        "evict_after": evict_after,
        "group": group,
        "admin_group": admin_group,
        "pools": pool or None,
        "trace": None if trace is None else str(trace),
        "trace_ring": trace_ring,
        "trace_every": trace_every,
        "trace_keep": trace_keep,
        "trace_bytes": trace_bytes,
    }
    with errors_to_exit():
        launch(
            given,
            config,
            parent_pid=parent_pid,
            remove_base=remove_base,
            fresh=fresh,
            quiet=quiet,
            check=check,
        )


@app.command()
def status(name: Name = "default", runtime_dir: RuntimeDir = None, as_json: Json = False) -> None:
    """Show a daemon's state, counters and workers.

    The exit code is 0 if it is well, 1 if there is none or it does not answer, and 3 if it answers
    and has no clock that makes progress: timers that fall due are late until it has one.
    """
    with errors_to_exit():
        found = _request(name, runtime_dir, "status")["status"]
    if as_json:
        typer.echo(json.dumps(found, indent=1))
    else:
        from wheeld import listing  # loads rich, which a start does not need

        typer.echo(listing.status_text(found))
    if not found["clock_ok"]:
        raise typer.Exit(NO_CLOCK)


_DURATION = re.compile(r"([0-9]*\.?[0-9]+)\s*(ns|us|ms|s|m|h|d)?")
_UNITS = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9, "m": 60 * 10**9, "h": 3600 * 10**9}
_UNITS["d"] = 24 * _UNITS["h"]


@app.command()
def advance(
    duration: Annotated[str, typer.Argument(help="How far, such as 250ms, 1.5s or 2h.")],
    name: Name = "default",
    runtime_dir: RuntimeDir = None,
) -> None:
    """Move a daemon's virtual clock; returns when what fell due was handed out."""
    with errors_to_exit():
        match = _DURATION.fullmatch(duration)
        if match is None:
            raise ValueError(f"duration {duration!r}: expected a number with {', '.join(_UNITS)}")
        step = round(float(match[1]) * _UNITS[match[2] or "s"])
        now = virtual.advance_ns(name, step, runtime_dir)
    typer.echo(f"{now} ns")


@app.command()
def inspect(
    name: Name = "default",
    runtime_dir: RuntimeDir = None,
    worker: Annotated[str | None, typer.Option(help="Only timers of this worker.")] = None,
    limit: Annotated[int, typer.Option(help="At most so many, soonest first; 0: all.")] = 100,
    format: Annotated[str, typer.Option(help="table, json or csv.")] = "table",
) -> None:
    """List pending timers, soonest first, without disturbing anyone."""
    from wheeld import listing  # as above

    with errors_to_exit():
        if format not in listing.FORMATS:
            raise ValueError(f"--format {format}: expected one of {', '.join(listing.FORMATS)}")
        _request(name, runtime_dir, "status")  # is it there? a dead one's timers wait for the next
        found = listing.pending_timers(name, runtime_dir, worker, limit)
        listing.print_timers(found, format)


def _register_demo() -> None:
    from wheeld.demo import command

    app.command("demo")(command.demo)


def _register_ends() -> None:
    from wheeld import ending_cli

    app.command("stop")(ending_cli.stop)
    app.command("restart")(ending_cli.restart)


def _register_checks() -> None:
    from wheeld import checks_cli

    app.command("fsck")(checks_cli.fsck)
    app.command("doctor")(checks_cli.doctor)


def _register_pipeline() -> None:
    import wheeld_pipeline

    app.add_typer(wheeld_pipeline.command_line(), name="pipeline")


def add_others() -> None:
    """Add the commands whose code a start does not need."""
    _register_ends()
    _register_demo()
    _register_checks()
    _register_pipeline()
