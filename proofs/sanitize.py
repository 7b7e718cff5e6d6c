"""Build the C harness of the core and run it under the sanitizers. `make sanitize` runs this.

    python -m proofs.sanitize [--scale N] [--seed N] [--jitter N] [--plain | --arm64] [PROGRAM ...]

The programs are tests/c/harness/*.c. Without --plain each runs under ThreadSanitizer and under
AddressSanitizer with UndefinedBehaviorSanitizer; with it, as an optimised build with bigger counts:
millions of duels. With --arm64 they are built for arm64 and run by qemu. There is no suppression
file. Prints one line per run; exits with 1 if any failed.
"""

from __future__ import annotations

import argparse
import functools
import os
import secrets
import shlex
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from proofs import binaries

ROOT = Path(__file__).resolve().parent.parent
HARNESS = ROOT / "tests" / "c" / "harness"
INCLUDE = ROOT / "core" / "include"
PROGRAMS = tuple(sorted(path.stem for path in HARNESS.glob("*.c")))
COMMON = "-std=c11 -D_GNU_SOURCE -g1 -pthread -Wall -Wextra -Werror"
# Optimising what AddressSanitizer inserts takes longer than running it as it is.
KINDS = {
    "plain": "-O2",
    "thread": "-O1 -fsanitize=thread",
    "address": "-O0 -fsanitize=address,undefined -fno-sanitize-recover=all",
}
QUICKER = ("-fno-tree-pre", "-fno-code-hoisting")
"""Without these passes gcc -O2 takes 60 % of the time."""
OPTIONS = {
    "TSAN_OPTIONS": "halt_on_error=1",
    "ASAN_OPTIONS": "detect_leaks=1",
    "UBSAN_OPTIONS": "print_stacktrace=1",
}
ARM64_COMPILER = "aarch64-linux-gnu-gcc"
ARM64_RUNNER = ("qemu-aarch64", "-L", "/usr/aarch64-linux-gnu")
ARM64_PACKAGES = "gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user"
TIMEOUT_SECONDS = 900
"""Ends a program that hangs in spite of its own watchdog."""


def compiler() -> str | None:
    """The C compiler: $CC, else the first of cc, gcc and clang that is there."""
    for name in (os.environ.get("CC", ""), "cc", "gcc", "clang"):
        if name and shutil.which(shlex.split(name)[0]):
            return name
    return None


@functools.cache
def quicker() -> tuple[str, ...]:
    """`QUICKER`, if the compiler knows it: gcc does, clang does not."""
    command = [*shlex.split(compiler() or "cc"), *QUICKER, "-E", "-x", "c", os.devnull]
    known = subprocess.run(command, capture_output=True, check=False).returncode == 0
    return QUICKER if known else ()


def build(program: str, kind: str, include: Path = INCLUDE) -> Path:
    """Build one program as `kind`; returns the binary. Warnings are errors."""
    flags = [*shlex.split(f"{COMMON} {KINDS[kind]}"), *quicker()]
    return binaries.compiled(compiler(), flags, HARNESS / f"{program}.c", include)


@dataclass(frozen=True)
class Outcome:
    """How a run of a program ended."""

    passed: bool
    seconds: float
    output: str


def run(
    binary: Path, scale: int, seed: int, jitter: int = 64, runner: tuple[str, ...] = ()
) -> Outcome:
    """Run one binary to its end, by an emulator if one is given."""
    numbers = {"--scale": scale, "--seed": seed, "--jitter": jitter}
    command = [*runner, str(binary), *(str(word) for pair in numbers.items() for word in pair)]
    begun = time.monotonic()
    try:
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=os.environ | OPTIONS,
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        output = f"{error.stdout or ''}\nFAIL: still running after {TIMEOUT_SECONDS} s"
        return Outcome(False, time.monotonic() - begun, output)
    return Outcome(done.returncode == 0, time.monotonic() - begun, done.stdout)


def report(program: str, kind: str, binary: Path, arguments: argparse.Namespace) -> bool:
    """Run one program, print how it went; true if it passed."""
    runner = ARM64_RUNNER if arguments.arm64 else ()
    outcome = run(binary, arguments.scale, arguments.seed, arguments.jitter, runner)
    word = "ok" if outcome.passed else "FAILED"
    numbers = f"--scale {arguments.scale} --seed {arguments.seed} --jitter {arguments.jitter}"
    print(f"{program} {kind} {numbers}: {word}, {outcome.seconds:.1f} s", flush=True)
    if not outcome.passed:
        print(outcome.output, flush=True)
    return outcome.passed


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Run the C harness under the sanitizers.")
    parser.add_argument("programs", nargs="*", metavar="PROGRAM", help=", ".join(PROGRAMS))
    parser.add_argument("--scale", type=int, help="how many repetitions (default 2; plain: 20)")
    parser.add_argument("--seed", type=int, default=secrets.randbits(32))
    parser.add_argument("--jitter", type=int, default=64, help="delay 1 in N atomics; 0: none")
    parser.add_argument(
        "--plain", action="store_true", help="optimised, without sanitizer, more repetitions"
    )
    parser.add_argument("--arm64", action="store_true", help="for arm64, under qemu; scale 1")
    parser.add_argument("--include", type=Path, default=INCLUDE, help="where wheeld/*.h are")
    arguments = parser.parse_args()
    if unknown := set(arguments.programs) - set(PROGRAMS):
        parser.error(f"no such program: {', '.join(sorted(unknown))}")
    if arguments.arm64:
        os.environ["CC"] = ARM64_COMPILER
        if lacking := [
            name for name in (ARM64_COMPILER, ARM64_RUNNER[0]) if not shutil.which(name)
        ]:
            parser.error(f"{' and '.join(lacking)}: not found (Debian: {ARM64_PACKAGES})")
    if compiler() is None:
        parser.error("no C compiler: install gcc or clang, or set CC")
    arguments.programs = arguments.programs or PROGRAMS
    arguments.scale = arguments.scale or (20 if arguments.plain else 1 if arguments.arm64 else 2)
    return arguments


def main() -> int:
    arguments = parse()
    kinds = ["plain"] if arguments.plain or arguments.arm64 else ["thread", "address"]
    runs = [(program, kind) for program in arguments.programs for kind in kinds]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        built = list(pool.map(lambda run: build(*run, arguments.include), runs))
    passed = [report(*run, binary, arguments) for run, binary in zip(runs, built, strict=True)]
    print(f"{sum(passed)} passed, {len(passed) - sum(passed)} failed")
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
