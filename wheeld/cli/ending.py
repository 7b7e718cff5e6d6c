"""The commands `wheeld stop`, `wheeld restart` and `wheeld evict`."""

from __future__ import annotations

import contextlib
import json
import os
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from wheeld.cli.options import Json, Name, RuntimeDir, errors_to_exit
from wheeld.processes import pidfd as processes
from wheeld_core import runtime, segments
from wheeld_core.control import Connection, ask
from wheeld_core.control.messages import Request
from wheeld_core.errors import DaemonNotRunning, WheelError

CHECK_SECONDS = 90.0
"""For the daemon to find out what the program is by now."""
LOOK_SECONDS = 0.02
"""Between two tries to reach the daemon that comes."""


def stop(
    name: Name = "default",
    runtime_dir: RuntimeDir = None,
    keep: Annotated[
        bool,
        typer.Option(
            "--keep", help="Keep its memory: workers go on, and the next start takes it over."
        ),
    ] = False,
) -> None:
    """Stop a daemon; returns when it has ended.

    The exit code is 1 if it was not there, or if it could not do what was asked: write its last
    snapshot (then its memory is left, and the next `wheeld start` goes on with it), or with --keep,
    leave its memory.
    """
    with errors_to_exit():
        directory = runtime.find(name, runtime_dir)
        with contextlib.closing(Connection(directory)) as connection:
            answer = connection.request(Request.STOP, keep=keep)
            connection.wait_closed(timeout=answer.get("patience_s", 15.0))
        who = f"{directory.name} (pid {answer['pid']})"
        left = Path(segments.SHM_DIRECTORY, answer["wheel"]).exists()
        if keep and not left:
            raise WheelError(f"{who} has ended without leaving its memory: its messages say why")
        if left and not keep:
            raise WheelError(
                f"{who} has left its memory, with the timers in it: its messages say why; `wheeld "
                "start` with the same options goes on with them"
            )
        typer.echo(
            f"stopped {who}; its memory stays, with {answer['pending']} pending timers: `wheeld "
            "start` with the same options goes on with them"
            if keep
            else f"stopped {who}"
        )


def restart(
    name: Name = "default",
    runtime_dir: RuntimeDir = None,
    timeout: Annotated[float, typer.Option(help="Seconds to wait until it serves again.")] = 60.0,
) -> None:
    """Replace a running daemon by the program that is installed now; its workers go on.

    The process stays the same, with the same options; who supervises it sees no end. Timers are
    late by the time in which there is no clock, which is printed. To another layout of the shared
    memory it goes by a snapshot, which needs --state-dir, and is a stop for the workers.

    The exit code is 1 if the program as it is now would not start, or not with this daemon's
    memory: then the daemon goes on as it is. It is 1, too, if it does not serve in time: its
    messages say why, and its memory is left.
    """
    with errors_to_exit():
        directory = runtime.find(name, runtime_dir)
        answer = ask(directory, Request.RESTART, CHECK_SECONDS)
        how = "with its memory" if answer["keeps"] else "by a snapshot, to another layout"
        typer.echo(f"restarting {directory.name} (pid {answer['pid']}) {how} ...", err=True)
        now = _await_next(directory, answer, timeout)
        typer.echo(
            f"restarted {directory.name} (pid {now['pid']}): {now['pending']} pending timers, no "
            f"clock for {now['gap_ms']:.1f} ms"
        )


def _await_next(directory: Path, answer: dict[str, Any], timeout: float) -> dict[str, Any]:
    """The status of the daemon's next incarnation."""
    give_up = time.monotonic() + timeout
    with _Process(answer["pid"]) as process:
        while True:
            with contextlib.suppress(DaemonNotRunning):
                rest = max(give_up - time.monotonic(), LOOK_SECONDS)
                status = ask(directory, Request.STATUS, min(rest, 5.0))
                found: dict[str, Any] = status["status"]
                if found["restarts"] > answer["restarts"]:
                    return found
            if process.has_ended() or time.monotonic() > give_up:
                how = "has ended" if process.has_ended() else f"does not serve after {timeout:g} s"
                raise WheelError(
                    f"{directory.name} (pid {answer['pid']}) {how}: its messages say why; what is "
                    "pending is left, and `wheeld start` with the same options goes on with it"
                )
            time.sleep(LOOK_SECONDS)


class _Process:
    """A process that may end, if it can be seen from here."""

    def __init__(self, pid: int) -> None:
        self._pidfd = -1
        with contextlib.suppress(OSError):
            self._pidfd = os.pidfd_open(pid)

    def has_ended(self) -> bool:
        """Has it? One that cannot be seen has not."""
        return self._pidfd >= 0 and processes.has_ended(self._pidfd)

    def __enter__(self) -> _Process:
        return self

    def __exit__(self, *exception: object) -> None:
        if self._pidfd >= 0:
            os.close(self._pidfd)


def evict(
    worker: Annotated[str, typer.Argument(help="Its name, as in `wheeld status`.")],
    name: Name = "default",
    runtime_dir: RuntimeDir = None,
    as_json: Json = False,
) -> None:
    """Put a worker out: kill its process with SIGKILL, and with it all that this process does.

    Its timers go where its on_death says. For a worker whose process has ended, and which is kept
    for a successor, the timers that it left are dropped. Only the daemon's user, root and members
    of --admin-group may ask for it.

    Example: wheeld evict web-3
    """
    with errors_to_exit():
        answer = ask(runtime.find(name, runtime_dir), Request.EVICT, worker=worker)
    answer.pop("ok")
    if as_json:
        typer.echo(json.dumps(answer, indent=1))
    elif answer["killed"]:
        kept = "; its timers are kept for a successor" if answer["kept"] else ""
        typer.echo(f"killed {worker} (pid {answer['pid']}){kept}")
    else:
        typer.echo(f"dropped what {worker} had left")
