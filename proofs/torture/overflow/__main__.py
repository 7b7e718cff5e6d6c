"""`python -m proofs.torture.overflow`: kill the overflow at every line, account for every command.

Without Spark: a child runs one batch, driver and tasks, against a real daemon, and is killed at a
line of the package or at a moment, drawn at random; the same batch runs again until it is over, as
Spark would have it. While the batch is not decided it may come with other contents: timers that the
killed attempt has handed out must not count then. Now and then the daemon dies, or the host's
columns go. Then commands and sink
are compared: none lost, none twice, none early, none with other bytes.
"""

from __future__ import annotations

import argparse
import json
import os
import pickle
import random
import secrets
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack, suppress
from pathlib import Path
from types import FrameType
from typing import Any, Final
from zlib import crc32

import pyarrow.compute
import pyarrow.fs
import pyarrow.parquet

import wheeld
import wheeld_pipeline.overflow
from proofs.torture.overflow import account
from proofs.torture.overflow.account import Command
from wheeld_core.progress import show_progress
from wheeld_pipeline.overflow import Daemon, Plan, Rules, ShardMap
from wheeld_pipeline.overflow.batch import intake
from wheeld_pipeline.overflow.batch.task import Errand, Result, tend
from wheeld_pipeline.overflow.checkpoint import log
from wheeld_pipeline.overflow.checkpoint.files import LocalFiles
from wheeld_pipeline.overflow.columns import store
from wheeld_pipeline.overflow.driver import job as jobs
from wheeld_pipeline.overflow.driver.query import Driver

with suppress(ImportError):
    import pandas  # noqa: F401 - PyArrow would load it in each child

LOADED: Final = (pyarrow.compute, pyarrow.fs, pyarrow.parquet)
"""Once, in the process that forks the others."""
SHARDS: Final = 2
PACKAGE: Final = str(Path(wheeld_pipeline.overflow.__file__).parent)
RULES: Final = Rules(horizon_ms=1_500, grace_ms=400, retry_ms=20, remember_ms=60_000)
PER_BATCH: Final = 60
KEYS: Final = 4_000
CALM_EVERY: Final = 3
"""One in this many tries of a batch runs undisturbed."""


