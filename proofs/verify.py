"""Check the models of proofs/models/ and that each of their mutants fails, for `make verify`.

    python -m proofs.verify [--quick] [--json] [--keep DIR] [MODEL ...]

A model is searched exhaustively: every interleaving, every place where a process may die. Its first
comment says what it mutates (`MUTANT 3: ...`) and, if one search is not enough, with which sizes it
is run (`RUN: -DARMS=2`); mutants get the first of these, or their own (`MUTANT 4 [-DARMS=3]: ...`).
A mutant has one step swapped or dropped: a model in which that breaks nothing proves nothing.
Prints one line per run; exits with 1 if anything is not as expected.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from proofs.sanitize import compiler

ROOT = Path(__file__).resolve().parent.parent
MODELS = ROOT / "proofs" / "models"
NAMES = tuple(sorted(path.stem for path in MODELS.glob("*.pml")))
TIMEOUT_SECONDS = 600
SEARCH = ["-m1000000", "-w22"]
LIMITS = "-DMEMLIM=6144"
INCOMPLETE = re.compile(r"max search depth too small|out of memory|reached -DMEMLIM", re.I)


class VerifyError(Exception):
    """Spin, the compiler or the search itself could not do its work."""


@dataclass(frozen=True)
class Run:
    """One search that is to be made."""

    model: str
    mutant: int
    what: str
    sizes: str = ""
    cycles: bool = False

    @property
    def should_pass(self) -> bool:
        return self.mutant == 0


@dataclass(frozen=True)
class Outcome:
    """How a search ended."""

    model: str
    mutant: int
    what: str
    states: int
    result: str
    expected: bool
    seconds: float


def header(model: str, directory: Path = MODELS) -> str:
    return (directory / f"{model}.pml").read_text(encoding="utf-8").split("*/", 1)[0]


def mutants(model: str) -> dict[int, tuple[str, str]]:
    """A model's mutations by number: their own sizes or "", and a description."""
    found = re.findall(r"MUTANT (\d+)(?: \[(.*?)\])?: (.+)", header(model))
    return {int(number): (sizes, text) for number, sizes, text in found}


def runs(model: str, quick: bool = False) -> Iterator[Run]:
    """The searches of one model: as it is, then each of its mutants (quick: the first)."""
    text = header(model)
    sizes = re.findall(r"RUN: (.+)", text) or [""]
    for number, size in enumerate(sizes):
        if number == 0 or not quick:
            yield Run(model, 0, f"as it is {size}".strip(), size)
    if "NO CYCLES" in text and not quick:
        yield Run(model, 0, "as it is: no cycles", sizes[0], cycles=True)
    for number, (own, what) in mutants(model).items():
        if number == 1 or not quick:
            yield Run(model, number, what, own or sizes[0])


def _tool(command: list[str], directory: Path) -> str:
    try:
        done = subprocess.run(
            command,
            cwd=directory,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise VerifyError(f"{command[0]} still runs after {TIMEOUT_SECONDS} s") from None
    if done.returncode:
        raise VerifyError(f"{shlex.join(command)} failed:\n{done.stdout}")
    return done.stdout


def search(run: Run, directory: Path) -> Outcome:
    """Make one search in `directory`, which is left with all that it made."""
    began = time.monotonic()
    shutil.copy(MODELS / f"{run.model}.pml", directory / "model.pml")
    sizes = shlex.split(run.sizes)
    _tool(["spin", "-a", f"-DMUTANT={run.mutant}", *sizes, "model.pml"], directory)
    kind = "-DNP" if run.cycles else "-DSAFETY"
    # -O0: to optimise takes longer than it saves; -w: what spin writes is not ours
    _tool(
        [*shlex.split(compiler() or "cc"), "-O0", "-w", kind, LIMITS, "-o", "pan", "pan.c"],
        directory,
    )
    output = _tool(["./pan", *SEARCH, *(["-l"] if run.cycles else [])], directory)
    errors, states = re.search(r"errors: (\d+)", output), re.search(r"(\d+) states, stored", output)
    if errors is None or states is None:
        raise VerifyError(f"cannot read what the search of {run.model} printed:\n{output}")
    passed = errors[1] == "0"
    if passed and INCOMPLETE.search(output):
        raise VerifyError(
            f"the search of {run.model}, mutant {run.mutant}, is incomplete:\n{output}"
        )
    found = re.search(r"^pan:1: (.*) \(at depth", output, re.M)
    result = "passes" if passed else f"fails: {found[1] if found else 'see its trail'}"
    expected = (
        passed if run.should_pass else not passed and (directory / "model.pml.trail").exists()
    )
    seconds = round(time.monotonic() - began, 1)
    return Outcome(run.model, run.mutant, run.what, int(states[1]), result, expected, seconds)


def missing() -> str | None:
    if shutil.which("spin") is None:
        return "spin is not installed: apt-get install spin"
    if compiler() is None:
        return "no C compiler, which spin's searches need: apt-get install gcc, or set CC"
    return None


def line(outcome: Outcome) -> str:
    mark = "ok" if outcome.expected else "WRONG"
    number = str(outcome.mutant) if outcome.mutant else "-"
    row = f"{outcome.model:16} {number:>3} {outcome.states:>9} {outcome.seconds:>6.1f}  {mark:5} "
    return f"{row} {'passes' if outcome.result == 'passes' else 'fails'}  {outcome.what}"


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Check the models, and that their mutants fail.")
    parser.add_argument("models", nargs="*", metavar="MODEL", help=", ".join(NAMES))
    parser.add_argument("--quick", action="store_true", help="each model and one mutant of it")
    parser.add_argument("--json", action="store_true", help="print the outcomes as JSON")
    parser.add_argument("--keep", type=Path, metavar="DIR", help="keep sources and trails there")
    arguments = parser.parse_args()
    if unknown := set(arguments.models) - set(NAMES):
        parser.error(f"no such model: {', '.join(sorted(unknown))}")
    if (lacking := missing()) is not None:
        parser.error(lacking)
    return arguments


def verify(arguments: argparse.Namespace, base: Path) -> list[Outcome]:
    outcomes = []
    if not arguments.json:
        print(f"{'model':16} {'mut':>3} {'states':>9} {'s':>6}")
    for model in arguments.models or NAMES:
        for number, run in enumerate(runs(model, arguments.quick)):
            directory = base / f"{model}-{number}-mutant-{run.mutant}"
            directory.mkdir(parents=True, exist_ok=True)
            outcomes.append(search(run, directory))
            if not arguments.json:
                print(line(outcomes[-1]), flush=True)
    return outcomes


def main() -> int:
    arguments = parse()
    try:
        with tempfile.TemporaryDirectory(prefix="wheeld-verify-") as temporary:
            outcomes = verify(arguments, arguments.keep or Path(temporary))
    except VerifyError as error:
        print(f"verify: {error}", file=sys.stderr)
        return 1
    wrong = [outcome for outcome in outcomes if not outcome.expected]
    if arguments.json:
        print(json.dumps([asdict(outcome) for outcome in outcomes], indent=2))
    else:
        seconds = sum(outcome.seconds for outcome in outcomes)
        print(f"{len(outcomes) - len(wrong)} as expected, {len(wrong)} not, {seconds:.0f} s")
    for outcome in wrong:
        print(
            f"verify: {outcome.model}, mutant {outcome.mutant}: {outcome.result}; to see the steps "
            "run it with --keep DIR, then `spin -t -p model.pml` in its directory there",
            file=sys.stderr,
        )
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
