"""The table of docs/threat-model.md: who it is, what it is tried on, and which test shows it."""

import ast
import re
import subprocess
import sys
from pathlib import Path

from children import receive
from common_fixtures import daemon_process
from daemons import Daemon, until
from remotes import Remote
from strangers import GROUP, OTHER, as_root, as_user, member
from wheeld_client import connect

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "threat-model.md"
THINGS = [
    *("files", "segments", "bells", "socket", "names", "state"),
    "words of keys, leases, limits",
]
ATTACKERS = ["an outsider", "a member", "the same user", "a false daemon"]


def cells() -> dict[tuple[str, str], str]:
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("|")]
    head, _, *rows = [[part.strip() for part in line.strip("|").split(" | ")] for line in lines]
    assert head[1:] == THINGS
    return {
        (re.findall(r"\*\*(.+?)\*\*", row[0])[0], thing): cell
        for row in rows
        for thing, cell in zip(THINGS, row[1:], strict=True)
    }


def test_each_cell_has_its_test() -> None:
    found = cells()
    assert set(found) == {(who, thing) for who in ATTACKERS for thing in THINGS}
    for place, cell in found.items():
        named = re.findall(r"`(test_\w+\.py)::(test_\w+)`", cell)
        assert named, place
        for file, test in named:
            source = source_of(file, test)
            assert source, f"{file}::{test} is not there"
            if place[0] != "the same user":
                assert re.search(AS_ANOTHER, source), f"{file}::{test} becomes nobody else"


AS_ANOTHER = r"\b(as_user|member|stranger|run_as_stranger|false: False_)\b"
"""Parts of tests/support/strangers.py, or made with it, that run a process as another user."""


def source_of(file: str, test: str) -> str:
    (path,) = (ROOT / "tests").glob(f"*/{file}")
    tree = ast.parse(text := path.read_text())
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
    if test not in functions:
        return ""
    called = {node.id for node in ast.walk(functions[test]) if isinstance(node, ast.Name)}
    wanted = [functions[name] for name in (test, *sorted(called & set(functions)))]
    return "\n".join(ast.get_source_segment(text, node) or "" for node in wanted)


daemon = daemon_process(started=False, for_all=True)


OPEN_ALL = """
import os, sys
for path in sys.argv[1:]:
    for flags in (os.O_RDONLY, os.O_WRONLY):
        try:
            os.open(path, flags)
            print("opened", path)
        except (PermissionError, IsADirectoryError, FileNotFoundError):
            pass
    try:
        print("listed", os.listdir(path))
    except (PermissionError, NotADirectoryError, FileNotFoundError):
        pass
print("done")
"""


@as_root
def test_what_is_written_down_is_the_daemons(daemon: Daemon, runtime_dir: Path) -> None:
    outsider, insider = as_user(), member(OTHER)
    state, trace = runtime_dir / "state", runtime_dir / "trace"
    daemon.start(group=GROUP, state_dir=state, trace=trace, snapshot_every="10ms")
    with connect(str(daemon.directory), worker="w", on_death="keep") as timers:
        timers.schedule(1000.0)
        until((state / f"{daemon.name}.snapshot").exists, "a snapshot")
        until(lambda: list(trace.rglob("*.records")), "a spool")
        paths = [state, trace, *state.rglob("*"), *trace.rglob("*")]
        assert len(paths) > 4
        for before in (outsider, insider):
            command = [*before, sys.executable, "-c", OPEN_ALL, *map(str, paths)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=60)
            assert (done.stdout, done.stderr) == ("done\n", "")


SCRIBBLE = """
import glob, mmap, os, sys, time
import numpy as np
prefix, seed = sys.argv[1], int(sys.argv[2])
rng, maps = np.random.default_rng(seed), []
for path in glob.glob(prefix + "*"):
    try:
        maps.append(np.frombuffer(mmap.mmap(os.open(path, os.O_RDWR), 0), "<u8"))
    except PermissionError:
        pass
print(len(maps), flush=True)
absurd = np.array([2**30 - 1, 2**63, 2**64 - 1, 0, 1 << 32 | 2**30 - 1, 3 << 32 | 1 << 30 | 99_999],
                  np.uint64)
while True:
    for words in maps:
        at = rng.integers(len(words), size=200)
        words[at] = rng.integers(0, 2**64 - 1, len(at), np.uint64, endpoint=True)
        at = rng.integers(len(words), size=2000)
        words[at] = rng.choice(absurd, len(at))
"""

GO_ON = """
def go_on(seconds):
    done, errors, end = 0, 0, time.monotonic() + seconds
    rng = np.random.default_rng(1)
    while time.monotonic() < end:
        try:
            ids = timers.schedule_many(rng.exponential(0.002, 50), block=False)
            timers.cancel_many(ids[:5], block=False)
            timers.reschedule_many(ids[5:8], np.full(3, 0.001), block=False)
            timers.poll(0.001)
            timers.poll(0)
        except (WheelError, ValueError, MemoryError):
            errors += 1
        done += 1
    return done
"""


