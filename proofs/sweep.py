"""Kill, stop and corrupt at every instruction: build and run the programs of tests/c/sweep.

    python -m proofs.sweep [--seconds N] [--jobs N] [--seed N] [--stride N] [--json FILE] [PROGRAM]

Each program takes the paths of the core (a call of a worker, a piece of a pass) through all their
instructions: at each one the process that runs it is killed by SIGKILL, or stopped while the others
go on, and then the account of all timers has to be exact; see tests/c/sweep/sweep.h. A job is one
path with one seed; jobs run side by side until the time is up. Prints a table, and for each failure
the line that repeats it. Exits with 1 if there was any.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path

from proofs import binaries, sanitize

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "tests" / "c" / "sweep"
PROGRAMS = {
    "kill_worker": "kills",
    "kill_clock": "kills",
    "kill_trace": "kills",
    "kill_trace_full": "kills",
    "kill_pairs": "kills",
    "pause": "pauses",
    "corrupt": "corruptions",
    "kill_pool": "kills",
    "pause_pool": "pauses",
    "kill_watch": "kills",
    "pause_watch": "pauses",
    "kill_words": "kills",
    "pause_words": "pauses",
    "kill_leases": "kills",
    "pause_leases": "pauses",
    "kill_limits": "kills",
    "pause_limits": "pauses",
    "kill_keys": "kills",
    "pause_keys": "pauses",
    "kill_kept": "kills",
    "pause_kept": "pauses",
    "pause_row": "pauses",
    "corrupt_sharing": "corruptions",
}
"""The action of each program at a stop."""
FLAGS = "-std=c11 -D_GNU_SOURCE -g1 -Wall -Wextra -Wno-unused-function -Wno-unused-variable -Werror"
UNDEFINED = "-fsanitize=undefined -fno-sanitize-recover=all"
EXTRA = dict.fromkeys((name for name in PROGRAMS if name.startswith("corrupt")), UNDEFINED)
"""Programs that are not stepped through are also built with UndefinedBehaviorSanitizer."""
STOPS = re.compile(r"^ok: (\d+) stops", re.MULTILINE)
JOB_SECONDS = 300
"""Ends a job that hangs in spite of its own alarm."""


def by_instruction() -> bool:
    """Whether this machine has the trap flag; else the stops are the operations on atomics."""
    return platform.machine() in ("x86_64", "AMD64")


def build(program: str, include: Path = sanitize.INCLUDE) -> Path:
    """Build one program, static where that is possible: a smaller process forks faster."""
    flags = [*f"{FLAGS} -O2 {EXTRA.get(program, '')}".split(), *sanitize.quicker()]
    source = SOURCES / f"{program}.c"
    try:
        return binaries.compiled(sanitize.compiler(), [*flags, "-static"], source, include)
    except RuntimeError:
        return binaries.compiled(sanitize.compiler(), flags, source, include)


@dataclass(frozen=True)
class Job:
    """One path of a program with one seed."""

    program: str
    path: str
    seed: int


@dataclass(frozen=True)
class Outcome:
    """How a job ended: `failure` is None, or its output."""

    job: Job
    stops: int
    seconds: float
    failure: str | None


@dataclass
class Tally:
    """The results of one program's jobs."""

    unit: str
    stops: int = 0
    jobs: int = 0
    seconds: float = 0.0
    failures: list[str] = field(default_factory=list)


