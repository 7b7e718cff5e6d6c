"""Rivals that are programs: started and ended by the benchmark, or reported as missing."""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

START_SECONDS = 20.0
PR_SET_PDEATHSIG = 1
PACKAGES = (
    "uvloop", "redis", "limits", "flask-limiter", "filelock", "portalocker", "APScheduler"
)  # fmt: skip


class Missing(Exception):
    """Reports a rival that this machine cannot measure, and its missing requirements."""


def program(*names: str, of: str) -> str:
    for name in names:
        if found := shutil.which(name):
            return found
    raise Missing(f"{of}: {' or '.join(names)} is not installed")


def package(name: str) -> None:
    """Missing: no package of that name is installed."""
    if find_spec(name) is None:
        raise Missing(f"the package {name} is not installed")


def _dies_with_us() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


@contextmanager
def started(*command: str, **more: Any) -> Iterator[subprocess.Popen[str]]:
    """Run a program during the block; it dies with this process."""
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, **more}
    process = subprocess.Popen(
        command,
        text=True,
        preexec_fn=_dies_with_us,  # noqa: PLW1509 - a case has no threads
        **quiet,
    )
    try:
        yield process
    finally:
        process.terminate()
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()


def await_socket(family: int, address: Any, process: subprocess.Popen[str]) -> socket.socket:
    give_up = time.monotonic() + START_SECONDS
    while True:
        peer = socket.socket(family)
        try:
            peer.connect(address)
            return peer
        except OSError:
            peer.close()
            if process.poll() is not None or time.monotonic() > give_up:
                raise Missing(f"{process.args!r} did not begin to listen on {address}") from None
            time.sleep(0.001)


@contextmanager
def redis() -> Iterator[tuple[int, Path]]:
    """A Redis that keeps nothing: its process, and its Unix socket."""
    path = program("redis-server", "valkey-server", of="Redis")
    with tempfile.TemporaryDirectory(prefix="bench-redis-") as directory:
        place = Path(directory, "socket")
        options = ["--port", "0", "--unixsocket", str(place), "--dir", directory]
        options += ["--save", "", "--appendonly", "no"]
        with started(path, *options) as process:
            await_socket(socket.AF_UNIX, str(place), process).close()
            yield process.pid, place


@contextmanager
def redis_client(place: Path | None = None) -> Iterator[Any]:
    """A client of redis-py: of the Redis at that socket, or of one of its own."""
    package("redis")
    from redis import Redis

    with contextlib.ExitStack() as stack:
        if place is None:
            _, place = stack.enter_context(redis())
        yield stack.enter_context(Redis(unix_socket_path=str(place)))


@contextmanager
def beanstalkd() -> Iterator[tuple[int, int]]:
    """A beanstalkd that keeps nothing: its process, and its port on loopback."""
    path = program("beanstalkd", of="beanstalkd")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with started(path, "-l", "127.0.0.1", "-p", str(port)) as process:
        await_socket(socket.AF_INET, ("127.0.0.1", port), process).close()
        yield process.pid, port


def _netty_jars() -> list[Path]:
    spec = find_spec("pyspark")
    places = (spec.submodule_search_locations if spec is not None else None) or []
    return [jar for place in places for jar in Path(place, "jars").glob("netty-common-*.jar")]


@contextmanager
def java(source: Path, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A Java program beside Netty's classes, which come with PySpark; it talks in lines."""
    compiler, runtime = program("javac", of="Netty"), program("java", of="Netty")
    jars = _netty_jars()
    if not jars:
        raise Missing("Netty: its jar comes with pyspark, which is not installed")
    with tempfile.TemporaryDirectory(prefix="bench-java-") as directory:
        path = os.pathsep.join([str(jars[0]), directory])
        compiled = [compiler, "-nowarn", "-cp", path, "-d", directory, str(source)]
        subprocess.run(compiled, check=True, stderr=subprocess.DEVNULL)
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        command = [runtime, "-Xmx3g", "-cp", path, source.stem, *arguments]
        with started(*command, **pipes) as process:
            yield process


def versions() -> dict[str, str]:
    """Versions of the installed rivals, where they are known."""
    found = {}
    for name in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name if name != "redis" else "redis-py"] = metadata.version(name)
    for name, command in {
        "Redis": ("redis-server", "--version"),
        "beanstalkd": ("beanstalkd", "-v"),
        "Java": ("java", "--version"),
    }.items():
        with contextlib.suppress(OSError):
            said = subprocess.run(command, check=False, capture_output=True, text=True).stdout
            if number := re.search(r"\d+(\.\d+)+", said):
                found[name] = number[0]
    for jar in _netty_jars():
        found["Netty"] = jar.stem.removeprefix("netty-common-").removesuffix(".Final")
    return found
