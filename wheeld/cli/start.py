"""The command `wheeld start`, and what all commands are added to.

Others wait for a start, so it loads no other command.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from wheeld.cli.options import errors_to_exit
from wheeld.config.settings import Config
from wheeld.supervisor.launch import launch

app = typer.Typer(no_args_is_help=True, pretty_exceptions_enable=False)


@app.callback()
def wheeld() -> None:
    """A timer daemon for the processes of one host."""


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
