"""The commands `wheeld events` and `wheeld drain`."""

from __future__ import annotations

import datetime
import json
import time
from typing import Annotated, Any, Final

import typer

from wheeld.cli.options import Json, Name, RuntimeDir, duration_ns, errors_to_exit, show
from wheeld.resources.events import Kind
from wheeld_core import runtime
from wheeld_core.control import ask
from wheeld_core.control.messages import Request
from wheeld_core.errors import UsageError, WheelError

LOOK_SECONDS: Final = 0.1


def events(
    name: Name = "default",
    runtime_dir: RuntimeDir = None,
    kind: Annotated[
        list[str] | None,
        typer.Option(help=f"Show only these: {', '.join(Kind)}; may be given several times."),
    ] = None,
    worker: Annotated[str | None, typer.Option(help="Show only those about this worker.")] = None,
    limit: Annotated[
        int, typer.Option(min=0, help="Show only the last events, this many; 0: all.")
    ] = 0,
    as_json: Json = False,
) -> None:
    """List the last thousand events, oldest first: deaths, dropped timers and why, refusals.

    The list begins with the daemon's process, so `wheeld restart` or a crash empties it. The
    daemon's log has earlier events.

    Example: wheeld events --kind dropped --kind death
    """
    with errors_to_exit():
        if wrong := set(kind or ()) - set(Kind):
            raise UsageError(f"--kind {min(wrong)}: expected one of {', '.join(Kind)}")
        answer = ask(runtime.find(name, runtime_dir), Request.EVENTS)
    found = [
        one
        for one in answer["events"]
        if (not kind or one["kind"] in kind) and worker in (None, one["worker"])
    ]
    found = found[-limit:] if limit else found
    if as_json:
        typer.echo(json.dumps({"events": found, "forgotten": answer["forgotten"]}, indent=1))
        return
    typer.echo("\n".join(map(_line, found)) or "no events")
    if answer["forgotten"]:
        typer.echo(f"{answer['forgotten']} earlier ones are forgotten; the log has them", err=True)


def _line(event: dict[str, Any]) -> str:
    at = datetime.datetime.fromtimestamp(event["at"]).astimezone()
    who = f"worker {event['worker']} " if event["worker"] else ""
    text = "".join(c if c.isprintable() else "?" for c in f"{who}{event['text']}")
    again = f" ({event['times']} times)" if event["times"] > 1 else ""
    return f"{at:%Y-%m-%d %H:%M:%S}  {event['kind']:<9}  {text}{again}"


def drain(
    worker: Annotated[str, typer.Argument(help="Its name, as in `wheeld status`.")],
    name: Name = "default",
    runtime_dir: RuntimeDir = None,
    wait: Annotated[
        str | None,
        typer.Option(
            help="Wait this long for its end, such as 30s, and print what happened to its timers."
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Prepare a worker for its end: its group gives it nothing new, and none of its timers is
    dropped.

    It keeps running, with its timers. Then stop it as you stop your service: its timers go to its
    group, or are kept for a successor of its name, whatever its on_death was. Only a worker without
    a name and without a group cannot hand over anything.

    Exit code 1: there is no such worker; or with --wait, it has not ended, or timers were dropped.

    Example: wheeld drain web-3 --wait 30s
    """
    with errors_to_exit():
        patience = None if wait is None else duration_ns(wait, "--wait") / 1e9
        directory = runtime.find(name, runtime_dir)
        before = time.time()
        found = ask(directory, Request.DRAIN, worker=worker)
        found.pop("ok")
        text = _promise(found)
        if patience is not None:
            ends = _await_end(directory, found, before, patience)
            found["events"], text = ends, "\n".join([text, *map(_line, ends)])
    show(found, as_json, text)
    if any(one.get("dropped", 0) for one in found.get("events", ())):
        raise typer.Exit(1)


def _promise(found: dict[str, Any]) -> str:
    what = {
        "reroute": f"go to its group, {' and '.join(found['groups'])}"
        f" ({len(found['others'])} other members)",
        "keep": "are kept for a successor of its name",
        "drop": "are dropped: it has no name and no group",
    }[found["on_death"]]
    return (
        f"{found['worker']} (pid {found['pid']}) gets nothing new of a group; when it ends, its "
        f"timers {what}"
    )


def _await_end(
    directory: Any, found: dict[str, Any], before: float, seconds: float
) -> list[dict[str, Any]]:
    """The events of the worker's end. `WheelError`: it has not ended in time."""
    give_up, ends = time.monotonic() + seconds, {Kind.DEATH, Kind.DEPARTURE, Kind.DROPPED}
    while True:
        events = [
            one
            for one in ask(directory, Request.EVENTS)["events"]
            if one["worker"] == found["worker"] and one["until"] >= before and one["kind"] in ends
        ]
        if events:
            return events
        if time.monotonic() > give_up:
            raise WheelError(f"{found['worker']} (pid {found['pid']}) has not ended: stop it")
        time.sleep(LOOK_SECONDS)
