"""The torture driver: some faults, its end in the middle, its options.

`.ci/run` has a short form of all faults beside the tests.
"""

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from programs import of_checkout
from proofs.torture import account

ROOT = Path(__file__).parents[2]


def command(*options: str) -> list[str]:
    return [sys.executable, "-m", "proofs.torture", *options]


def segments_of(driver: int) -> list[str]:
    return [name for name in os.listdir("/dev/shm") if f"-t{driver}-torture-" in name]


@contextmanager
def running(*options: str) -> Iterator[subprocess.Popen[str]]:
    driver = subprocess.Popen(
        command(*options),
        cwd=ROOT,
        env=of_checkout(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield driver
    finally:
        if driver.poll() is None:
            driver.terminate()
            driver.communicate()
        assert not segments_of(driver.pid)
        assert not list(Path("/tmp").glob(f"wt-*/t{driver.pid}-torture-*"))


def test_some_faults(rng_seed: int, tmp_path: Path) -> None:
    file, logs = tmp_path / "found.json", str(tmp_path / "logs")
    options = ["--scale", "0.02", "--seed", str(rng_seed), "--json", str(file), "--logs", logs]
    with running(*options, "--only", "both,limits") as driver:
        said, _ = driver.communicate()
        assert driver.returncode == 0, said
    assert f"seed {rng_seed}" in said
    rows = json.loads(file.read_text())["rows"]
    assert [row["fault"] for row in rows] == ["both", "limits"]
    for row in rows:
        assert row["count"] >= 1
        assert row["timers"] > 100
        assert row["received"] > 100
        assert min(row["holds"], row["draws"], row["runs"]) > 10
        assert row["common"] > 100
        assert [row[counter] for counter in account.COUNTERS] == [0] * len(account.COUNTERS)


def test_ctrl_c_leaves_nothing(tmp_path: Path) -> None:
    with running("--only", "freeze", "--logs", str(tmp_path)) as driver:
        give_up = time.monotonic() + 60
        listed = Path(f"/proc/{driver.pid}/task/{driver.pid}/children")
        while len(children := listed.read_text().split()) < 3:  # the daemon and workers
            assert driver.poll() is None
            assert time.monotonic() < give_up
            time.sleep(0.01)
        assert segments_of(driver.pid)
        pidfds = [os.pidfd_open(int(pid)) for pid in children]
        driver.send_signal(signal.SIGINT)
        said, _ = driver.communicate()
        assert driver.returncode == 130, said
    assert "Traceback" not in said
    for pidfd in pidfds:
        assert select.select([pidfd], [], [], 0)[0]
        os.close(pidfd)


@pytest.mark.parametrize(
    ("options", "message"),
    [(["--only", "nonsense"], "expected one of worker, clock"), (["--scale", "0"], "more than 0")],
)
def test_wrong_options_are_refused(options: list[str], message: str) -> None:
    done = subprocess.run(
        command(*options), cwd=ROOT, env=of_checkout(), capture_output=True, text=True
    )
    assert done.returncode == 2
    assert message in done.stderr
