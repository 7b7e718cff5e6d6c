"""The commands `wheeld schedule`, `cancel`, `pause` and so on: timers for shell scripts.

A process that schedules ends at once, so its timers belong to a worker that is kept
(on_death="keep"). Each of these commands connects as the successor of the previous one, and so
finds them.
"""

from __future__ import annotations

import fcntl
import json
import os
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Final, get_args

import typer

from wheeld.cli.options import Json, Name, RuntimeDir, duration_ns, errors_to_exit, show
from wheeld_client import Timers, connect
from wheeld_core.errors import UsageError, WheelError
from wheeld_core.timer_options import Conflict
from wheeld_core.units import duration_text

MOST: Final = 2**64 - 1
CONFLICTS: Final = get_args(Conflict)
TURN_SECONDS: Final = 60
"""How long a command waits for those before it."""
SPARE_NS: Final = 10**9
"""A timer must be due this long before the daemon would drop it: the clock may be late."""
INTERRUPTED: Final = 130

Delay = Annotated[str, typer.Argument(help="Such as 250ms, 1.5s or 2h; a number is seconds.")]
OptionalId = Annotated[
    int | None,
    typer.Argument(metavar="[ID]", min=0, max=MOST, help="The id that `wheeld schedule` printed."),
]
KeyOption = Annotated[
    str | None, typer.Option(help="The timer's key: text, one of each in the daemon.")
]


def _worker() -> str:
    return f"shell-{os.getuid()}"


@contextmanager
def _turn() -> Iterator[None]:
    """One of these commands of this user at a time; the kernel queues the others."""
    place = Path(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir())
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    lock = os.open(place / f"wheeld-{_worker()}", flags, 0o600)
    before = signal.signal(signal.SIGALRM, _give_up)
    try:
        if os.fstat(lock).st_uid != os.getuid():
            raise PermissionError(f"{place}/wheeld-{_worker()} belongs to another user")
        signal.alarm(TURN_SECONDS)
        fcntl.flock(lock, fcntl.LOCK_EX)
        signal.alarm(0)
        yield
    finally:
        signal.signal(signal.SIGALRM, before)
        os.close(lock)


def _give_up(*_: object) -> None:
    raise WheelError(
        f"other `wheeld schedule`, `cancel` or `reschedule` commands of this user have taken "
        f"{TURN_SECONDS} s: is one of them stopped?"
    )


@contextmanager
def _shell(name: str, runtime_dir: Path | None) -> Iterator[Timers]:
    """Connect as the one worker that all these commands share.

    Timers that came back because their receiver is gone are named on stderr.
    """
    with (
        errors_to_exit(),
        _turn(),
        connect(name, worker=_worker(), on_death="keep", runtime_dir=runtime_dir) as timers,
    ):
        for event in timers.poll(0):
            typer.echo(
                f"wheeld: timer {event['timer_id']} (cookie {event['cookie']}) expired, but its "
                "receiver was gone: nobody received it",
                err=True,
            )
        yield timers


def _seconds(delay: str, found: int, timers: Timers) -> float:
    """The delay of `found` ns, if the daemon keeps the timer for that long."""
    longest = round(timers.keep_for * 1e9) - SPARE_NS
    if found > longest:
        raise WheelError(
            f"delay {delay}: expected at most {duration_text(max(0, longest))}, as the daemon "
            f"keeps the timers of an ended process for {duration_text(longest + SPARE_NS)}; start "
            "it with a longer --keep-for"
        )
    return found / 1e9


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
    name: Name = "default",
    runtime_dir: RuntimeDir = None,
    as_json: Json = False,
) -> None:
    """Schedule a timer that workers receive, and print its id.

    The timer belongs to the worker shell-UID. After this command has ended, the daemon keeps it for
    the time of `wheeld start --keep-for`; a longer delay is refused. A timer for a group without
    members waits just as long for one. If the receiver is gone when the timer expires, the next of
    these commands reports it on stderr.

    Example: wheeld schedule 30s --to group:mailers --cookie 42
    """
    with errors_to_exit():
        found = duration_ns(delay, "delay")
        if key is None and on_conflict != "raise":
            raise UsageError("--on-conflict is about the key: give --key, too")
        if on_conflict not in CONFLICTS:
            raise UsageError(f"--on-conflict {on_conflict}: expected one of {', '.join(CONFLICTS)}")
        if to == _worker():
            raise UsageError(
                f"--to {to}: these commands do not receive; expected group:NAME or another worker"
            )
    with _shell(name, runtime_dir) as timers:
        seconds = _seconds(delay, found, timers)
        options: dict[str, Any] = {} if key is None else {"key": key, "on_conflict": on_conflict}
        timer = timers.schedule(seconds, cookie, payload=payload.encode(), to=to, **options)
    made = {"timer_id": timer, "to": to, "delay_s": seconds, "cookie": cookie}
    show(made if key is None else made | {"key": key}, as_json, str(timer))


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
    """Have `call` done with a timer that is named by its id or by its key; the names of both for
    who reads them, and for who parses them."""
    with errors_to_exit():
        if (timer is None) == (key is None):
            raise UsageError("expected either the ID of a timer or --key")
        found = None if delay is None else duration_ns(delay, "delay")
    by: dict[str, Any] = {"id": timer} if key is None else {"key": key}
    named: dict[str, Any] = {"timer_id": timer} if key is None else {"key": key}
    with _shell(*place) as timers:
        if delay is not None and found is not None:
            by["delay"] = named["delay_s"] = _seconds(delay, found, timers)
        if not getattr(timers, call)(**by):
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
    """Cancel a timer made by `wheeld schedule`, or the pending timer of a key.

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

    It has what was left of its delay then; a periodic one skips ticks on its grid.

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
    """Let a timer go on that `wheeld pause`, or a worker, has paused.

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
    """Change when a timer made by `wheeld schedule`, or the one of a key, expires: DELAY from now.

    Exit code 0: done. 1: it is not pending, or DELAY is too long, as for `wheeld schedule`.

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
    """Wait for a delay, never less: like `sleep`, but on the daemon's wheel.

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
