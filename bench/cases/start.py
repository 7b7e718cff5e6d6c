"""The costs before the first timer: the import, the start of the daemon, its memory.

Bytecode is compiled and in a folder of its own, as after an installation.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import psutil

from bench.cases import Sample, daemon, servers
from bench.processes import cpu_ns

MB = 1e6
START_SECONDS = 30.0


@contextmanager
def compiled() -> Iterator[dict[str, str]]:
    """The environment of programs that find their bytecode."""
    with tempfile.TemporaryDirectory(prefix="bench-bytecode-") as directory:
        own = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
        yield {**own, "PYTHONPYCACHEPREFIX": directory}


PROGRAM = """
import sys, time, {base}
sys.pycache_prefix = {prefix!r} or sys.pycache_prefix
began, cpu = time.perf_counter(), time.process_time()
{what}
print(time.perf_counter() - began, time.process_time() - cpu)
"""


def _beyond(what: str, base: str, environment: dict[str, str]) -> Sample:
    """Seconds of an import in a program that has imported something else already.

    Where no bytecode is found, that of Python's own modules is missing as well.
    """
    sample: Sample = {}
    with tempfile.TemporaryDirectory(prefix="bench-nothing-") as nothing:
        for how, prefix in (("", ""), (" without bytecode", nothing)):
            command = [sys.executable, "-c", PROGRAM.format(what=what, base=base, prefix=prefix)]
            said = subprocess.run(
                command, env=environment, check=True, capture_output=True, text=True
            )
            took, cpu = (float(word) for word in said.stdout.split())
            sample |= {f"import{how}, s": took, f"import{how}, CPU s": cpu}
    return sample


def _start(directory: Path, environment: dict[str, str]) -> Sample:
    command = [sys.executable, "-m", "wheeld", "start", "--name", "bench"]
    command += ["--runtime-dir", str(directory)]
    begin = time.perf_counter()
    with servers.started(*command, env=environment) as process:
        while (found := _pids(directory / "bench")) is None:
            if process.poll() is not None or time.perf_counter() > begin + START_SECONDS:
                raise RuntimeError(f"{' '.join(command)} did not start")
            time.sleep(0.001)
        sample = {"start, s": time.perf_counter() - begin}
        sample["start, CPU s"] = sum(cpu_ns(pid) for pid in found) / 1e9
        for who, pid in zip(("clock", "supervisor"), found, strict=True):
            own = psutil.Process(pid).memory_full_info().uss
            sample[f"{who}'s private memory, MB"] = own / MB
    return sample


def _pids(place: Path) -> tuple[int, int] | None:
    """Of a daemon that serves."""
    try:
        return daemon.pids(str(place))
    except (OSError, ValueError, KeyError):
        return None


def wheeld(quick: bool) -> Iterator[Sample]:
    """The import beyond numpy's; `wheeld start` until it serves; its processes' own memory."""
    with compiled() as environment:
        while True:
            sample = _beyond("from wheeld_client import connect", "numpy", environment)
            with tempfile.TemporaryDirectory(prefix="bench-start-") as directory:
                sample |= _start(Path(directory), environment)
            yield sample


def redis(quick: bool) -> Iterator[Sample]:
    """redis-py's import beyond Python's own; redis-server until it serves; its memory."""
    with compiled() as environment:
        if find_spec("redis") is None:
            raise servers.Missing("redis-py: the package redis is not installed")
        while True:
            sample = _beyond("import redis", "os", environment)
            begin = time.perf_counter()
            with servers.redis() as (pid, _):
                sample["start, s"] = time.perf_counter() - begin
                sample["start, CPU s"] = cpu_ns(pid) / 1e9
                own = psutil.Process(pid).memory_full_info().uss
                sample["supervisor's private memory, MB"] = own / MB
            yield sample
