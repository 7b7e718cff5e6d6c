"""Break the core on purpose, one line at a time, and see each break caught: `make mutants`.

    python tools/mutants.py [--only TEXT ...] [--part K/N] [--jobs N] [--json] [--list]

tools/mutants.toml lists the mutations, each with the test that must catch it. Every such test
passes first on the core as it is; then each mutation is made in a private copy of the checkout, and
its test must fail there with a report of its own: an assertion, a sanitizer's warning, a crash, a
watchdog. A mutation that does not compile, or a test that merely hangs, counts for nothing. Prints
a table; exits with 1 if a mutation was not caught.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path

import sanitize

ROOT = Path(__file__).resolve().parent.parent
LIST = ROOT / "tools" / "mutants.toml"
COPIED = ("core", "client", "pipeline", "testing", "wheeld", "tests", "tools", "pyproject.toml")
NOT_COPIED = shutil.ignore_patterns("__pycache__", "*.so", "*.egg-info", ".*")
KINDS = sanitize.KINDS | {"plain": "-O1"}
SWEEP_FLAGS = "-std=c11 -D_GNU_SOURCE -O1 -static"
EXTENSION_FLAGS = "-std=c11 -D_GNU_SOURCE -O1 -fPIC -shared -fvisibility=hidden"
TIMEOUT_SECONDS = 300
"""Ends a test that hangs in spite of its own watchdog, which no test should do."""
REPORT = re.compile(
    r"FAIL (?P<c>\S+ .*?\.[ch]:\d+: .*)|(?P<watchdog>FAIL: .*)|(?P<python>^E  .+)"
    r"|(?P<sanitizer>WARNING: ThreadSanitizer: .*|ERROR: \w+Sanitizer: .*|runtime error: .*)"
    r"|(?P<crash>Fatal Python error: .*)",
    re.MULTILINE,
)
"""What a test prints when it fails for a reason of its own."""


@dataclass(frozen=True)
class Mutation:
    """One break: `old`, which stands once in `file`, becomes `new`."""

    name: str
    file: str
    old: str
    new: str
    breaks: str
    by: str

    def places(self, root: Path) -> int:
        """How often `old` stands in the file below `root`; 1 is right."""
        return (root / self.file).read_text().count(self.old)

    def apply(self, root: Path) -> None:
        """Make it, in a copy of the checkout."""
        path = root / self.file
        path.write_text(path.read_text().replace(self.old, self.new))


@dataclass(frozen=True)
class Verdict:
    """How a run of a test ended: `caught`, `passed`, or `broken`, which proves nothing."""

    word: str
    seconds: float
    report: str


@dataclass(frozen=True)
class Result:
    """A mutation and what its test had to say."""

    mutation: Mutation
    verdict: Verdict


def load(path: Path = LIST) -> list[Mutation]:
    """All mutations, in the order of the list."""
    tables = tomllib.loads(path.read_text())["mutation"]
    return [Mutation(**table) for table in tables]


# -- the tests that catch -------------------------------------------------------------------------


def copy_checkout(directory: Path) -> Path:
    """A private copy of what the tests need."""
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, directory / name, ignore=NOT_COPIED)
        else:
            shutil.copy(source, directory / name)
    return directory


def compile_c(source: Path, binary: Path, flags: str, root: Path) -> None:
    """Compile one file against the core below `root`. Raises CalledProcessError."""
    cc = shlex.split(sanitize.compiler() or "cc")
    command = [*cc, *shlex.split(flags), f"-I{root / 'core' / 'include'}", str(source)]
    subprocess.run(
        [*command, "-o", str(binary)], check=True, text=True, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )  # fmt: skip


def harness_command(root: Path, words: list[str]) -> list[str]:
    """`harness PROGRAM KIND [OPTION ...]`: a program of tests/c/harness."""
    program, kind, *options = words
    binary = root / f"{program}.{kind}"
    flags = f"{sanitize.COMMON} -Wno-error {KINDS[kind]}"
    compile_c(root / "tests" / "c" / "harness" / f"{program}.c", binary, flags, root)
    return [str(binary), *options]


def sweep_command(root: Path, words: list[str]) -> list[str]:
    """`sweep PROGRAM [OPTION ...]`: a program of tests/c/sweep."""
    program, *options = words
    binary = root / program
    points = "" if platform.machine() == "x86_64" else " -DSTEP_BY_POINTS"
    compile_c(root / "tests" / "c" / "sweep" / f"{program}.c", binary, SWEEP_FLAGS + points, root)
    return [str(binary), *options]


def pytest_command(root: Path, words: list[str]) -> list[str]:
    """`pytest NODE ...`: against an extension built from the core below `root`."""
    package = root / "core" / "wheeld_core"
    binary = package / f"_native{sysconfig.get_config_var('EXT_SUFFIX')}"
    flags = f"{EXTENSION_FLAGS} -I{sysconfig.get_path('include')}"
    compile_c(package / "native" / "module.c", binary, flags, root)
    options = ["-q", "-x", "--tb=short", "-p", "no:cacheprovider", "-p", "no:xdist"]
    return [sys.executable, "-m", "pytest", *options, *words]


COMMANDS: dict[str, Callable[[Path, list[str]], list[str]]] = {
    "harness": harness_command,
    "sweep": sweep_command,
    "pytest": pytest_command,
}


def environment(root: Path) -> dict[str, str]:
    """Of a test in a private copy: its own packages, its own sanitizer options."""
    paths = os.pathsep.join(
        str(root / name) for name in (".", "core", "client", "pipeline", "testing")
    )
    fixed = {"PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": "1", "WHEELD_TEST_SEED": "11"}
    return os.environ | sanitize.OPTIONS | fixed


def first_report(output: str) -> str:
    """The line of the output that says what went wrong; empty: there is none."""
    found = REPORT.search(output)
    if found is None:
        return ""
    text = next(group for group in found.groups() if group is not None)
    text = re.sub(r"^.*?\.[ch]:\d+: (?=\S)", "", text) if found["c"] else text
    return re.sub(r"^E +|^FAIL: ", "", text).strip()


def judge(returncode: int, output: str, seconds: float) -> Verdict:
    """What an exit status and an output say."""
    if returncode == 0:
        return Verdict("passed", seconds, "")
    report = first_report(output)
    if not report and returncode < 0:
        report = f"killed by {signal.Signals(-returncode).name}"
    if report:
        return Verdict("caught", seconds, report)
    tail = output.strip().splitlines()[-1:] or [f"exit status {returncode}"]
    return Verdict("broken", seconds, f"no report of its own: {tail[0]}")


def run_test(by: str, root: Path) -> Verdict:
    """Build and run one test over the core below `root`."""
    kind, *words = shlex.split(by)
    begun = time.monotonic()
    try:
        command = COMMANDS[kind](root, words)
        done = subprocess.run(
            command, cwd=root, env=environment(root), stdout=subprocess.PIPE, check=False,
            stderr=subprocess.STDOUT, text=True, errors="replace", timeout=TIMEOUT_SECONDS,
        )  # fmt: skip
    except subprocess.CalledProcessError as error:
        line = next((line for line in error.stdout.splitlines() if "error:" in line), "")
        return Verdict("broken", time.monotonic() - begun, f"does not compile: {line}")
    except subprocess.TimeoutExpired:
        return Verdict(
            "broken", time.monotonic() - begun, "hangs without a report from its watchdog"
        )
    return judge(done.returncode, done.stdout, time.monotonic() - begun)


def try_test(by: str, mutation: Mutation | None) -> Verdict:
    """Run a test in a private copy, with that mutation made in it or none."""
    with tempfile.TemporaryDirectory(prefix="wheeld-mutants-") as name:
        root = copy_checkout(Path(name))
        if mutation is not None:
            places = mutation.places(root)
            if places != 1:
                text = f"its text stands {places} times in {mutation.file}, not once"
                return Verdict("broken", 0.0, text)
            mutation.apply(root)
        return run_test(by, root)


# -- all of them ----------------------------------------------------------------------------------


def say(text: str) -> None:
    """Progress; the table alone goes to standard output."""
    print(text, file=sys.stderr, flush=True)


def failing_tests(mutations: Iterable[Mutation], pool: ThreadPoolExecutor) -> list[str]:
    """Run each test on the core as it is; the lines about those that do not pass."""
    tests = sorted({mutation.by for mutation in mutations})
    running = {pool.submit(try_test, by, None): by for by in tests}
    failing = []
    for count, done in enumerate(as_completed(running), 1):
        verdict = done.result()
        say(f"[{count}/{len(tests)}] {running[done]}: {verdict.word}, {verdict.seconds:.1f} s")
        if verdict.word != "passed":
            failing.append(f"{running[done]}: {verdict.report}")
    return failing


def make_all(mutations: list[Mutation], pool: ThreadPoolExecutor) -> list[Result]:
    """Make each mutation and run its test; in the order of the list."""
    running = {pool.submit(try_test, m.by, m): m for m in mutations}
    results = {}
    for count, done in enumerate(as_completed(running), 1):
        mutation, verdict = running[done], done.result()
        say(f"[{count}/{len(mutations)}] {mutation.name}: {verdict.word}, {verdict.report}")
        results[mutation.name] = Result(mutation, verdict)
    return [results[mutation.name] for mutation in mutations]


def print_table(results: list[Result]) -> None:
    """A line per mutation."""
    wide = max(len(result.mutation.name) for result in results)
    by_wide = max(len(result.mutation.by) for result in results)
    for result in results:
        verdict, mutation = result.verdict, result.mutation
        by = mutation.by if verdict.word == "caught" else "NOT CAUGHT"
        report = verdict.report or f"{mutation.by} passed"
        line = f"{mutation.name:{wide}}  {by:{by_wide}}  {verdict.seconds:5.1f}  {report[:100]}"
        print(line)


def part(text: str) -> slice:
    """The K-th of N parts of the list; `3/10` takes every tenth mutation from the third on."""
    number, _, count = text.partition("/")
    if not (number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count)):
        raise argparse.ArgumentTypeError(f"got {text!r}, expected K/N with 1 <= K <= N, as in 3/10")
    return slice(int(number) - 1, None, int(count))


def parse() -> argparse.Namespace:
    """What the command line asks for."""
    parser = argparse.ArgumentParser(
        description="Break the core on purpose and check that a test catches each break."
    )
    parser.add_argument("--only", nargs="+", default=[], metavar="TEXT", help="names with it")
    parser.add_argument("--part", type=part, default=slice(None), metavar="K/N", help="e.g. 3/10")
    parser.add_argument("--jobs", type=int, default=min(len(os.sched_getaffinity(0)), 4))
    parser.add_argument("--json", action="store_true", help="print the results as JSON")
    parser.add_argument("--list", action="store_true", help="print what each mutation breaks")
    return parser.parse_args()


def main() -> int:
    """Check the tests, make the mutations, print the table."""
    arguments = parse()
    mutations = load()
    if arguments.only:
        mutations = [m for m in mutations if any(text in m.name for text in arguments.only)]
    mutations = mutations[arguments.part]
    if not mutations:
        say("no such mutation")
        return 2
    if arguments.list:
        print("\n".join(f"{m.name}: {m.breaks}" for m in mutations))
        return 0
    if sanitize.compiler() is None:
        say("no C compiler: install gcc or clang, or set CC")
        return 2
    with ThreadPoolExecutor(arguments.jobs) as pool:
        if failing := failing_tests(mutations, pool):
            say("\n".join(["these fail without any mutation:", *failing]))
            return 1
        results = make_all(mutations, pool)
    caught = sum(result.verdict.word == "caught" for result in results)
    if arguments.json:
        print(json.dumps([asdict(result) for result in results], indent=1))
    else:
        print_table(results)
    (say if arguments.json else print)(f"{caught} of {len(results)} mutations caught")
    return 0 if caught == len(results) else 1


if __name__ == "__main__":
    sys.exit(main())