class OverflowUnderTest:
    """An overflow's folders and its daemon."""

    def __init__(self, base: Path, chance: random.Random) -> None:
        self.base, self.chance = base, chance
        self.stack = ExitStack()
        self.kills: Counter[str] = Counter()
        self.commands: list[Command] = []
        self.redrawn = self._before = 0
        self._lines: dict[str, int] = {}
        self._seconds = 0.1
        self._sequences: dict[str, int] = {}
        self._name = f"overflow-{secrets.token_hex(3)}"
        (base / "run").mkdir()
        self.daemon = self._start()

    def _start(self) -> str:
        options: dict[str, Any] = {"capacity": 8192, "payload_bytes": 24}
        made = wheeld.embedded(name=self._name, runtime_dir=self.base / "run", **options)
        return self.stack.enter_context(made)

    def plan(self, rules: Rules = RULES) -> Plan:
        spread = ShardMap.uniform(SHARDS, Daemon(self.daemon))
        folders = (str(self.base / name) for name in ("commands", "sink", "checkpoint"))
        return Plan(*folders, spread, rules, cache=str(self.base / "cache"))

    # -- commands -------------------------------------------------------------------------------

    def draw(self, count: int) -> list[Command]:
        """Commands of random keys, numbered by key; now and then one that was sent before."""
        made: list[Command] = []
        self._before = len(self.commands)
        for _ in range(count):
            key = f"account-{self.chance.randrange(KEYS):09d}"
            self._sequences[key] = self._sequences.get(key, 0) + 1
            made.append(self._drawn(key, self._sequences[key]))
        self.commands += made
        again = [one for one in self.commands[-500:] if one[0] != "reschedule"]
        return made + self.chance.sample(again, min(5, len(again)))

    def _drawn(self, key: str, sequence: int) -> Command:
        chance = self.chance
        op = chance.choice(["schedule", "schedule", "reschedule", "cancel"])
        due_us = time.time_ns() // 1000 + chance.randrange(-100_000, 2_000_000)
        payload = chance.choice([None, b"", secrets.token_bytes(chance.randrange(1, 40))])
        return op, key, sequence, due_us, chance.randrange(99), payload

    def _redraw(self, orders: list[Command]) -> list[Command]:
        """Other operations, deadlines and payloads under the same keys and sequences."""
        self.redrawn += 1
        sent, own = Counter(orders), self.commands[self._before :]
        other = {one: self._drawn(*one[1:3]) for one in own if sent[one] == 1}
        self.commands[self._before :] = [other.get(one, one) for one in own]
        return [other.get(one, one) for one in orders]

    # -- one batch ------------------------------------------------------------------------------

    def batch(self, number: int, orders: list[Command], calm: bool = False) -> None:
        tries = 0
        manifest = self.base / "checkpoint" / "manifests" / f"{number:09d}.json"
        while True:
            tries += 1
            if tries > 1 and not manifest.exists() and self.chance.random() < 0.5:
                orders = self._redraw(orders)
            if self._try(number, orders, calm or tries % CALM_EVERY == 0):
                return

    def _try(self, number: int, orders: list[Command], calm: bool) -> bool:
        report, said = os.pipe()
        line = ("", 0)
        if not calm and self._lines and self.chance.random() < 0.75:
            name = self.chance.choice(sorted(self._lines))
            line = (name, self.chance.randrange(self._lines[name]) + 1)
        began = time.monotonic()
        child = os.fork()
        if not child:
            os.close(report)
            _child(self.plan(), number, orders, line, said)
        os.close(said)
        if not calm and not line[1]:
            time.sleep(self.chance.random() * self._seconds)
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        with os.fdopen(report) as file:
            told = file.read()
        if os.WIFSIGNALED(status):
            assert os.WTERMSIG(status) == signal.SIGKILL
            self.kills[told.strip() or "at a moment"] += 1
            return False
        if status:
            raise SystemExit(f"batch {number} failed: {told}")
        self._lines |= json.loads(told)
        self._seconds = time.monotonic() - began
        return True

    # -- other deaths ---------------------------------------------------------------------------

    def kill_daemon(self) -> None:
        pid = json.loads((Path(self.daemon) / "daemon.json").read_text())["pid"]
        os.kill(pid, signal.SIGKILL)
        self.stack.close()
        self.daemon = self._start()
        self.kills["the daemon"] += 1

    def lose_columns(self) -> None:
        folders = sorted((self.base / "cache").glob("*/[0-9]*"))
        folders = [folder for folder in folders if folder.is_dir()]
        for folder in folders if self.chance.random() < 0.5 else folders[:1]:
            shutil.rmtree(folder)
        self.kills["the host's columns"] += 1


def _child(
    plan: Plan, number: int, orders: list[Command], line: tuple[str, int], said: int
) -> None:
    status = 1
    try:
        store.SEGMENT, log.MOST_DELTAS = 256, 4  # snapshots often, of many segments
        counter = _Lines(line, said)
        sys.settrace(counter.enter)
        _run(plan, number, orders)
        sys.settrace(None)
        os.write(said, json.dumps(counter.counts).encode())
        status = 0
    except BaseException as error:
        sys.settrace(None)
        import traceback

        os.write(said, "".join(traceback.format_exception(error))[-3000:].encode())
    finally:
        os._exit(status)


