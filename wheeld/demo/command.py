"""The command `wheeld demo`: options, steps, exit codes.

Heavy imports are inside the functions, so that `wheeld --help` stays quick.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from wheeld.processes.interrupts import Interrupted, flagged_signals
from wheeld_core import extras

if TYPE_CHECKING:
    import numpy.typing as npt

    from wheeld.demo.case import CaseRun

FAILED, WRONG_INPUT, INTERRUPTED = 1, 2, 130
DEFAULT_RATE = 80_000.0


def demo(
    requests: Annotated[
        int, typer.Option(min=1, help="Requests per case, over all workers.")
    ] = 1_000_000,
    rate: Annotated[
        float, typer.Option(min=0.001, max=1e9, help="Arrivals per second, over all workers.")
    ] = DEFAULT_RATE,
    workers: Annotated[
        int | None,
        typer.Option(min=1, max=64, help="Worker processes.", show_default="one per core"),
    ] = None,
    case: Annotated[
        str, typer.Option(help="low, high or both: the latencies of the requests.")
    ] = "both",
    seed: Annotated[int, typer.Option(min=0, help="The same seed makes the same requests.")] = 1,
    requests_file: Annotated[
        Path | None,
        typer.Option(
            help="Requests from this Parquet or CSV file, with arrival_ns, latency_ms, timeout_ms, "
            "payload_bytes."
        ),
    ] = None,
    plot: Annotated[
        Path, typer.Option(help="File for a plot of lateness and pending timers.")
    ] = Path("wheeld-demo.png"),
    report: Annotated[
        Path, typer.Option(help="Directory for the pipeline's report of what the daemons recorded.")
    ] = Path("wheeld-demo-report"),
    no_report: Annotated[
        bool, typer.Option("--no-report", help="Record no trace, and write no report.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Run a million requests through a private daemon and account for every one of them.

    The workload is that of Kafka's purgatory benchmark: requests arrive in an open loop, carry 100
    bytes, and either complete in time or time out after 200 ms. Exit code 1: a request was lost,
    duplicated, early or damaged. It ends with a report of what the daemons recorded.

    Example: wheeld demo --requests 100000 --case low
    """
    if case not in ("low", "high", "both"):
        raise typer.BadParameter(f"got {case!r}, expected low, high or both", param_hint="--case")
    count = workers or len(os.sched_getaffinity(0))

    def everything(tick: Callable[[], None]) -> int:
        made = _workloads(case, requests, rate, seed, requests_file)
        with _recording(not no_report) as trace:
            outcomes = [_run(*one, count, seed, tick, trace) for one in made]
            _report(outcomes, count, seed, plot, as_json)
            if trace is not None:
                _report_of_trace(trace, report, outcomes, tick)
        return FAILED if any(one.outcome.faults for one in outcomes) else 0

    raise typer.Exit(_exit_code(everything))


def _exit_code(everything: Callable[[Callable[[], None]], int]) -> int:
    """Run `everything(tick)`; an expected error becomes one line and an exit code."""
    from wheeld.demo.requests_file import RequestsFileError
    from wheeld_core.errors import WheelError

    with flagged_signals() as tick:
        try:
            try:
                return everything(tick)
            except (WheelError, OSError):
                tick()  # Ctrl-C ends the daemon, too: that is not the error to report
                raise
        except Interrupted:
            _say("interrupted")
            return INTERRUPTED
        except RequestsFileError as error:
            _say(str(error))
            return WRONG_INPUT
        except (WheelError, OSError) as error:
            _say(str(error))
            return FAILED


def _say(text: str) -> None:
    typer.echo(f"wheeld demo: {text}", err=True)


def _workloads(
    case: str, count: int, rate: float, seed: int, file: Path | None
) -> list[tuple[str, str, npt.NDArray[Any]]]:
    """Name, title and requests of each case."""
    from wheeld.demo import requests_file, workload

    if file is not None:
        return [("file", file.name, requests_file.read(file))]
    names = list(workload.CASES) if case == "both" else [case]
    cases = [workload.CASES[name] for name in names]
    return [
        (
            made.name,
            f"{made.name} case (latency p50 {made.p50_ms:g} ms, p75 {made.p75_ms:g} ms)",
            workload.generate(made, count, rate, seed),
        )
        for made in cases
    ]


def _run(
    name: str,
    title: str,
    made: npt.NDArray[Any],
    workers: int,
    seed: int,
    tick: Callable[[], None],
    trace: Path | None,
) -> CaseRun:
    from wheeld.demo import case

    tick()
    return case.run(name, title, made, workers, seed, tick, trace)


@contextlib.contextmanager
def _recording(wanted: bool) -> Iterator[Path | None]:
    """Where the daemons record; None, after a line that says why, if no report is possible."""
    from wheeld.demo import pipeline

    lacking = pipeline.missing() if wanted else None
    if lacking:
        _say(f"no report: {lacking}")
    with pipeline.recording(wanted and not lacking) as trace:
        yield trace


def _report_of_trace(
    trace: Path, out: Path, outcomes: list[CaseRun], tick: Callable[[], None]
) -> None:
    from wheeld.demo import pipeline

    _say("reading what the daemons recorded")
    notes = [
        f"The demo's {one.title} was {one.saturated()}."
        for one in outcomes
        if not one.outcome.kept_up
    ]
    _say(pipeline.report(trace, out, notes, tick))


def _report(outcomes: list[CaseRun], workers: int, seed: int, plot: Path, as_json: bool) -> None:
    import json

    cpus = len(os.sched_getaffinity(0))
    if as_json:
        figures = [outcome.as_json() for outcome in outcomes]
        content = {"seed": seed, "workers": workers, "cpus": cpus, "cases": figures}
        typer.echo(json.dumps(content, indent=1))
    else:
        typer.echo(f"seed {seed}, {workers} workers, {cpus} cores")
        for outcome in outcomes:
            typer.echo("\n" + outcome.text())
    _draw(outcomes, workers, seed, plot)


def _draw(outcomes: list[CaseRun], workers: int, seed: int, plot: Path) -> None:
    """The picture is optional: the report does not need it."""
    from wheeld.demo import plots

    try:
        cpus = len(os.sched_getaffinity(0))
        plots.draw(plot, outcomes, f"{workers} workers on {cpus} cores, seed {seed}")
    except ImportError:
        _say(f"no picture: {plot} needs matplotlib ({extras.command('plots')})")
    except OSError as error:
        _say(f"no picture: {plot} cannot be written: {error.strerror or error}")
    else:
        _say(f"picture in {plot}")
