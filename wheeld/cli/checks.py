"""The commands `wheeld fsck` and `wheeld doctor`: options, output, exit codes.

Heavy imports are inside the functions, so that `wheeld --help` stays quick.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from wheeld.cli.options import Json, Name, RuntimeDir

if TYPE_CHECKING:
    from wheeld.doctor.run import Diagnosis
    from wheeld.fsck.run import Findings

CLEAN, FOUND, COULD_NOT = 0, 1, 2


def fsck(
    name: Name = "default",
    runtime_dir: RuntimeDir = None,
    repair: Annotated[
        bool,
        typer.Option(
            "--repair", help="Rebuild the wheel from its slots. The daemon must be stopped."
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Check the shared memory of a daemon, running or dead.

    Exit code 0: clean. 1: damage found. 2: could not check; the message says why.

    Example: wheeld fsck --name shop
    """
    from wheeld.fsck import run as checker
    from wheeld_core.errors import WheelError

    try:
        with _Progress() as progress:
            report = checker.run(name, runtime_dir, repair=repair, progress=progress)
    except (WheelError, OSError, ValueError) as error:
        typer.echo(f"wheeld fsck: could not check: {error}", err=True)
        raise typer.Exit(COULD_NOT) from None
    if as_json:
        typer.echo(json.dumps(report.as_dict(), indent=1))
    else:
        _print(report, ("looked at", "damaged", "examples"), _report_rows(report))
    raise typer.Exit(FOUND if report.damage else CLEAN)


def doctor(
    name: Name = "default",
    runtime_dir: RuntimeDir = None,
    config: Annotated[
        Path | None,
        typer.Option(help="TOML file.", show_default="/etc/wheeld/NAME.toml, if it exists"),
    ] = None,
    client: Annotated[
        bool, typer.Option("--client", help="Only check why this process cannot connect.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Check this machine, and the daemon if it runs, for causes of late timers.

    With --client it connects as a worker, as the user and in the container where you run it, and
    names the first obstacle.

    Exit code 0: no problem, perhaps notes. 1: warnings or failures. 2: could not run the checks.

    Examples: `wheeld doctor --name shop`, `wheeld doctor --client`.
    """
    from wheeld.doctor import run as physician
    from wheeld_core.errors import WheelError

    try:
        if client:
            diagnosis = physician.run_for_client(name, runtime_dir)
        else:
            diagnosis = physician.run(name, runtime_dir, config)
    except (WheelError, OSError, ValueError) as error:
        typer.echo(f"wheeld doctor: could not run the checks: {error}", err=True)
        raise typer.Exit(COULD_NOT) from None
    if as_json:
        typer.echo(json.dumps(diagnosis.as_dict(), indent=1))
    else:
        _print(diagnosis, ("found",), _diagnosis_rows(diagnosis))
    raise typer.Exit(FOUND if diagnosis.bad() else CLEAN)


class _Progress:
    def __enter__(self) -> Callable[[str, int, int], None]:
        from rich.console import Console
        from rich.progress import Progress

        console = Console(stderr=True)
        self._bar = Progress(console=console, transient=True, disable=not console.is_terminal)
        self._task = self._bar.add_task("reading", total=None)
        self._bar.start()
        return self._show

    def _show(self, what: str, done: int, total: int) -> None:
        self._bar.update(self._task, description=what, completed=done, total=total)

    def __exit__(self, *exception: object) -> None:
        self._bar.stop()


_STYLES = {
    "ok": "green",
    "damage": "bold red",
    "failure": "bold red",
    "warning": "yellow",
    "note": "cyan",
    "skipped": "dim",
}


def _print(
    shown: Findings | Diagnosis, columns: tuple[str, ...], rows: Iterable[tuple[str, ...]]
) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    console = Console(highlight=False)
    table = Table("check", "status", *columns, title=shown.title())
    for name, status, *rest in rows:
        table.add_row(name, f"[{_STYLES[status]}]{status}[/]", *map(escape, rest))
    console.print(table)
    console.print(escape(shown.summary()), soft_wrap=True)


def _report_rows(report: Findings) -> Iterator[tuple[str, ...]]:
    for check in report.checks:
        examples = [example.text for example in check.examples]
        if check.damage > len(examples):
            examples.append(f"... and {check.damage - len(examples):,} more")
        damage = f"{check.damage:,}" if check.damage else ""
        said = "\n".join(examples) or check.remark
        yield check.name, check.status, f"{check.looked_at:,}", damage, said


def _diagnosis_rows(diagnosis: Diagnosis) -> Iterator[tuple[str, ...]]:
    for finding in diagnosis.findings:
        lines = [finding.found]
        if finding.status != "ok":
            lines += [f"expected: {finding.expected}", f"what to do: {finding.advice}"]
        yield finding.name, finding.status, "\n".join(line for line in lines if line)
