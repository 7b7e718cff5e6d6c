"""The driver is killed in the middle, the daemon too: none lost, none doubled, none early."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

import wheeld
from pipeline.overflow_runs import PATIENCE_SECONDS, Place, schedule

pytestmark = pytest.mark.timeout(900)
CHILD = Path(__file__).with_name("overflow_child.py")
STEPS = ("attempted", "decided", "gathered", "published")
KEYS = 300
SPREAD_SECONDS = 8
"""Between the first deadline and the last: about what two drivers need to begin."""


@contextmanager
def child(place: Place, daemon: str, master: str, step: str) -> Iterator[subprocess.Popen[str]]:
    """The overflow in a process, which leads a group of its own with all that Spark starts."""
    log = (place.base / f"{time.monotonic_ns()}.log").open("w+")
    options = ["--commands", place.inbox, "--sink", place.sink, "--checkpoint", place.checkpoint]
    options += ["--daemon", daemon, "--shards", "2", "--master", master, "--horizon", "3s"]
    options += ["--grace", "4s", "--trigger", "100 milliseconds", "--cache", place.base / "cache"]
    process = subprocess.Popen(
        [sys.executable, str(CHILD), step, *map(str, options)],
        stdout=log,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    except AssertionError as error:
        log.seek(0)
        raise AssertionError(f"{error}\n{log.read()[-4000:]}") from error
    finally:
        with log:
            _end_group(process)


def _end_group(process: subprocess.Popen[str]) -> None:
    """End what is left of the group, and wait until nothing of it is there: the JVM comes last."""
    try:
        while True:
            os.killpg(process.pid, signal.SIGKILL)
            process.poll()
            time.sleep(0.01)
    except ProcessLookupError:
        process.wait()


def _wait(place: Place, process: subprocess.Popen[str], rows: int) -> None:
    give_up = time.monotonic() + PATIENCE_SECONDS
    while len(place.rows()) < rows:
        assert process.poll() is None, f"it ended with {process.returncode}"
        assert time.monotonic() < give_up, f"{len(place.rows())} of {rows} are in the sink"
        time.sleep(0.2)


def _await_death(process: subprocess.Popen[str]) -> None:
    try:
        assert process.wait(PATIENCE_SECONDS) == -signal.SIGKILL
    except subprocess.TimeoutExpired:
        raise AssertionError("it lives") from None


@pytest.mark.usefixtures("java")
@pytest.mark.parametrize("master", ["local[2]", "local-cluster[2,1,1024]"])
def test_kills(
    tmp_path: Path, runtime_dir: Path, daemon_name: str, rng_seed: int, master: str
) -> None:
    """A driver dies at a seeded step, the next one anywhere, and so does the daemon between
    them."""
    chance = random.Random(rng_seed)
    keys = [f"k{i}" for i in range(KEYS)]
    place = Place(tmp_path, daemon_name)
    options = {"capacity": 4096, "payload_bytes": 24, "runtime_dir": runtime_dir}
    with ExitStack() as stack:
        first = stack.enter_context(wheeld.embedded(name=daemon_name, **options))
        begin, step = time.time(), SPREAD_SECONDS / KEYS
        place.send(*(schedule(key, 1, begin + step * i) for i, key in enumerate(keys)))
        with child(place, first, master, chance.choice(STEPS)) as process:
            _await_death(process)
        pid = json.loads((Path(first) / "daemon.json").read_text())["pid"]
        os.kill(pid, signal.SIGKILL)
        second = stack.enter_context(wheeld.embedded(name=daemon_name, **options))
        if not master.startswith("local-cluster"):  # once more would cost minutes
            with child(place, second, master, "never") as process:
                _wait(place, process, chance.randrange(1, KEYS * 2 // 3))
                process.kill()
                process.wait()
        place.send(schedule("last", 1, time.time()))  # there is something to do, in any case
        with child(place, second, master, "never") as process:
            _wait(place, process, KEYS + 1)
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE_SECONDS) == 0
    place.check((key, 1) for key in [*keys, "last"])
