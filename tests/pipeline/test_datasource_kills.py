"""Drivers of the data source are killed and restarted: every row expires once and is read once."""

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import wheeld
from daemons import end_of
from wheeld_client import Observer

pytestmark = [pytest.mark.usefixtures("java"), pytest.mark.timeout(1500)]

DRIVER = Path(__file__).with_name("datasource_driver.py")
LONG = 600.0
CONFIG = {"capacity": 1 << 18, "payload_bytes": 16}


def make_rows(folder: Path, files: int, rows: int) -> None:
    folder.mkdir()
    for number in range(files):
        cookies = np.arange(number * rows, (number + 1) * rows)
        table = pa.table(
            {
                "cookie": cookies,
                "delay": (cookies % 1000) / 500.0,
                "payload": [b"%d" % cookie for cookie in cookies],
            }
        )
        pq.write_table(table, folder / f"{number:03}.parquet", row_group_size=rows // 4)


def descendants(pid: int) -> list[int]:
    found = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in task.read_text().split():
                found += [int(child), *descendants(int(child))]
    return found


TOO_SLOW = "Python worker failed to connect back"
"""Spark says this, and gives up, when a Python process needs more than ten seconds to start."""


class Driver:
    """The driver program, in a process of its own."""

    def __init__(self, master: str, daemon: str, folder: Path) -> None:
        self.log = folder / "driver.log"
        self.command = [sys.executable, str(DRIVER), master, daemon, str(folder)]
        self.launch()

    def launch(self) -> None:
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(self.command, stdout=log, stderr=log)

    def check(self) -> bool:
        if self.process.poll() is not None:
            said = self.log.read_text()
            assert TOO_SLOW in said, said[-5000:]
            self.launch()
        return False

    def kill(self, everything: bool) -> None:
        below = descendants(self.process.pid)
        java = [pid for pid in below if _name(pid) == "java"]
        ends = [end_of(pid) for pid in below]
        for pid in [self.process.pid, *java, *(below if everything else [])]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()
        for wait in ends:
            wait()


def _name(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


def sink_rows(sink: Path) -> pa.Table:
    files: dict[str, bool] = {}
    for log in (sink / "_spark_metadata").glob("[0-9]*"):
        for line in log.read_text().splitlines()[1:]:
            entry = json.loads(line)
            files[entry["path"].removeprefix("file://")] = entry["action"] == "add"
    parts = [pq.read_table(path, partitioning=None) for path, added in files.items() if added]
    return pa.concat_tables(parts) if parts else pa.table({"cookie": pa.array([], pa.int64())})


def await_state(holds: Callable[[], bool], driver: Driver, what: str) -> None:
    give_up = time.monotonic() + LONG
    while not holds():
        driver.check()
        assert time.monotonic() < give_up, f"after {LONG} s still not: {what}"
        time.sleep(0.3)


def committed(folder: Path, query: str) -> int:
    return len(list((folder / query / "commits").glob("[0-9]*")))


@contextlib.contextmanager
def ended(driver: Driver) -> Iterator[None]:
    try:
        yield
    finally:
        if driver.process.poll() is None:
            driver.kill(everything=True)


def account(folder: Path, daemons: list[str], total: int) -> pa.Table:
    fired = 0
    for daemon in daemons:
        with Observer(daemon) as observer:
            assert len(observer.pending().timers) == 0
            fired += observer.counters()["fired"]
    assert fired == total
    found = sink_rows(folder / "sink")
    cookies = np.sort(found["cookie"].to_numpy())
    assert len(cookies) == total
    assert (cookies == np.arange(total)).all()
    assert len(np.unique(found["timer_id"].to_numpy())) == total
    assert found["lateness_ns"].to_numpy().min() >= 0
    assert found["payload"].to_pylist() == [b"%d" % c for c in found["cookie"].to_pylist()]
    return found


def kill_after(
    driver: Driver, folder: Path, query: str, rng: random.Random, all_of_it: bool
) -> None:
    more = committed(folder, query) + 1
    await_state(lambda: committed(folder, query) >= more, driver, f"a batch of {query}")
    time.sleep(rng.random() * 1.5)  # any moment will do
    driver.kill(everything=all_of_it)


def test_local(tmp_path: Path, rng_seed: int) -> None:
    rng = random.Random(rng_seed)
    make_rows(tmp_path / "rows", 3, 10_000)
    with wheeld.embedded(**CONFIG) as daemon:
        driver = Driver("local[2]", daemon, tmp_path)
        with ended(driver):
            kill_after(driver, tmp_path, "writing", rng, rng.random() < 0.5)
        driver = Driver("local[2]", daemon, tmp_path)
        with ended(driver):
            await_state(lambda: len(sink_rows(tmp_path / "sink")) >= 30_000, driver, "the rows")
            driver.kill(everything=True)
        account(tmp_path, [daemon], 30_000)


ON_HOSTS = """#!/bin/sh
# Executors run in .../app-X/NUMBER: each is on a host of its own, with a daemon.
case $PWD in
*/app-*/[0-9]*) WHEELD_HOST=host-${PWD##*/} WHEELD_RUNTIME_DIR={folder}/host-${PWD##*/} ;;
esac
export WHEELD_HOST WHEELD_RUNTIME_DIR
exec {python} "$@"
"""


def on_hosts(folder: Path, daemons: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    for number, daemon in enumerate(daemons):
        (folder / f"host-{number}").mkdir()
        (folder / f"host-{number}" / "d").symlink_to(daemon)
    python = folder / "python"
    text = ON_HOSTS.replace("{folder}", str(folder)).replace("{python}", sys.executable)
    python.write_text(text)
    python.chmod(0o755)
    monkeypatch.setenv("PYSPARK_PYTHON", str(python))
    monkeypatch.setenv("WHEELD_HOST", "head")
    monkeypatch.setenv("WHEELD_RUNTIME_DIR", str(folder / "nowhere"))


def tasks(driver: Driver) -> list[int]:
    found = []
    for process in psutil.Process(driver.process.pid).children(recursive=True):
        with contextlib.suppress(psutil.Error):
            parent = process.parent()
            if parent is not None and "pyspark.daemon" in parent.cmdline():
                found.append(process.pid)
    return found


def test_two_hosts(tmp_path: Path, rng_seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Executors that see different daemons write; the query reads what expires in both.

    The driver sees none. Tasks are killed while they visit and read, then driver and executors.
    """
    rng = random.Random(rng_seed)
    make_rows(tmp_path / "rows", 3, 10_000)
    with wheeld.embedded(**CONFIG) as first, wheeld.embedded(**CONFIG) as second:
        on_hosts(tmp_path, [first, second], monkeypatch)
        driver = Driver("local-cluster[2,1,1024]", "d", tmp_path)
        with ended(driver):
            await_state(lambda: committed(tmp_path, "writing") == 3, driver, "rows written")
            for _ in range(2):
                await_state(lambda: bool(tasks(driver)), driver, "a task")
                with contextlib.suppress(ProcessLookupError, IndexError):
                    os.kill(rng.choice(tasks(driver)), signal.SIGKILL)
            kill_after(driver, tmp_path, "reading", rng, True)
        driver = Driver("local-cluster[2,1,1024]", "d", tmp_path)
        with ended(driver):
            await_state(lambda: len(sink_rows(tmp_path / "sink")) >= 30_000, driver, "the rows")
            driver.kill(everything=True)
        found = account(tmp_path, [first, second], 30_000)
    assert set(found["host"].to_pylist()) == {"host-0", "host-1"}
