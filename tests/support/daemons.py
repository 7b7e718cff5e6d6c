"""Real daemons for tests: start, kill, start again, look into.

Everything is bounded by `LONG`; nothing waits for a fixed time where an event can be waited for.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from wheeld_core import _native, control, segments
from wheeld_core.views import RegistryView, WheelView, record

if TYPE_CHECKING:
    from wheeld.forkserver import DaemonProcess, ForkServer

LONG = 60.0
"""Seconds that a test waits for an event before it fails."""
PROGRAM: Final = [sys.executable, "-m", "wheeld"]


def until(holds: Callable[[], Any], what: str, seconds: float = LONG) -> Any:
    give_up = time.monotonic() + seconds
    while not (found := holds()):
        assert time.monotonic() < give_up, f"after {seconds} s still not: {what}"
        time.sleep(0.002)
    return found


def status_of(directory: str | Path) -> dict[str, Any]:
    connection = control.Connection(Path(directory), LONG)
    try:
        found: dict[str, Any] = connection.request("status")["status"]
        return found
    finally:
        connection.close()


def end_of(pid: int) -> Callable[[], None]:
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return lambda: None

    def wait() -> None:
        ended = select.select([pidfd], [], [], LONG)[0]
        os.close(pidfd)
        assert ended, f"process {pid} is still there"

    return wait


def is_running(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def map_segment(name: str, kind: int) -> Any:
    return memoryview(segments.attach(name, kind, writable=True))


class Daemon:
    """One daemon, in a process of its own; the `with` block's end removes all of it.

    Parameters
    ----------
    base : Path
        The directory that holds its runtime directory.
    name : str
        Its name.
    server : wheeld.ForkServer, optional
        What forks it; without one each start loads all of Python's modules again.
    **options
        Options of `wheeld start`: `max_workers=3`, `virtual_clock=True`, ...
    """

    def __init__(
        self, base: Path, name: str, server: ForkServer | None = None, **options: Any
    ) -> None:
        self.base, self.name, self.options = base, name, options
        self.directory = base / name
        self.log = base / f"{name}.log"
        self.process: subprocess.Popen[bytes] | DaemonProcess | None = None
        self.server = server
        self.program = PROGRAM
        """The program that runs it; a test may put a changed one there, which no server forks."""

    @property
    def where(self) -> tuple[str, ...]:
        """As options of a command."""
        return ("--name", self.name, "--runtime-dir", str(self.base))

    # -- its life -------------------------------------------------------------------------------

    def launch(self, *more: str, **options: Any) -> subprocess.Popen[bytes] | DaemonProcess:
        words = ["--name", self.name, "--runtime-dir", str(self.base)]
        for key, value in {"capacity": 1024, **self.options, **options}.items():
            words += ["--" + key.replace("_", "-")] + ([] if value is True else [str(value)])
        words += more
        with self.log.open("ab") as log:
            if self.server is not None and self.program is PROGRAM:
                self.process = self.server.start(*words, output=log.fileno())
            else:
                command = [*self.program, "start", *words]
                self.process = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=log, stderr=log
                )
        return self.process

    def start(self, *more: str, **options: Any) -> Daemon:
        process = self.launch(*more, **options)
        until(lambda: process.poll() is not None or self.serves(), "serving")
        assert process.poll() is None, self.log.read_text()
        return self

    def refused(self, *more: str, **options: Any) -> str:
        before, first = len(self.said()), self.process
        process = self.launch(*more, **options)
        try:
            code = process.wait(LONG)
        except subprocess.TimeoutExpired:
            process.terminate()
            code = process.wait(LONG)
        finally:
            self.process = first or self.process
        assert code in (1, 2), self.said()
        message = self.said()[before:]
        assert "Traceback" not in message, message
        return message

    def serves(self) -> bool:
        assert self.process is not None
        return self.facts().get("pid") == self.process.pid

    def kill(self) -> None:
        gone = [end_of(self.clock_pid), end_of(self.pid)]
        os.kill(self.pid, signal.SIGKILL)
        for wait in gone:
            wait()
        self.wait()

    def wait(self) -> int:
        assert self.process is not None
        return self.process.wait(LONG)

    def end(self) -> int:
        """Its exit code, when it has ended and left nothing."""
        code = self.wait()
        assert self.nothing_left()
        return code

    def stop(self) -> None:
        assert self.process is not None
        self.process.terminate()
        assert self.wait() == 0, self.said()

    def __enter__(self) -> Daemon:
        return self

    def __exit__(self, *exception: object) -> None:
        if self.process is not None and self.process.poll() is None:
            for pid in {self.pid, *self.children()}:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
            self.process.terminate()
            try:
                self.process.wait(LONG)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        for name in self.segments():
            segments.unlink(name)
        shutil.rmtree(self.directory, ignore_errors=True)
        if exception[0] is not None:
            print(self.said())

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run `wheeld WORDS` for this daemon, with the program as it is installed."""
        line = [*PROGRAM, *words, "--name", str(self.directory)]
        return subprocess.run(line, capture_output=True, text=True, timeout=LONG)

    # -- its clock ------------------------------------------------------------------------------

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    @property
    def clock_pid(self) -> int:
        return int(until(self.find_clock, "a clock"))

    def children(self) -> list[int]:
        found = []
        for task in Path(f"/proc/{self.pid}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                found += [int(pid) for pid in task.read_text().split()]
        return found

    def find_clock(self) -> int | None:
        for pid in self.children():
            with contextlib.suppress(OSError):
                if Path(f"/proc/{pid}/comm").read_text() == "wheeld-clock\n" and is_running(pid):
                    return pid
        return None

    def signal_clock(self, number: int) -> int:
        pid = self.clock_pid
        os.kill(pid, number)
        return pid

    def kill_clock(self) -> int:
        epoch, pid = self.header("epoch"), self.clock_pid
        os.kill(pid, signal.SIGKILL)
        self.await_epoch(epoch + 1)
        return pid

    def await_epoch(self, epoch: int) -> None:
        until(lambda: self.header("epoch") >= epoch, f"a clock of epoch {epoch}")
        passes = self.header("passes")
        until(lambda: self.header("passes") > passes or self.header("sleep_until") > -(2**63), "up")

    # -- what it says ---------------------------------------------------------------------------

    def facts(self) -> dict[str, Any]:
        with contextlib.suppress(OSError, ValueError):
            path = self.directory / "daemon.json"
            if path.is_file():
                found: dict[str, Any] = json.loads(path.read_text())
                return found
        return {}

    def status(self) -> dict[str, Any]:
        return status_of(self.directory)

    def workers(self) -> dict[str, dict[str, Any]]:
        return {worker["name"]: worker for worker in self.status()["workers"]}

    def said(self) -> str:
        return self.log.read_text() if self.log.exists() else ""

    # -- its memory -----------------------------------------------------------------------------

    def segments(self) -> list[str]:
        prefix = f"wheeld-{self.name}-"
        return sorted(name for name in os.listdir("/dev/shm") if name.startswith(prefix))

    def segment(self, kind: str) -> str:
        prefix = str(self.facts()["segment_prefix"])
        return segments.of_daemon(prefix, self.directory.stat().st_uid).get(kind, prefix + kind)

    def segment_path(self, kind: str) -> Path:
        return Path("/dev/shm", self.segment(kind))

    def view(self) -> WheelView:
        return WheelView(map_segment(self.segment("wheel"), _native.KIND_WHEEL))

    def header(self, field: str) -> int:
        return int(self.view().header[field])

    def registry(self) -> RegistryView:
        return RegistryView(map_segment(self.segment("registry"), _native.KIND_REGISTRY))

    def head(self, kind: str) -> Any:
        with self.segment_path(kind).open("r+b") as file:
            return record(mmap.mmap(file.fileno(), 0), "head")

    def nothing_left(self) -> bool:
        return not self.segments() and not self.directory.exists()


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)

    def stands() -> bool:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"

    try:
        until(stands, "stopped")
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)
