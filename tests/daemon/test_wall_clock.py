"""The wall clock is set while timers wait for it; the clock process sleeps, or is busy."""

import json
import os
import shlex
import subprocess
import sys

import pytest

from programs import SUPPORT, of_checkout
from proofs import sanitize
from wall_clock_steps import IDLE

pytestmark = [
    pytest.mark.skipif(sanitize.compiler() is None, reason="no C compiler: gcc, clang or $CC"),
    pytest.mark.xdist_group("wall clock"),  # which `found` sets once
]
CASES = [case.__name__ for case in IDLE]


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str | None]:
    place = tmp_path_factory.mktemp("steps")
    shim, steps, news = place / "shim.so", place / "steps", place / "news"
    steps.write_bytes(bytes(4096))
    os.mkfifo(news)
    cc = shlex.split(sanitize.compiler() or "cc")
    flags = ["-O1", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror", "-o", str(shim)]
    subprocess.run([*cc, *flags, str(SUPPORT / "wall_clock_shim.c"), "-ldl"], check=True)
    done = subprocess.run(
        [sys.executable, str(SUPPORT / "wall_clock_steps.py")],
        env=of_checkout()
        | {"LD_PRELOAD": str(shim), "STEP_FILE": str(steps), "STEP_FIFO": str(news)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    results = [json.loads(line) for line in done.stdout.splitlines()]
    return {result["case"]: result["error"] for result in results}


@pytest.mark.slow
@pytest.mark.parametrize(
    "case", [*CASES, *(f"busy {name}" for name in CASES[:-1]), "without_sleep"]
)
def test_step(case: str, found: dict[str, str | None]) -> None:
    assert found.get(case, "not reached: an earlier case failed") is None, found.get(case)
