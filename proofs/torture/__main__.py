"""`python -m proofs.torture`: kill and stop everything under load, account for every timer."""

from __future__ import annotations

import argparse
import functools
import json
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from proofs.torture import results, rounds
from proofs.torture.daemon import DaemonFailed
from proofs.torture.drive import Drive
from proofs.torture.faults import FAULTS, Fault
from proofs.torture.ledger import Memory
from proofs.torture.results import Row
from wheeld.processes.interrupts import Interrupted, flagged_signals
from wheeld_client import WheelError
from wheeld_core.progress import show_progress

FAILED, INTERRUPTED = 1, 130


def parse(arguments: list[str] | None) -> argparse.Namespace:
    names = [fault.name for fault in FAULTS]
    parser = argparse.ArgumentParser(prog="python -m proofs.torture", description=__doc__)
    parser.add_argument("--seed", type=int, help="default: a new one each time, which is printed")
    parser.add_argument(
        "--scale", type=float, default=1.0, help="factor for the counts, such as 0.1"
    )
    parser.add_argument("--only", metavar="FAULT[,FAULT]", help=", ".join(names))
    parser.add_argument("--json", metavar="FILE", help="write the figures there; - is stdout")
    parser.add_argument(
        "--logs", type=Path, metavar="DIR", help="keep all messages in this directory"
    )
    options = parser.parse_args(arguments)
    chosen = options.only.split(",") if options.only else names
    for name in chosen:
        if name not in names:
            parser.error(f"--only {name}: expected one of {', '.join(names)}")
    if not 0 < options.scale <= 100:
        parser.error(f"--scale {options.scale}: expected more than 0, up to 100")
    if options.seed is None:
        options.seed = secrets.randbits(32)
    options.faults = [fault for fault in FAULTS if fault.name in chosen]
    return options


class Torture:
    """All rows of a run. `seed` makes all random numbers, not the timing; `scale` multiplies the
    faults' counts; `tick` is called often, and may raise."""

    def __init__(self, seed: int, scale: float, logs: Path, tick: Callable[[], None]) -> None:
        self._seed, self._scale, self._logs, self._tick = seed, scale, logs, tick
        self._memory = Memory()
        self._lives = 1

    def row(self, number: int, fault: Fault) -> Row:
        row = Row(fault.name, fault.title)
        begin = time.monotonic()
        total = max(1, round(fault.count * self._scale))
        parts = max(1, round(fault.rounds * self._scale))
        drive = Drive(
            *(self._memory, self._seed, number, self._lives, self._logs, self._tick),
            fault.options,
        )
        try:
            with drive, show_progress(fault.title, total, "faults") as tell:
                for part in range(parts):
                    count = total * (part + 1) // parts - total * part // parts
                    done = functools.partial(_add, tell, row.count)
                    row.count += rounds.run(drive, fault, count, done)
                row.recovered = drive.daemon.header("recovered")
                rounds.look_for_leaks(drive)
        except DaemonFailed as error:
            drive.verdict.add(error.counter, f"{error}; the row ended early")
        except (WheelError, RuntimeError) as error:
            drive.verdict.add("crashed", f"{error}; the row ended early")
        rounds.count_ends(drive)
        row.verdict, row.stories = drive.verdict, drive.stories
        row.workers, self._lives = drive.crew.next_life - self._lives, drive.crew.next_life
        row.seconds = time.monotonic() - begin
        return row


def _add(tell: Callable[[int], None], before: int, done: int) -> None:
    tell(before + done)


def run(options: argparse.Namespace, logs: Path, tick: Callable[[], None]) -> int:
    """All rows, and what is printed about them; to stderr if stdout is for JSON."""
    out = sys.stderr if options.json == "-" else sys.stdout
    print(f"seed {options.seed}, scale {options.scale:g}", file=out, flush=True)
    torture = Torture(options.seed, options.scale, logs, tick)
    found = [torture.row(number, fault) for number, fault in enumerate(options.faults)]
    print("\n" + results.table(found), file=out, flush=True)
    print("\n" + results.figures(found), file=out, flush=True)
    clean = all(row.clean for row in found)
    if not clean:
        print(results.offences(found), file=out)
        print(
            f"\nagain: python -m proofs.torture --seed {options.seed} --scale {options.scale:g}",
            file=out,
        )
    if options.json:
        content = {
            "seed": options.seed,
            "scale": options.scale,
            "clean": clean,
            "rows": [row.as_json() for row in found],
        }
        text = json.dumps(content, indent=1)
        if options.json == "-":
            print(text)
        else:
            Path(options.json).write_text(text + "\n")
    return 0 if clean else FAILED


def main(arguments: list[str] | None = None) -> int:
    options = parse(arguments)
    logs = options.logs or Path(tempfile.mkdtemp(prefix="wheeld-torture-"))
    logs.mkdir(parents=True, exist_ok=True)
    code = FAILED
    try:
        with flagged_signals() as tick:
            code = run(options, logs, tick)
    except Interrupted:
        print("interrupted", file=sys.stderr)
        code = INTERRUPTED
    finally:
        if code == FAILED:
            print(f"messages of all processes: {logs}", file=sys.stderr)
        elif options.logs is None:
            shutil.rmtree(logs, ignore_errors=True)
    return code


if __name__ == "__main__":
    sys.exit(main())
