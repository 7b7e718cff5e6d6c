"""Break the core on purpose, one line at a time, and see each break caught: `make mutants`.

    python -m proofs.mutants [--only TEXT ...] [--part K/N] [--jobs N] [--json] [--list]

proofs/mutants.txt lists the mutations, each with the test that must catch it. That test passes
first on the core as it is, once for all its mutations; then the mutation is made in a private copy
of the checkout, and the test must fail there with a report of its own: an assertion, a sanitizer's
warning, a crash, a watchdog. A mutation that does not compile, or a test that merely hangs, counts
for nothing. Prints a table; exits with 1 if a mutation was not caught.
"""

from __future__ import annotations

import argparse
import contextlib
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
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from proofs import binaries, sanitize

ROOT = Path(__file__).resolve().parent.parent
LIST = ROOT / "proofs" / "mutants.txt"
COPIED = (
    *("core", "client", "pipeline", "testing", "wheeld", "tests", "tools", "proofs"),
    *("docs", "pyproject.toml", "shm_layout.md"),
)
NOT_COPIED = shutil.ignore_patterns("__pycache__", "*.so", "*.egg-info", ".*")
KINDS = sanitize.KINDS | {"plain": "-O0"}
SWEEP_FLAGS = "-std=c11 -D_GNU_SOURCE -O1 -static"
EXTENSION_FLAGS = "-std=c11 -D_GNU_SOURCE -O0 -fPIC -shared -fvisibility=hidden"
TIMEOUT_SECONDS = 300
"""Ends a test that hangs in spite of its own watchdog, which no test should do."""
REPORT = re.compile(
    r"FAIL (?P<c>\S+ .*?\.[ch]:\d+: .*)|(?P<watchdog>FAIL: .*)|(?P<python>^E  .+)"
    r"|(?P<sanitizer>WARNING: ThreadSanitizer: .*|ERROR: \w+Sanitizer: .*|runtime error: .*)"
    r"|(?P<crash>Fatal Python error: .*)",
    re.MULTILINE,
)
"""A test prints this when it fails properly, rather than by accident."""


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

    @contextlib.contextmanager
    def made(self, root: Path) -> Iterator[None]:
        """Make it in a copy of the checkout, and undo it."""
        path = root / self.file
        before, times = path.read_text(), path.stat()
        path.write_text(before.replace(self.old, self.new))
        try:
            yield
        finally:
            path.write_text(before)
            os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))  # its bytecode is right again

    @property
    def is_python(self) -> bool:
        return self.file.endswith(".py")


@dataclass(frozen=True)
class Verdict:
    """How a run of a test ended: `caught`, `passed`, or `broken`, which proves nothing."""

    word: str
    seconds: float
    report: str


@dataclass(frozen=True)
class Result:
    mutation: Mutation
    verdict: Verdict


HEAD = re.compile(r"(?P<name>[\w-]+) \[(?P<by>.+?)\] (?P<breaks>.+)")


def load(path: Path = LIST) -> list[Mutation]:
    found: list[Mutation] = []
    file, old, new = "", list[str](), list[str]()

    def complete() -> None:
        if old or new:
            found[-1] = replace(found[-1], old="\n".join(old), new="\n".join(new))

    for line in path.read_text().splitlines():
        if head := HEAD.fullmatch(line):
            complete()
            found.append(Mutation(file=file, old="", new="", **head.groupdict()))
            old, new = [], []
        elif line.startswith("@ "):
            file = line[2:]
        elif line.startswith("= "):
            one, _, other = line[2:].partition(" => ")
            old, new = [one], [other]
        elif not line.startswith("#"):
            old += [line[1:]] * (not line.startswith("+"))
            new += [line[1:]] * (not line.startswith("-"))
    complete()
    return found


# -- the tests that catch -------------------------------------------------------------------------


@dataclass(frozen=True)
class Copy:
    """A private copy of the checkout, with or without a mutation."""

    root: Path
    mutation: Mutation | None


def copy_checkout(directory: Path) -> Path:
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, directory / name, ignore=NOT_COPIED)
        else:
            shutil.copy(source, directory / name)
    return directory


@contextlib.contextmanager
def private_root() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="wheeld-mutants-") as name:
        yield copy_checkout(Path(name))


def compile_c(source: Path, binary: Path, flags: str, copy: Copy) -> None:
    """Compile one file against the core of that copy. Raises RuntimeError.

    Binaries of the checkout are kept, for the next run and for `make test`; binaries of a mutation
    are not."""
    compiler, include = sanitize.compiler() or "cc", copy.root / "core" / "include"
    words = [*shlex.split(flags), *sanitize.quicker()]
    if copy.mutation is not None and not copy.mutation.is_python:
        binaries.compile_to(binary, compiler, words, source, include)
    else:
        shutil.copy(binaries.compiled(compiler, words, source, include), binary)


def harness_command(copy: Copy, words: list[str]) -> list[str]:
    """`harness PROGRAM KIND [OPTION ...]`: a program of tests/c/harness."""
    program, kind, *options = words
    binary = copy.root / f"{program}.{kind}"
    flags = f"{sanitize.COMMON} -Wno-error {KINDS[kind]}"
    compile_c(copy.root / "tests" / "c" / "harness" / f"{program}.c", binary, flags, copy)
    return [str(binary), "--first", "1", "--spin", "5", *options]


def sweep_command(copy: Copy, words: list[str]) -> list[str]:
    """`sweep PROGRAM [OPTION ...]`: a program of tests/c/sweep."""
    program, *options = words
    binary = copy.root / program
    points = "" if platform.machine() == "x86_64" else " -DSTEP_BY_POINTS"
    source = copy.root / "tests" / "c" / "sweep" / f"{program}.c"
    compile_c(source, binary, SWEEP_FLAGS + points, copy)
    return [str(binary), *options]