def _run(plan: Plan, number: int, orders: list[Command]) -> None:
    checkpoint, out = LocalFiles(plan.checkpoint), LocalFiles(plan.sink)
    job = jobs.claim(checkpoint, out, SHARDS)
    parts: list[list[Command]] = [[] for _ in range(SHARDS)]
    for one in orders:
        parts[crc32(one[1].encode()) % SHARDS].append(one)

    def attempt(errands: list[Errand]) -> list[Result]:
        return [tend(errand, [intake.make(parts[errand.shard])]) for errand in errands]

    Driver(checkpoint, out, plan, job).run(number, attempt)


class _Lines:
    """Counts the lines of each function of the package, and dies at the line `last` of a function,
    0: at none. It writes the function's name to `said`."""

    def __init__(self, last: tuple[str, int], said: int) -> None:
        self.counts: Counter[str] = Counter()
        self._last, self._said = last, said

    def enter(self, frame: FrameType, event: str, argument: object) -> Any:
        return self._line if frame.f_code.co_filename.startswith(PACKAGE) else None

    def _line(self, frame: FrameType, event: str, argument: object) -> Any:
        code = frame.f_code
        if event == "line" and code.co_name[0] != "<":
            name = f"{Path(code.co_filename).stem}.{code.co_name}"
            self.counts[name] += 1
            if (name, self.counts[name]) == self._last:
                os.write(self._said, name.encode())
                os.kill(os.getpid(), signal.SIGKILL)
        return self._line


def run(base: Path, kills: int, seed: int) -> tuple[dict[str, list[Any]], OverflowUnderTest, int]:
    """Batches until there were so many kills; then until nothing is pending."""
    chance = random.Random(seed)
    place = OverflowUnderTest(base, chance)
    number = 0
    with place.stack, show_progress("overflow", kills, "kills") as tell:
        while (done := sum(place.kills.values())) < kills:
            tell(done)
            place.batch(number, place.draw(chance.randrange(PER_BATCH)))
            number += 1
            if chance.random() < 0.12:
                place.lose_columns()
            if chance.random() < 0.03:
                place.kill_daemon()
        offences = _finish(place, number)
    return offences, place, number


def _finish(place: OverflowUnderTest, number: int) -> dict[str, list[Any]]:
    last = time.monotonic() + 60
    while True:
        place.batch(number, [], calm=True)
        number += 1
        manifest = json.loads(max((place.base / "checkpoint/manifests").iterdir()).read_text())
        if not sum(result["pending"] for result in manifest["results"]):
            break
        if time.monotonic() > last:
            raise SystemExit("keys are pending a minute after the last command")
        time.sleep(0.05)
    with (place.base / "commands.pickle").open("wb") as file:  # for whoever looks why
        pickle.dump(place.commands, file)
    return account.offences(place.commands, place.base / "sink")


def main(arguments: list[str] | None = None) -> int:
    """Print what was killed and what the account says; 1: there were offences."""
    parser = argparse.ArgumentParser(prog="python -m proofs.torture.overflow", description=__doc__)
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--seed", type=int, help="default: a new one each time, which is printed")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(arguments)
    seed = secrets.randbits(32) if given.seed is None else given.seed
    base = Path(tempfile.mkdtemp(prefix="wheeld-overflow-"))
    began = time.monotonic()
    found, place, batches = run(base, given.kills, seed)
    said = {
        "seed": seed,
        "kills": sum(place.kills.values()),
        "batches": batches,
        "with other contents": place.redrawn,
        "commands": len(place.commands),
        "sink": account.count(base / "sink"),
        "seconds": round(time.monotonic() - began, 1),
        "offences": {name: len(rows) for name, rows in found.items()},
    }
    bad = any(found.values())
    if given.json:
        print(json.dumps(said | {"places": dict(place.kills.most_common())}))
    else:
        for where, count in place.kills.most_common():
            print(f"{count:6}  {where}")
        print(", ".join(f"{name} {value}" for name, value in said.items()))
    if bad:
        print(f"offences, kept in {base}: {found}", file=sys.stderr)
        return 1
    shutil.rmtree(base)
    return 0


if __name__ == "__main__":
    sys.exit(main())
