"""The commands `wheeld stop`, `wheeld restart` and `wheeld evict`."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from wheeld.cli.options import Json, Name, RuntimeDir, duration_ns, errors_to_exit, show
from wheeld.processes import pidfd as processes
from wheeld_core import runtime, segments
from wheeld_core.control import Connection, ask
from wheeld_core.control.messages import Request
from wheeld_core.errors import DaemonNotRunning, WheelError

CHECK_SECONDS = 90.0
"""Seconds for the daemon to check the program that is installed now."""
LOOK_SECONDS = 0.02
"""Seconds between two attempts to reach the new daemon."""


def stop(
    name: Name = "default",
    runtime_dir: RuntimeDir = None,
    keep: Annotated[
        bool,
        typer.Option(
            "--keep", help="Keep its memory: workers stay connected, the next start takes over."
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Stop a daemon; returns when it has ended.

    Exit code 1: no daemon was running; or it could not write its last snapshot (its memory then
    stays, and the next `wheeld start` continues with it); or with --keep, its memory is gone.

    Example: wheeld stop --name shop
    """
    with errors_to_exit():
        directory = runtime.find(name, runtime_dir)
        with contextlib.closing(Connection(directory)) as connection:
            answer = connection.request(Request.STOP, keep=keep)
            _await_end(connection, answer)
        who = f"{directory.name} (pid {answer['pid']})"
        left = Path(segments.SHM_DIRECTORY, answer["wheel"]).exists()
        if keep and not left:
            raise WheelError(f"{who} has ended, and its memory is gone; its log says why")
        if left and not keep:
            raise WheelError(
                f"{who} has ended but left its memory, with the timers in it; its log says why. "
                "`wheeld start` with the same options continues with them"
            )
    words = f"stopped {who}"
    if keep:
        words += (
            f"; its memory stays, with {answer['pending']} pending timers: `wheeld start` with the "
            "same options continues with them"
        )
    found = {"name": directory.name, "pid": answer["pid"], "kept": keep}
    if keep:
        found["pending"] = answer["pending"]
    show(found, as_json, words)


def restart(
    name: Name = "default",
    runtime_dir: RuntimeDir = None,
    timeout: Annotated[
        str, typer.Option(help="How long to wait for the new daemon to answer, such as 90s.")
    ] = "60s",
    as_json: Json = False,
) -> None:
    """Restart a daemon with the program that is installed now; its workers stay connected.

    The process keeps its pid and its options, so its service manager notices nothing. Timers are
    late by the time without a clock; the command prints that time. If the new program has another
    layout of the shared memory, the timers are saved to a snapshot and restored: that needs
    --state-dir, and workers must connect again.

    Exit code 1: the new program cannot start with this daemon's options and memory, and the old one
    keeps running; or the new daemon did not answer in time: its log says why, and its memory stays.

    Example: wheeld restart --name shop --timeout 90s
    """
    with errors_to_exit():
        patience = duration_ns(timeout, "--timeout") / 1e9
        directory = runtime.find(name, runtime_dir)
        answer = ask(directory, Request.RESTART, CHECK_SECONDS)
        how = "with its memory" if answer["keeps"] else "through a snapshot, to another layout"
        typer.echo(f"restarting {directory.name} (pid {answer['pid']}) {how} ...", err=True)
        now = _await_next(directory, answer, patience)
    found = {"name": directory.name, **{key: now[key] for key in ("pid", "pending", "gap_ms")}}
    show(
        found,
        as_json,
        f"restarted {directory.name} (pid {now['pid']}): {now['pending']} pending timers, no "
        f"clock for {now['gap_ms']:.1f} ms",
    )


def _await_end(connection: Connection, answer: dict[str, Any]) -> None:
    patience = answer.get("patience_s", 15.0)
    give_up = time.monotonic() + patience
    with _Process(answer["pid"]) as process:
        connection.wait_closed(patience, until_gone=not answer.get("activated"))
        while answer.get("activated") and not process.has_ended() and time.monotonic() < give_up:
            time.sleep(LOOK_SECONDS)


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
                how = "has ended" if process.has_ended() else f"does not answer after {timeout:g} s"
                raise WheelError(
                    f"{directory.name} (pid {answer['pid']}) {how}; its log says why. Its pending "
                    "timers are kept: `wheeld start` with the same options continues with them"
                )
            time.sleep(LOOK_SECONDS)


class _Process:
    """A process that is expected to end, if this process can see it."""

    def __init__(self, pid: int) -> None:
        self._pidfd = -1
        with contextlib.suppress(OSError):
            self._pidfd = os.pidfd_open(pid)

    def has_ended(self) -> bool:
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
    """Remove a worker: kill its process with SIGKILL.

    Its timers are treated as its on_death says. If the process has already ended and its timers are
    kept for a successor, they are dropped. Only the daemon's user, root and members of
    --admin-group may do this.

    Example: wheeld evict web-3
    """
    with errors_to_exit():
        answer = ask(runtime.find(name, runtime_dir), Request.EVICT, worker=worker)
    answer.pop("ok")
    text = f"dropped the timers that {worker} left"
    if answer["killed"]:
        kept = "; its timers are kept for a successor" if answer["kept"] else ""
        text = f"killed {worker} (pid {answer['pid']}){kept}"
    show(answer, as_json, text)