def pytest_command(copy: Copy, words: list[str]) -> list[str]:
    """`pytest NODE ...`: against an extension built from the core of that copy."""
    package = copy.root / "core" / "wheeld_core"
    binary = package / f"_native{sysconfig.get_config_var('EXT_SUFFIX')}"
    flags = f"{EXTENSION_FLAGS} -I{sysconfig.get_path('include')}"
    compile_c(package / "native" / "module.c", binary, flags, copy)
    options = ["-q", "-x", "--tb=short", "-p", "no:cacheprovider", "-p", "no:xdist"]
    return [sys.executable, "-m", "pytest", *options, *words]


COMMANDS: dict[str, Callable[[Copy, list[str]], list[str]]] = {
    "harness": harness_command,
    "sweep": sweep_command,
    "pytest": pytest_command,
}


def environment(copy: Copy) -> dict[str, str]:
    """The environment of a test in a private copy: its packages and sanitizer options.

    Bytecode of a mutation is not for others."""
    paths = os.pathsep.join(
        str(copy.root / name) for name in (".", "core", "client", "pipeline", "testing")
    )
    without = "1" if copy.mutation is not None and copy.mutation.is_python else ""
    fixed = {"PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": without, "WHEELD_TEST_SEED": "11"}
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
    if returncode == 0:
        return Verdict("passed", seconds, "")
    report = first_report(output)
    if not report and returncode < 0:
        report = f"killed by {signal.Signals(-returncode).name}"
    if report:
        return Verdict("caught", seconds, report)
    tail = output.strip().splitlines()[-1:] or [f"exit status {returncode}"]
    return Verdict("broken", seconds, f"no report of its own: {tail[0]}")


def run_test(by: str, copy: Copy) -> Verdict:
    """Build and run one test over the core of that copy."""
    kind, *words = shlex.split(by)
    begun = time.monotonic()
    try:
        command = COMMANDS[kind](copy, words)
        done = subprocess.run(
            command, cwd=copy.root, env=environment(copy), stdout=subprocess.PIPE, check=False,
            stderr=subprocess.STDOUT, text=True, errors="replace", timeout=TIMEOUT_SECONDS,
        )  # fmt: skip
    except RuntimeError as error:
        line = next((line for line in str(error).splitlines() if "error:" in line), "")
        return Verdict("broken", time.monotonic() - begun, f"does not compile: {line}")
    except subprocess.TimeoutExpired:
        return Verdict(
            "broken", time.monotonic() - begun, "hangs without a report from its watchdog"
        )
    return judge(done.returncode, done.stdout, time.monotonic() - begun)


def try_in(root: Path, by: str, mutation: Mutation | None) -> Verdict:
    if mutation is None:
        return run_test(by, Copy(root, None))
    places = mutation.places(root)
    if places != 1:
        text = f"its text stands {places} times in {mutation.file}, not once"
        return Verdict("broken", 0.0, text)
    with mutation.made(root):
        return run_test(by, Copy(root, mutation))


def try_test(by: str, mutation: Mutation | None) -> Verdict:
    with private_root() as root:
        return try_in(root, by, mutation)


# -- all of them ----------------------------------------------------------------------------------


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


class MutationRun:
    """Mutations tried side by side, each thread in a copy of its own, which it keeps."""

    def __init__(self, jobs: int) -> None:
        self._jobs = jobs
        self._lock = threading.Lock()
        self._unmutated: dict[str, Future[Verdict]] = {}
        self._own = threading.local()
        self._copies = contextlib.ExitStack()

    def _begin(self) -> None:
        self._own.root = self._copies.enter_context(private_root())

    def _as_it_is(self, by: str) -> Verdict:
        """The result of a test on the unmodified core; it is run once."""
        with self._lock:
            first = by not in self._unmutated
            future = self._unmutated.setdefault(by, Future())
        if first:
            try:
                future.set_result(try_in(self._own.root, by, None))
            except BaseException as error:
                future.set_exception(error)
                raise
            say(f"{by}: {future.result().word} as it is, {future.result().seconds:.1f} s")
        return future.result()

    def _try(self, mutation: Mutation) -> Result:
        verdict = self._as_it_is(mutation.by)
        if verdict.word == "passed":
            return Result(mutation, try_in(self._own.root, mutation.by, mutation))
        report = f"fails without any mutation: {verdict.report}"
        return Result(mutation, Verdict("broken", verdict.seconds, report))

    def results(self, mutations: list[Mutation]) -> list[Result]:
        done = {}
        with self._copies, ThreadPoolExecutor(self._jobs, initializer=self._begin) as pool:
            running = [pool.submit(self._try, mutation) for mutation in mutations]
            for count, future in enumerate(as_completed(running), 1):
                name, verdict = future.result().mutation.name, future.result().verdict
                took = f"{verdict.seconds:.1f} s"
                say(f"[{count}/{len(mutations)}] {name}: {verdict.word}, {took}, {verdict.report}")
                done[name] = future.result()
        return [done[mutation.name] for mutation in mutations]


def print_table(results: list[Result]) -> None:
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
    results = MutationRun(arguments.jobs).results(mutations)
    caught = sum(result.verdict.word == "caught" for result in results)
    if arguments.json:
        print(json.dumps([asdict(result) for result in results], indent=1))
    else:
        print_table(results)
    (say if arguments.json else print)(f"{caught} of {len(results)} mutations caught")
    return 0 if caught == len(results) else 1


if __name__ == "__main__":
    sys.exit(main())
