"""The commands `wheeld jobs list`, `run`, `pause` and `resume`."""

from __future__ import annotations

import dataclasses
import json
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.table import Table

from wheeld.cli.options import Json, Name, RuntimeDir, errors_to_exit, show, status_of
from wheeld_client import JobBoard, JobState
from wheeld_core.arguments import shown
from wheeld_core.errors import UsageError, WheelError
from wheeld_core.units import duration

app = typer.Typer(no_args_is_help=True, help="The jobs of a daemon's applications.")

Application = Annotated[
    str | None,
    typer.Option("--app", help="The application; required if several have a job of this name."),
]
JobName = Annotated[str, typer.Argument(metavar="NAME", help="The job's name.")]
COLUMNS: Final = (
    "job", "schedule", "state", "next", "last", "lasted", "late", "by", "runs", "failed",
    "left out",
)  # fmt: skip


def _board(name: str, runtime_dir: Path | None) -> JobBoard:
    status_of(name, runtime_dir)  # raises if no daemon runs
    return JobBoard(name, runtime_dir)


@app.command("list")
def list_jobs(
    application: Application = None,
    name: Name = "default",
    runtime_dir: RuntimeDir = None,
    as_json: Json = False,
) -> None:
    """List jobs: when each is due next, and its last run: how long, how late, by whom, failures.

    It only reads: daemon and workers are not disturbed.

    Example: wheeld jobs list --app shop
    """
    with errors_to_exit():
        found = _board(name, runtime_dir).jobs(application)
    if as_json:
        typer.echo(json.dumps([dataclasses.asdict(each) for each in found], indent=1))
    else:
        table = Table(*COLUMNS, title=f"{len(found)} jobs")
        for each in found:
            table.add_row(*_row(each))
        Console(markup=False, emoji=False).print(table)


def _row(job: JobState) -> list[str]:
    state = "running" if job.running else "paused" if job.paused else ""
    if job.unclaimed is not None:
        state = f"{state} no worker has it".strip()
    if job.failing:
        state = f"{state} failing".strip()
    times = (f"{job.application}/{job.name}", job.schedule, state, _when(job.next), _when(job.last))
    spans = ("" if each is None else duration(round(each * 1e9)) for each in (job.lasted, job.late))
    counts = map(str, (job.runs, job.failures, job.missed))
    return ["".join(c if c.isprintable() else "\ufffd" for c in cell)
            for cell in (*times, *spans, job.worker, *counts)]  # fmt: skip


def _when(seconds: float | None) -> str:
    if seconds is None:
        return ""
    return datetime.fromtimestamp(seconds).astimezone().isoformat(" ", "seconds")


@app.command()
def run(
    job: JobName,
    application: Application = None,
    args: Annotated[str, typer.Option(help="Its arguments, a list in JSON.")] = "[]",
    keywords: Annotated[str, typer.Option("--kw", help="Its keywords, an object in JSON.")] = "{}",
    name: Name = "default",
    runtime_dir: RuntimeDir = None,
    as_json: Json = False,
) -> None:
    """Run a job now, in any worker. Its schedule does not change.

    Exit code 0: it was handed out. 1: there is no such job.

    Example: wheeld jobs run send_mail --args '["ann"]' --kw '{"subject": "hello"}'
    """
    with errors_to_exit():
        positional, named = _json(args, "--args", list), _json(keywords, "--kw", dict)
        board = _board(name, runtime_dir)
        found = board.find(job, application)
        try:
            timer = board.run(job, found.application, *positional, **named)
        except (TypeError, ValueError) as error:
            if isinstance(error, WheelError) or found.schedule == "removed":
                raise
            raise UsageError(f"--args, --kw: {error}") from None
    said = {"application": found.application, "name": job, "timer_id": timer}
    show(said, as_json, f"{found.application}/{job} runs")


def _json(text: str, option: str, kind: type) -> Any:
    try:
        found = json.loads(text)
        json.dumps(found, allow_nan=False, ensure_ascii=False).encode()
        fits = isinstance(found, kind)
    except (ValueError, RecursionError):
        fits = False
    if not fits:
        what = (
            "a list, such as '[1, \"ann\"]'" if kind is list else "an object, such as '{\"n\": 1}'"
        )
        raise UsageError(f"{option} {shown(text)}: expected {what}, in JSON with finite numbers")
    return found


@app.command()
def pause(
    job: JobName,
    application: Application = None,
    name: Name = "default",
    runtime_dir: RuntimeDir = None,
    as_json: Json = False,
) -> None:
    """Skip a job's occurrences from now on, in all workers, until `wheeld jobs resume`.

    A run that has begun continues. Runs scheduled by hand wait.

    Example: wheeld jobs pause nightly
    """
    _change(job, application, (name, runtime_dir), as_json, True)


@app.command()
def resume(
    job: JobName,
    application: Application = None,
    name: Name = "default",
    runtime_dir: RuntimeDir = None,
    as_json: Json = False,
) -> None:
    """Let a paused job run again, from its next occurrence on.

    Example: wheeld jobs resume nightly
    """
    _change(job, application, (name, runtime_dir), as_json, False)


def _change(
    job: str, application: str | None, place: tuple[str, Path | None], as_json: bool, paused: bool
) -> None:
    with errors_to_exit():
        board = _board(*place)
        found = board.find(job, application)
        change = board.pause if paused else board.resume
        changed = change(job, found.application)
    said = {"application": found.application, "name": job, "paused": paused, "changed": changed}
    text = f"{found.application}/{job} {'is paused' if paused else 'runs by its schedule'}"
    show(said, as_json, text if changed else f"{text}, as before")
