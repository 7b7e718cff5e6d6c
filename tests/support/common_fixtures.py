"""Fixtures that a module makes in a line: `daemon = embedded(max_workers=8)`.

A module that needs other options than those of a fixture for all assigns its own under the same
name, and what stands upon it follows: `timers` is a worker of the `wheel` that the module has.
"""

import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import wheeld
from daemons import Daemon
from fake_supervisor import StandIn
from local_wheel import LocalTimers, LocalWheel
from wheeld_client import Timers, connect


@pytest.fixture
def eager_switches() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


@pytest.fixture
def daemon_name() -> str:
    return f"t{os.getpid()}-{secrets.token_hex(4)}"


@pytest.fixture
def runtime_dir() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="wt-", dir="/tmp"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


def local_wheel(*sizes: int, **options: Any) -> Callable[[], Iterator[LocalWheel]]:
    @pytest.fixture
    def wheel() -> Iterator[LocalWheel]:
        with LocalWheel(*sizes, **options) as wheel:
            yield wheel

    return wheel


wheel = local_wheel()


@pytest.fixture
def timers(wheel: LocalWheel) -> LocalTimers:
    return wheel.worker(0)


def local_workers(count: int, **options: Any) -> Callable[[LocalWheel], list[LocalTimers]]:
    @pytest.fixture
    def workers(wheel: LocalWheel) -> list[LocalTimers]:
        return [wheel.worker(row, **options) for row in range(count)]

    return workers


def embedded(scope: Any = "module", **options: Any) -> Callable[..., Iterator[str]]:
    @pytest.fixture(scope=scope)
    def daemon(wheel_server: wheeld.ForkServer) -> Iterator[str]:
        with wheel_server.embedded(**options) as name:
            yield name

    return daemon


def daemon_process(
    *words: str,
    started: bool = True,
    for_all: bool = False,
    forked: bool = True,
    **options: Any,
) -> Callable[..., Iterator[Daemon]]:
    """A daemon of these options in a process of its own, for each test.

    Parameters
    ----------
    *words
        More words of its command line.
    started : bool
        It serves when the test begins; otherwise the test starts it.
    for_all : bool
        Other users may look into the directory that holds its runtime directory.
    forked : bool
        The fork server of `wheeld_testing` makes it. Otherwise it is a child of the test's process,
        and has its limits, namespaces and descriptors.
    **options
        Options of `wheeld start`.
    """

    @pytest.fixture
    def daemon(
        wheel_server: wheeld.ForkServer, runtime_dir: Path, daemon_name: str
    ) -> Iterator[Daemon]:
        if for_all:
            runtime_dir.chmod(0o755)
        server = wheel_server if forked else None
        with Daemon(runtime_dir, daemon_name, server, **options) as daemon:
            yield daemon.start(*words) if started else daemon

    return daemon


def shared_daemon(autouse: bool = False, **options: Any) -> Callable[[], Iterator[Daemon]]:
    @pytest.fixture(scope="module", autouse=autouse)
    def daemon(wheel_server: wheeld.ForkServer) -> Iterator[Daemon]:
        with tempfile.TemporaryDirectory(prefix="wt-", dir="/tmp") as base:
            name = f"t{os.getpid()}-{secrets.token_hex(4)}"
            with Daemon(Path(base), name, wheel_server, **options) as daemon:
                yield daemon.start()

    return daemon


def connected(**options: Any) -> Callable[[Any], Iterator[Timers]]:
    @pytest.fixture
    def timers(daemon: Any) -> Iterator[Timers]:
        with connect(str(getattr(daemon, "directory", daemon)), **options) as timers:
            yield timers

    return timers


def fake_supervisor() -> Callable[[Path], Iterator[StandIn]]:
    @pytest.fixture
    def daemon(runtime_dir: Path) -> Iterator[StandIn]:
        with StandIn(runtime_dir) as daemon:
            yield daemon

    return daemon