def go_on_beside(
    daemon: Daemon, seed: int, prefix: str, files: int, program: str, call: str
) -> None:
    """Two workers run `call` of a program while a member overwrites the files of a prefix; so many
    there are. Then the daemon serves whoever comes."""
    with Remote(daemon, worker="a") as first, Remote(daemon, member(OTHER), worker="b") as second:
        for worker in (first, second):
            worker.ask(program)
        command = [*member(OTHER), sys.executable, "-c", SCRIBBLE, prefix, str(seed)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as hostile:
            try:
                assert hostile.stdout is not None
                assert hostile.stdout.readline() == b"%d\n" % files
                for worker in (first, second):
                    worker.tell(call)
                for worker in (first, second):
                    assert worker.answer() > 0
            finally:
                hostile.kill()
        assert daemon.status()["pid"] == daemon.pid
    until(lambda: daemon.workers() == {}, "reaped", 120)
    with connect(str(daemon.directory)) as timers:
        timers.schedule(0.0, 1)
        assert receive(timers, 1)["cookie"].tolist() == [1]
    assert "Traceback" not in daemon.said()
    assert daemon.status()["clock_restarts"] == 0


@as_root
def test_a_member_that_overwrites_what_it_may(daemon: Daemon, rng_seed: int) -> None:
    """All of its kind, for a while, as fast as it can: workers and the daemon go on, and whoever
    comes when it has gone is served."""
    daemon.start(group=GROUP, capacity=65_536)
    prefix = f"/dev/shm/{daemon.facts()['segment_prefix']}"
    # slots, watch, keys, pools, two workers'
    go_on_beside(daemon, rng_seed, prefix, 6, GO_ON, "go_on(1.5)")
    daemon.stop()
    assert daemon.nothing_left()


USE_WORDS = """
def use_words(seconds):
    from wheeld_client import Lease, RateLimit, Semaphore
    lease, seats = Lease(timers, "a", 0.05), Semaphore(timers, "b", 3)
    limits = [RateLimit(timers, window, 5, per=0.1, window=window)
              for window in ("gcra", "fixed", "moving")]
    number, end = 0, time.monotonic() + seconds
    calls = [
        lambda: lease.acquire(0.01), lambda: lease.renew(), lambda: lease.release(),
        lambda: lease.held, lambda: seats.acquire(0.01), lambda: seats.release(),
        *(lambda limit=limit: limit.try_acquire(key=number % 9) for limit in limits),
        *(lambda limit=limit: (limit.remaining(), limit.test(2)) for limit in limits),
        lambda: timers.schedule(0.01, key=("k", number % 50), on_conflict="replace"),
        lambda: timers.reschedule(key=("k", number % 50), delay=0.02),
        lambda: timers.cancel(key=("k", number % 50)),
        lambda: timers.find(("k", number % 50)), lambda: timers.poll(0),
    ]
    while time.monotonic() < end:
        for call in calls:
            try:
                call()
            except (WheelError, ValueError, MemoryError):
                pass
        number += 1
    return number
"""


@as_root
def test_a_member_that_overwrites_words(daemon: Daemon, rng_seed: int) -> None:
    """Of keys, leases and limits, and the places of those who wait, while workers use them: each
    call returns or raises, and whoever comes later is served."""
    daemon.start(group=GROUP)
    path = str(daemon.segment_path("keys"))
    go_on_beside(daemon, rng_seed, path, 1, USE_WORDS, "use_words(1.5)")


@as_root
def test_a_member_that_overwrites_the_head_of_a_segment(daemon: Daemon) -> None:
    """Of another worker's: it is mended, and a new clock or supervisor has that worker out for
    nothing of the kind."""
    daemon.start(group=GROUP)
    with Remote(daemon, worker="a") as worker:
        worker.ask("timers.schedule_many([1000.0] * 10).tolist()")
        path = str(daemon.segment_path("worker-0"))
        write = "import sys; open(sys.argv[1], 'r+b').write(b'x' * 200)"
        for again in (daemon.kill_clock, daemon.kill):
            subprocess.run([*member(OTHER), sys.executable, "-c", write, path], check=True)
            again()
            if again == daemon.kill:
                daemon.start(group=GROUP)
            assert worker.ask("[timers.schedule(0.0, 1) > 0, receive(1), timers.pending]") == [
                True, [1], 10,
            ]  # fmt: skip
        assert "repaired" in daemon.said()
        assert "damaged" not in daemon.said()


@as_root
def test_a_member_that_overwrites_heads_while_no_supervisor_runs(daemon: Daemon) -> None:
    """Of all that it may write: the next one mends them, goes on with the wheel, and nobody is
    out."""
    daemon.start(group=GROUP, pool="p=1M")
    with Remote(daemon, worker="a") as worker, Remote(daemon, member(OTHER)) as other:
        for each in (worker, other):
            each.ask("timers.schedule_many([1000.0] * 10).tolist()")
        kinds = ("slots", "watch", "keys", "pools", "worker-0", "worker-1")
        paths = [str(daemon.segment_path(kind)) for kind in kinds]
        daemon.kill()
        write = "import sys; [open(path, 'r+b').write(b'x' * 64) for path in sys.argv[1:]]"
        subprocess.run([*member(OTHER), sys.executable, "-c", write, *paths], check=True)
        daemon.start(group=GROUP, pool="p=1M")
        for each in (worker, other):
            assert each.ask("[timers.schedule(0.0, 1) > 0, receive(1), timers.pending]") == [
                True, [1], 10,
            ]  # fmt: skip
        assert daemon.status()["pending"] == 20
        assert daemon.said().count("repaired") == 6
