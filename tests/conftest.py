"""Shared by all tests: an environment, a seed that is printed, and nothing left behind."""

import gc
import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager

import pytest
from hypothesis import settings

from seeds import SEED

# Marks every program that this process starts, and all that those start.
OWNER = f"WHEELD_TEST_OWNER={os.getpid()}"
os.environ.update([OWNER.split("=")])

# Where SIGINT is ignored (nohup, cron, some CI) every program started here would ignore it too, and
# tests that end one by Ctrl-C would wait for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Thousands of processes load our packages here: not each is to compile them again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Thousands of processes load numpy here, and none needs its threads for linear algebra.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# Loaded after this file, and numpy with it; the fixtures that are named once and used everywhere.
pytest_plugins = ["wheeld_testing.plugin", "aio_tests", "browsers", "common_fixtures"]

SEGMENT = re.compile(rf"wheeld-(t|embedded-){os.getpid()}-")
GRACE_SECONDS = 5.0
"""How long what is stopping already may take to be gone."""

# A slow machine fails no test.
# In CI the examples are the same each time: a red run is the change's. Elsewhere they explore.
IN_CI = os.environ.get("CI") == "true"
settings.register_profile("wheeld", deadline=None, print_blob=True, derandomize=IN_CI)
settings.load_profile("wheeld")


def pytest_report_header() -> str:
    return f"random numbers from WHEELD_TEST_SEED={SEED}"


SLOW_FOLDERS = {"broker", "demo", "meta", "pipeline"}
STARTS_A_PROCESS = {"runtime_dir", "shared", "java"}
"""Fixtures of tests that start processes of their own and wait for them, in real time."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        fixtures = set(getattr(item, "fixturenames", ()))
        if item.path.parent.name in SLOW_FOLDERS or fixtures & STARTS_A_PROCESS:
            item.add_marker(pytest.mark.slow)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    gc.disable()  # all that is made here stays: a fifth of the time for nothing
    found = yield
    gc.collect()
    gc.freeze()
    gc.enable()
    return found


OURS = (
    *("wheeld.", "wheeld[", "examples."),
    *(f"org.apache.spark.{part}." for part in ("deploy.master", "deploy.worker", "executor")),
)
"""Names of modules and classes that tests run as processes of their own begin with these."""


def _candidates() -> set[str]:
    found = {f"/dev/shm/{name}" for name in os.listdir("/dev/shm") if SEGMENT.match(name)}
    return found | {f"/proc/{name}" for name in os.listdir("/proc") if name.isdigit()}


def _is_ours(path: str) -> bool:
    if not path.startswith("/proc"):
        return True
    try:
        if OWNER.encode() not in _read(f"{path}/environ").split(b"\0"):
            return False
        arguments = _read(f"{path}/cmdline").decode().split("\0")
    except (OSError, UnicodeDecodeError):  # gone, or of another user
        return False
    return any(os.path.basename(a) == "wheeld" or a.startswith(OURS) for a in arguments)


def _read(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:
        return file.read()


@contextmanager
def _nothing_left() -> Iterator[None]:
    before = _candidates()
    yield
    give_up = time.monotonic() + GRACE_SECONDS
    while left := [path for path in _candidates() - before if _is_ours(path)]:
        if time.monotonic() > give_up:
            commands = [_read(f"{path}/cmdline") for path in left if path.startswith("/proc")]
            pytest.fail(f"left behind: {sorted(left)} {commands}")
        time.sleep(0.02)


@pytest.fixture(scope="session", autouse=True)
def nothing_left_by_the_session() -> Iterator[None]:
    with _nothing_left():
        yield


@pytest.fixture(autouse=True)
def nothing_left_by_a_test() -> Iterator[None]:
    with _nothing_left():
        yield


@pytest.fixture(scope="session")
def rng_seed() -> int:
    return SEED


@pytest.fixture
def private() -> Iterator[dict[str, str]]:
    # not in tmp_path: the path of a Unix socket has 107 bytes at most
    with tempfile.TemporaryDirectory(prefix="t-") as directory:
        yield {**os.environ, "TMPDIR": directory}
        assert os.listdir(directory) == []
