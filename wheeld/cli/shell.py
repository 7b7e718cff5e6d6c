"""The commands `wheeld schedule`, `cancel`, `pause` and so on: timers for shell scripts.

The scheduling process ends at once, so its timers are detached: they belong to no worker.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Final, get_args

import typer

from wheeld.cli.options import (
    Json,
    Name,
    RuntimeDir,
    check_key,
    check_text,
    duration_ns,
    errors_to_exit,
    show,
)
from wheeld.metrics.passing import in_passing
from wheeld.tables.registry import Registry
from wheeld_client import Timers, connect
from wheeld_core.errors import UsageError, WheelError
from wheeld_core.timer_options import Conflict

MOST: Final = 2**64 - 1
GROUP: Final = "group:"
CONFLICTS: Final = get_args(Conflict)
ROOM_SECONDS: Final = 60.0
INTERRUPTED: Final = 130

Delay = Annotated[str, typer.Argument(help="Such as 250ms, 1.5s or 2h; a number is seconds.")]
OptionalId = Annotated[
    int | None,
    typer.Argument(metavar="[ID]", min=0, max=MOST, help="The id that `wheeld schedule` printed."),
]
KeyOption = Annotated[
    str | None,
    typer.Option(help="The timer's key, a text; at most one pending timer of the daemon has it."),
]


def _ask(place: tuple[str, Path | None], call: Callable[[Timers], Any]) -> Any:
    return in_passing(*place, ROOM_SECONDS, call)


def schedule(
    delay: Delay,
    to: Annotated[str, typer.Option(help="The receiver: group:NAME, or the name of a worker.")],
    cookie: Annotated[int, typer.Option(min=0, max=MOST, help="A number for the receiver.")] = 0,
    payload: Annotated[str, typer.Option(help="Text for the receiver, as UTF-8.")] = "",
    key: KeyOption = None,
    on_conflict: Annotated[
        str,
        typer.Option(
            help="If a pending timer has the key: raise, keep, replace, later or earlier."
        ),
    ] = "raise",
    keep: Annotated[
        bool,
        typer.Option(
            "--keep",
            help="Once expired it waits for its receiver without a limit, "
            "instead of for --keep-for.",
        ),
    ] = False,
    name: Name = "default",
    runtime_dir: RuntimeDir = None,
    as_json: Json = False,
) -> None:
    """Schedule a timer that workers receive, and print its id.

    It belongs to no worker, so it outlives this command. Its receiver need not be connected: once
    expired, the timer waits for the receiver as long as `wheeld start --keep-for` says.

    Example: wheeld schedule 30s --to group:mailers --cookie 42
    """
    with errors_to_exit():
        found = duration_ns(delay, "delay")
        if key is None and on_conflict != "raise":
            raise UsageError("--on-conflict is about the key: give --key, too")
        if on_conflict not in CONFLICTS:
            raise UsageError(f"--on-conflict {on_conflict}: expected one of {', '.join(CONFLICTS)}")
        check_key(key)
        check_text("--payload", payload)
        _check_receiver(to)
        options: dict[str, Any] = {} if key is None else {"key": key, "on_conflict": on_conflict}
        options |= {"payload": payload.encode(), "to": to, "detached": True, "keep": keep}
        seconds = found / 1e9
        timer = _ask(
            (name, runtime_dir), lambda timers: timers.schedule(seconds, cookie, **options)
        )
    made = {"timer_id": timer, "to": to, "delay_s": seconds, "cookie": cookie}
    show(made if key is None else made | {"key": key}, as_json, str(timer))


def _check_receiver(to: str) -> None:
    try:
        if to.startswith(GROUP):
            Registry.check_group(to.removeprefix(GROUP))
        else:
            Registry.check_name(to)
    except ValueError as error:
        raise UsageError(f"--to: {error}") from None


def _id(text: str) -> int:
    if not text.isdecimal() or int(text) > MOST:
        raise UsageError(f"ID {text!r}: expected a number from 0 to {MOST}")
    return int(text)


def _change(
    call: str,
    timer: int | None,
    key: str | None,
    place: tuple[str, Path | None],
    delay: str | None = None,
) -> tuple[dict[str, Any], str]:
    """Apply `call` to a timer given by its id or its key; returns the timer's name as text and as
    JSON."""
    with errors_to_exit():
        if (timer is None) == (key is None):
            raise UsageError("expected either the ID of a timer or --key")
        check_key(key)
        by: dict[str, Any] = {"id": timer} if key is None else {"key": key}
        named: dict[str, Any] = {"timer_id": timer} if key is None else {"key": key}
        if delay is not None:
            by["delay"] = named["delay_s"] = duration_ns(delay, "delay") / 1e9
        if not _ask(place, lambda timers: getattr(timers, call)(**by)):
            raise _gone(timer) if key is None else _unknown(key)
    return named, str(timer if key is None else key)


def _gone(timer: int | None) -> WheelError:
    return WheelError(
        f"timer {timer} is not pending: it has expired or was cancelled; `wheeld inspect` lists "
        "pending timers"
    )


def _unknown(key: str) -> WheelError:
    return WheelError(
        f"no pending timer has the key {key!r}; `wheeld inspect` lists pending timers"
    )


def cancel(
    timer: OptionalId = None,
    key: KeyOption = None,
    name: Name = "default",
    runtime_dir: RuntimeDir = None,
    as_json: Json = False,
) -> None:
    """Cancel a pending timer of any worker, by its id or its key.

    Exit code 0: it will never be delivered. 1: it is not pending.

    Example: wheeld cancel "$(wheeld schedule 30s --to group:mailers)"
    """
    named, text = _change("cancel", timer, key, (name, runtime_dir))
    show(named | {"cancelled": True}, as_json, f"cancelled {text}")


def pause(
    timer: OptionalId = None,
    key: KeyOption = None,
    name: Name = "default",
    runtime_dir: RuntimeDir = None,
    as_json: Json = False,
) -> None:
    """Pause a pending timer of any worker, by its id or its key, until `wheeld resume`.

    After that it waits for the rest of its delay; a periodic one skips ticks on its grid.

    Exit code 0: done. 1: it is not pending.

    Example: wheeld pause --key nightly
    """
    named, text = _change("pause", timer, key, (name, runtime_dir))
    show(named | {"paused": True}, as_json, f"paused {text}")


def resume(
    timer: OptionalId = None,
    key: KeyOption = None,
    name: Name = "default",
    runtime_dir: RuntimeDir = None,
    as_json: Json = False,
) -> None:
    """Resume a timer that `wheeld pause`, or a worker, has paused.

    Exit code 0: done. 1: it is not pending.

    Example: wheeld resume --key nightly
    """
    named, text = _change("resume", timer, key, (name, runtime_dir))
    show(named | {"paused": False}, as_json, f"resumed {text}")


def reschedule(
    words: Annotated[
        list[str],
        typer.Argument(
            metavar="[ID] DELAY",
            help="The id that `wheeld schedule` printed, without --key; and a delay, such as 1.5s.",
        ),
    ],
    key: KeyOption = None,
    name: Name = "default",
    runtime_dir: RuntimeDir = None,
    as_json: Json = False,
) -> None:
    """Change when a pending timer of any worker expires: DELAY from now.

    Exit code 0: done. 1: it is not pending.

    Example: wheeld reschedule "$timer" 45s
    """
    with errors_to_exit():
        if len(words) > 2:
            raise UsageError(f"expected an ID and a delay: got {' '.join(words)}")
        timer = _id(words[0]) if len(words) == 2 else None
    named, text = _change("reschedule", timer, key, (name, runtime_dir), words[-1])
    show(named, as_json, f"{text} expires in {words[-1]}")


def wait(
    delay: Delay,
    name: Name = "default",
    runtime_dir: RuntimeDir = None,
    as_json: Json = False,
) -> None:
    """Wait for at least the given delay: like `sleep`, but on the daemon's wheel.

    With `wheeld start --virtual-clock` it waits for `wheeld advance`. It keeps waiting while the
    daemon restarts. Exit code 0: the delay has passed. 1: the daemon ended first. 130: Ctrl-C.

    Example: wheeld wait 1.5s && echo now
    """
    with errors_to_exit():
        seconds = duration_ns(delay, "delay") / 1e9
        try:
            with connect(name, runtime_dir=runtime_dir) as timers:
                timers.schedule(seconds)
                event = timers.poll(None)[0]
        except KeyboardInterrupt:
            raise typer.Exit(INTERRUPTED) from None
    if as_json:
        late = int(event["fired"]) - int(event["deadline"])
        typer.echo(json.dumps({"delay_s": seconds, "late_ns": late}, indent=1))
