"""`python -m proofs.torture.overflow.spark`: kill an overflow in Spark, account for every timer.

    --master 'local[2,8]'               tasks that die are tried again, as in a cluster
    --master 'local-cluster[2,1,1024]'  executors are processes
    --master standalone                 a master and a worker of their own, on loopback

Killed are Python workers, at any moment and in the middle of a step (points.py),
executors, the driver, its JVM and the daemon; the columns are deleted.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import pyarrow.parquet as pq

import wheeld
from proofs.torture.overflow import account, points
from proofs.torture.overflow.account import Command

KEYS: Final = 100
SPREAD_SECONDS: Final = 4.0
PATIENCE_SECONDS: Final = 240.0
"""How long a run may show no progress; with progress, a slow machine may take as long as it
needs."""
LOSE_SECONDS: Final = 4.0
MARKS: Final = {
    "Python worker": "pyspark.daemon",
    "executor": "CoarseGrainedExecutorBackend",
    "JVM": "SparkSubmit",
}
"""Words in the command line of each."""
ENDS: Final = ("JVM", "driver")
"""Another driver comes after these."""


class Cluster:
    """A master and workers of Spark's own, as examples/spark/standalone.sh has them."""

    def __init__(
        self, base: Path, stack: ExitStack, environment: dict[str, str], workers: int = 1
    ) -> None:
        import pyspark

        self._home, self._base, self._stack = Path(pyspark.__file__).parent, base, stack
        self._environment = environment
        text = self._launch("Master", ["--port", "0"], "Starting Spark master at ")
        self.url = text.split()[0]
        for number in range(workers):
            work = ["--cores", str(2 // workers), "--memory", "1g"]
            work += ["--work-dir", str(base / f"work-{number}"), self.url]
            self._launch("Worker", work, "Successfully registered with master", number)

    def _launch(self, name: str, options: list[str], ready: str, number: int = 0) -> str:
        log = self._base / f"{name}-{number}.log"
        own = {"SPARK_HOME": str(self._home), "SPARK_LOCAL_IP": "127.0.0.1"}
        with log.open("w") as out:
            process = subprocess.Popen(
                [str(self._home / "bin" / "spark-class"), f"org.apache.spark.deploy.{name.lower()}."
                 f"{name}", *options, "--host", "127.0.0.1", "--webui-port", "0"],
                stdout=out, stderr=subprocess.STDOUT, start_new_session=True,
                env=self._environment | own | {"PYSPARK_PYTHON": sys.executable},
            )  # fmt: skip
        self._stack.callback(end_session, process)
        give_up = time.monotonic() + PATIENCE_SECONDS
        while ready not in (text := log.read_text()):
            if process.poll() is not None or time.monotonic() > give_up:
                raise SystemExit(f"Spark's {name} did not start: {text[-2000:]}")
            time.sleep(0.1)
        return text.split(ready)[1]


class Trial:
    """Commands, drivers one after another, and what is killed."""

    def __init__(self, base: Path, master: str, chance: random.Random, stack: ExitStack) -> None:
        self.base, self.chance, self._stack = base, chance, stack
        self.kills: Counter[str] = Counter()
        self.sent: list[Command] = []
        self._counted: dict[Path, int] = {}
        self._seen: tuple[int, ...] = ()
        self._moved = time.monotonic()
        self._name = f"overflow-{secrets.token_hex(3)}"
        for name in ("run", "commands"):
            (base / name).mkdir()
        self._environment = os.environ | points.site_folder(base)
        self.cluster = Cluster(base, stack, self._environment) if master == "standalone" else None
        self.master = self.cluster.url if self.cluster else master
        self._life = stack.enter_context(ExitStack())
        self._start_daemon()

    def _start_daemon(self) -> None:
        options: dict[str, Any] = {"capacity": 8192, "payload_bytes": 24, "keep_for": "1h"}
        made = wheeld.embedded(name=self._name, runtime_dir=self.base / "run", **options)
        self.daemon = self._life.enter_context(made)

    def send(self) -> None:
        """A file of commands that are due soon, with some that are overtaken."""
        begin, number, lines = time.time(), len(self.sent), []
        for i in range(number, number + KEYS):
            due_us = int((begin + SPREAD_SECONDS * self.chance.random()) * 1e6)
            self.sent.append(("schedule", f"key-{i}", 1, due_us, i, b"payload"))
            if self.chance.random() < 0.2:
                self.sent.append(("reschedule", f"key-{i}", 2, due_us + 10**6, 0, None))
        for op, key, sequence, due_us, cookie, payload in self.sent[number:]:
            more = {"cookie": cookie, "payload": "payload"} if payload else {}
            lines.append(json.dumps({"op": op, "key": key, "sequence": sequence,
                                     "deadline": due_us / 1e6, **more}))  # fmt: skip
        draft = self.base / "commands" / f".{number}"
        draft.write_text("\n".join(lines) + "\n")
        draft.rename(self.base / "commands" / f"{number:06d}.json")

    @contextmanager
    def driver(self) -> Iterator[subprocess.Popen[bytes]]:
        folders = ("commands", "sink", "checkpoint", "cache")
        options = [f"--{name}={self.base / name}" for name in folders]
        options += ["--shards=2", f"--daemon={self.daemon}", f"--master={self.master}"]
        options += ["--horizon=2s", "--grace=3s", "--trigger=100ms"]
        options += ["--conf=spark.task.maxFailures=8"]  # one task may be hit again and again
        log = (self.base / "driver.log").open("a")
        process = subprocess.Popen(
            [sys.executable, "-m", "wheeld", "pipeline", "overflow", *options],
            stdout=log, stderr=subprocess.STDOUT, start_new_session=True, env=self._environment,
        )  # fmt: skip
        try:
            yield process
        finally:
            log.close()
            end_session(process)

    def rows(self) -> int:
        for path in self.base.glob("sink/expired/batch=*/*.parquet"):
            if path not in self._counted:
                self._counted[path] = pq.read_metadata(path).num_rows
        return sum(self._counted.values())

    def kill(self, kind: str, driver: subprocess.Popen[bytes]) -> None:
        if kind == "columns":
            self._lose_columns()
        elif kind in points.POINTS:
            self._die_at(kind, driver)
        elif kind == "daemon":
            pid = json.loads((Path(self.daemon) / "daemon.json").read_text())["pid"]
            os.kill(pid, signal.SIGKILL)
            self._life.close()
            self._start_daemon()
        else:
            while not (found := self._found(kind, driver)):
                self._check(driver)
            with suppress(ProcessLookupError):
                os.kill(self.chance.choice(found), signal.SIGKILL)
        self.kills[kind] += 1

    def _die_at(self, kind: str, driver: subprocess.Popen[bytes]) -> None:
        point = self.base / "points" / kind
        point.touch()
        lose = 0.0
        while point.exists():
            if kind == "redo" and time.monotonic() > lose:  # columns that are gone are redone
                self._lose_columns()
                lose = time.monotonic() + LOSE_SECONDS
            self._feed()
            self._check(driver)

    def _lose_columns(self) -> None:
        shutil.rmtree(self.base / "cache", ignore_errors=True)

    def _feed(self) -> None:
        if self.rows() > len({one[1] for one in self.sent}) - KEYS // 2:
            self.send()

    def _found(self, kind: str, driver: subprocess.Popen[bytes]) -> list[int]:
        if kind == "driver":
            return [driver.pid]
        found = [pid for pid in self._processes(driver) if MARKS[kind] in _command(pid)]
        if kind == "Python worker":  # not the one that forks them
            found = [pid for pid in found if MARKS[kind] in _command(_stat(pid)[0])]
        return found

    def _processes(self, driver: subprocess.Popen[bytes]) -> list[int]:
        return [pid for pid in _pids() if _stat(pid)[1] == driver.pid] + [
            pid for pid in _pids() if str(self.base) in _folder(pid)
        ]

    def life(self, kinds: list[str]) -> None:
        """One driver, from its first batch until it is killed, or nothing is left to kill."""
        with self.driver() as driver:
            before = self.rows()
            while self.rows() == before:
                self._check(driver)
            while kinds:
                time.sleep(self.chance.random() * 1.5)
                self._feed()
                kind = kinds.pop()
                self.kill(kind, driver)
                if kind in ENDS:
                    return

    def finish(self) -> dict[str, list[Any]]:
        with self.driver() as driver:
            while self.rows() < len({one[1] for one in self.sent}):
                self._check(driver)
            driver.send_signal(signal.SIGTERM)
            driver.wait(PATIENCE_SECONDS)
        return account.offences(self.sent, self.base / "sink")

    def _check(self, driver: subprocess.Popen[bytes]) -> None:
        """Raise when the driver has ended, or nothing has moved for a while."""
        log = self.base / "driver.log"
        seen = (driver.pid, self.rows(), log.stat().st_size, len(self.sent))
        if seen != self._seen:
            self._seen, self._moved = seen, time.monotonic()
        if driver.poll() is not None or time.monotonic() > self._moved + PATIENCE_SECONDS:
            keys = len({one[1] for one in self.sent})
            said = log.read_text()[-3000:]
            raise SystemExit(f"{self.rows()} rows of {keys} keys; the driver: {said}")
        time.sleep(0.2)


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _stat(pid: int) -> tuple[int, int]:
    """Parent and session."""
    with suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return int(fields[1]), int(fields[3])
    return 0, 0


def _command(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text()
    return ""


def _folder(pid: int) -> str:
    """Where it works: executors of a cluster are in the folder of its worker."""
    with suppress(OSError):
        return os.readlink(f"/proc/{pid}/cwd")
    return ""


def end_session(process: subprocess.Popen[bytes]) -> None:
    """End a process and all of its session, and wait for it."""
    while left := [pid for pid in _pids() if _stat(pid)[1] == process.pid and process.pid]:
        process.poll()
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)
        if process.poll() is not None and left == [process.pid]:
            break
    process.wait()


def drawn(master: str, kills: int, chance: random.Random) -> list[str]:
    """The victims, one after another; mostly processes that do not need a new driver."""
    kinds = ["Python worker", "columns", "Python worker", *points.POINTS]
    kinds += ["Python worker"] if master.startswith("local[") else ["executor", "executor"]
    return [chance.choice([*ENDS, "daemon"] if chance.random() < 0.25 else kinds)
            for _ in range(kills)]  # fmt: skip


def run(
    base: Path, master: str, kinds: list[str], chance: random.Random
) -> tuple[dict[str, list[Any]], Trial]:
    """Lives of drivers until all are killed, then a quiet one; the offences."""
    kinds = kinds[::-1]
    with ExitStack() as stack:
        trial = Trial(base, master, chance, stack)
        while kinds:
            trial.send()
            trial.life(kinds)
        return trial.finish(), trial


def main(arguments: list[str] | None = None) -> int:
    """Print what was killed and what the account says; 1: there were offences."""
    parser = argparse.ArgumentParser(
        prog="python -m proofs.torture.overflow.spark", description=__doc__
    )
    parser.add_argument("--master", default="local[2,8]")
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int)
    given = parser.parse_args(arguments)
    seed = secrets.randbits(32) if given.seed is None else given.seed
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # ends what it has started
    base = Path(tempfile.mkdtemp(prefix="wheeld-overflow-"))
    began = time.monotonic()
    chance = random.Random(seed)
    kinds = drawn(given.master, given.kills, chance)
    found, trial = run(base, given.master, kinds, chance)
    print(json.dumps({
        "master": given.master, "seed": seed, "kills": dict(trial.kills),
        "commands": len(trial.sent), "sink": trial.rows(),
        "seconds": round(time.monotonic() - began, 1),
        "offences": {name: len(rows) for name, rows in found.items()},
    }))  # fmt: skip
    if any(found.values()):
        print(f"offences, kept in {base}: {found}", file=sys.stderr)
        return 1
    shutil.rmtree(base)
    return 0


if __name__ == "__main__":
    sys.exit(main())