def paths(binary: Path) -> list[str]:
    command = [str(binary), "--list", "1"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()


def run(binary: Path, job: Job, *, stride: int, until: float, stops: int, bounded: bool) -> Outcome:
    """Run one job, to its end or, if `bounded`, until the time is up."""
    left = max(1, round(until - time.monotonic()))
    command = [str(binary), "--path", job.path, "--seed", str(job.seed)]
    if job.program in EXTRA:
        command += ["--stops", str(stops)]
    else:
        command += ["--stride", str(stride)]
        if bounded:
            command += ["--seconds", str(left)]
    begun = time.monotonic()
    done = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        output, _ = done.communicate(timeout=left + JOB_SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(done.pid, 9)
        output = f"FAIL {' '.join(command)}: still running"
        done.wait()
    counted = STOPS.search(output)
    failure = None if done.returncode == 0 and counted else (output.strip() or f"{done.returncode}")
    return Outcome(job, int(counted[1]) if counted else 0, time.monotonic() - begun, failure)


@dataclass
class Sweep:
    binaries: dict[str, Path]
    seed: int
    stride: int
    until: float
    rounds: int
    tallies: dict[str, Tally]
    corruptions: int = 50_000
    quiet: bool = False
    only: frozenset[str] = frozenset()
    timed: bool = True
    lock: threading.Lock = field(default_factory=threading.Lock)
    failed: set[tuple[str, str]] = field(default_factory=set)

    def jobs(self) -> Iterator[Job]:
        """Seed after seed, all paths of all programs; the first seed whatever the time."""
        known = {program: paths(binary) for program, binary in self.binaries.items()}
        for seed in range(self.seed, self.seed + self.rounds):
            for program, names in known.items():
                for path in names:
                    if seed > self.seed and time.monotonic() > self.until and self.timed:
                        return
                    if (program, path) not in self.failed and (not self.only or path in self.only):
                        yield Job(program, path, seed)

    def work(self, jobs: Iterator[Job]) -> None:
        while True:
            with self.lock:
                job = next(jobs, None)
            if job is None:
                return
            outcome = run(
                self.binaries[job.program],
                job,
                stride=self.stride,
                until=self.until,
                stops=self.corruptions,
                bounded=self.timed and job.seed > self.seed,
            )
            with self.lock:
                self.note(outcome)

    def note(self, outcome: Outcome) -> None:
        tally = self.tallies[outcome.job.program]
        tally.jobs += 1
        tally.stops += outcome.stops
        tally.seconds += outcome.seconds
        if outcome.failure is not None:
            self.failed.add((outcome.job.program, outcome.job.path))
            tally.failures.append(outcome.failure)
            print(outcome.failure, flush=True)
        elif not self.quiet and sum(each.jobs for each in self.tallies.values()) % 50 == 0:
            total = sum(each.stops for each in self.tallies.values())
            print(f"  seed {outcome.job.seed}: {total:,} so far", flush=True)


def sweep(
    programs: list[str],
    *,
    seed: int,
    seconds: float = 0.0,
    stride: int = 1,
    jobs: int = 1,
    rounds: int = 1,
    corruptions: int = 50_000,
    include: Path = sanitize.INCLUDE,
    quiet: bool = False,
    only: Iterable[str] = (),
) -> dict[str, Tally]:
    """Build and run `programs`, `rounds` seeds of each path, or of those in `only`.

    With `seconds` it ends when they are over, at the end of the first seed at the soonest. Returns
    what came of each program."""
    with ThreadPoolExecutor(jobs) as pool:
        built = pool.map(lambda program: build(program, include), programs)
        state = Sweep(
            dict(zip(programs, built, strict=True)),
            seed,
            stride,
            time.monotonic() + seconds,
            rounds,
            {program: Tally(PROGRAMS[program]) for program in programs},
            corruptions,
            quiet,
            frozenset(only),
            seconds > 0,
        )
        todo = state.jobs()
        for worker in [pool.submit(state.work, todo) for _ in range(jobs)]:
            worker.result()
    return state.tallies


def table(tallies: dict[str, Tally], seconds: float) -> Iterator[str]:
    yield f"{'program':<15} {'':>12} {'count':>12} {'jobs':>6} {'per s':>9} {'failed':>7}"
    for program, tally in tallies.items():
        rate = tally.stops / tally.seconds if tally.seconds else 0.0
        yield (
            f"{program:<15} {tally.unit:>12} {tally.stops:>12,} {tally.jobs:>6} {rate:>9,.0f} "
            f"{len(tally.failures):>7}"
        )
    kills = sum(tally.stops for tally in tallies.values() if tally.unit == "kills")
    what = "instructions" if by_instruction() else "operations on atomics (no trap flag here)"
    yield f"{kills:,} kills at distinct {what}, paths and seeds in {seconds:.0f} s"


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Kill a process at every instruction.")
    parser.add_argument("programs", nargs="*", metavar="PROGRAM", help=", ".join(PROGRAMS))
    parser.add_argument("--seconds", type=float, default=300.0, help="0: one seed of each path")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="side by side")
    parser.add_argument("--seed", type=int, default=secrets.randbits(31))
    parser.add_argument("--stride", type=int, default=1, help="stops are up to N steps apart")
    parser.add_argument("--corruptions", type=int, default=500_000, help="per job")
    parser.add_argument(
        "--include", type=Path, default=sanitize.INCLUDE, help="where wheeld/*.h are"
    )
    parser.add_argument("--json", type=Path, help="write the counts to this file")
    arguments = parser.parse_args()
    if unknown := set(arguments.programs) - set(PROGRAMS):
        parser.error(f"no such program: {', '.join(sorted(unknown))}")
    if sanitize.compiler() is None:
        parser.error("no C compiler: install gcc or clang, or set CC")
    arguments.programs = arguments.programs or list(PROGRAMS)
    return arguments


def main() -> int:
    arguments = parse()
    print(f"seed {arguments.seed}, {arguments.jobs} jobs, {arguments.seconds:.0f} s", flush=True)
    begun = time.monotonic()
    tallies = sweep(
        arguments.programs,
        seed=arguments.seed,
        seconds=arguments.seconds,
        rounds=1_000_000 if arguments.seconds else 1,
        stride=arguments.stride,
        jobs=arguments.jobs,
        corruptions=arguments.corruptions,
        include=arguments.include,
    )
    seconds = time.monotonic() - begun
    print("\n".join(table(tallies, seconds)))
    if arguments.json:
        counts = {program: asdict(tally) for program, tally in tallies.items()}
        report = {"seed": arguments.seed, "seconds": seconds, "programs": counts}
        arguments.json.write_text(json.dumps(report, indent=1) + "\n")
    return 1 if any(tally.failures for tally in tallies.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
