"""Programs that tests start, look for and stop."""

import os
import subprocess
import sys
from pathlib import Path

import psutil

ROOT = Path(__file__).parents[2]
SUPPORT = Path(__file__).parent


def of_checkout() -> dict[str, str]:
    paths = [str(ROOT / part) for part in (".", "core", "client", "pipeline")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}


def start_program(
    environment: dict[str, str], *arguments: str, cwd: Path | None = None
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *arguments],
        env=environment,
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def descendants(process: subprocess.Popen[str], words: str) -> list[psutil.Process]:
    found = []
    for child in psutil.Process(process.pid).children(recursive=True):
        try:
            if words in " ".join(child.cmdline()) or words == child.name():
                found.append(child)
        except psutil.NoSuchProcess:
            pass
    return found
