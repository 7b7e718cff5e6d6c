"""The daemon under test: a real `wheeld start`, its process ids, its outages."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from wheeld_core import _native, control, runtime, segments
from wheeld_core.control.messages import Request
from wheeld_core.views import SlotsView, WheelView

CAPACITY: Final = 65_536
KEEP_SECONDS: Final = 4
HANG_SECONDS: Final = 3
START_SECONDS: Final = 30.0


class DaemonFailed(Exception):
    """The daemon did something that no fault explains, and the run cannot continue; `counter` is
    the count that it goes into."""

    def __init__(self, message: str, counter: str = "crashed") -> None:
        super().__init__(message)
        self.counter = counter


@dataclass
class Outage:
    """A period, in ns, in which a process could not answer; `until` 0: it still lasts."""

    what: str
    began: int
    until: int = 0


class Daemon:
    """One daemon, in a directory of its own; a context manager that removes all of it.

    Parameters
    ----------
    log : Path
        The file for its messages.
    tick : callable
        Called while it waits; may raise.
    options : tuple of str
        More options of `wheeld start`; {base} in them is its directory.
    """

    def __init__(self, log: Path, tick: Callable[[], None], options: tuple[str, ...] = ()) -> None:
        self._log, self._tick = log, tick
        self._options = options
        self.base = Path(tempfile.mkdtemp(prefix="wt-", dir="/tmp"))  # sockets have short paths
        self.name = f"t{os.getpid()}-torture-{os.urandom(3).hex()}"
        self.directory = self.base / self.name
        self.outages: list[Outage] = []
        self.process: subprocess.Popen[bytes] | None = None
        self.prefix = ""
        self._wheel: WheelView | None = None

    # -- its life -------------------------------------------------------------------------------

    def start(self) -> None:
        """Start it, or start it again over what a killed one left; returns when it serves."""
        options = ["--name", self.name, "--runtime-dir", str(self.base), "--quiet"]
        options += ["--capacity", str(CAPACITY), "--payload-bytes", "24", "--max-workers", "32"]
        options += ["--parent-pid", str(os.getpid())]
        options += ["--keep-for", f"{KEEP_SECONDS}s", "--hang-after", f"{HANG_SECONDS}s"]
        options += [option.format(base=self.base) for option in self._options]
        with self._log.open("ab") as output:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "wheeld", "start", *options],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        give_up = time.monotonic() + START_SECONDS
        while self.facts().get("pid") != self.process.pid:
            if self.process.poll() is not None:
                raise DaemonFailed(f"wheeld start exited with {self.process.returncode}")
            if time.monotonic() > give_up:
                raise DaemonFailed(f"wheeld start did not serve within {START_SECONDS:.0f} s")
            self._tick()
            time.sleep(0.005)
        facts = self.facts()
        if facts["segment_prefix"] != self.prefix:
            self.prefix = facts["segment_prefix"]
            wheel = segments.attach(facts["segments"]["wheel"], _native.KIND_WHEEL, writable=False)
            self._wheel = WheelView(wheel)

    def facts(self) -> dict[str, Any]:
        """Its daemon.json; {} when there is none."""
        with suppress(OSError, ValueError):
            found: dict[str, Any] = json.loads((self.directory / runtime.DAEMON_FILE).read_text())
            return found
        return {}

    def status(self, timeout: float = 10.0) -> dict[str, Any]:
        """What `wheeld status --json` prints."""
        found: dict[str, Any] = control.ask(self.directory, Request.STATUS, timeout)["status"]
        return found

    @property
    def pid(self) -> int:
        """The supervisor's process id."""
        assert self.process is not None
        return self.process.pid

    def clock_pid(self) -> int | None:
        """The clock's: a child of the supervisor with its name; None if there is none now."""
        for pid in self.children():
            with suppress(OSError):
                if Path(f"/proc/{pid}/comm").read_text().strip() == "wheeld-clock":
                    return pid
        return None

    def children(self) -> list[int]:
        """Process ids of the supervisor's children."""
        with suppress(OSError):
            text = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text()
            return [int(pid) for pid in text.split()]
        return []

    def clock_pidfd(self) -> int | None:
        """A pidfd of the clock; the caller closes it."""
        pid = self.clock_pid()
        if pid is None:
            return None
        with suppress(ProcessLookupError):
            pidfd = os.pidfd_open(pid)
            if self.clock_pid() == pid:  # still the supervisor's child: it was no other meanwhile
                return pidfd
            os.close(pidfd)
        return None

    def signal_clock(self, number: int) -> bool:
        """Send the clock a signal. False: there is no clock now."""
        pidfd = self.clock_pidfd()
        if pidfd is None:
            return False
        try:
            signal.pidfd_send_signal(pidfd, number)
        except ProcessLookupError:
            return False
        finally:
            os.close(pidfd)
        return True

    # -- what it says ---------------------------------------------------------------------------

    def header(self, name: str) -> int:
        """A field of the wheel's header; reading it wakes nobody."""
        return int(self._wheel_header()[name])

    def _wheel_header(self) -> npt.NDArray[Any]:
        assert self._wheel is not None
        return self._wheel.header

    def armed(self) -> npt.NDArray[np.uint64]:
        """Cookies of all armed timers, read from the slots."""
        slots = self._slots()
        return np.array(slots.slots["cookie"][slots.armed()])

    def overdue(self) -> npt.NDArray[np.uint64]:
        """Cookies of armed one-shot timers whose time has come by their own slots, whatever their
        owners noted: on the monotonic clock."""
        slots = self._slots()
        fields = slots.slots[slots.armed()]
        late = (fields["interval"] <= 0) & (fields["flags"] & 3 == 0)
        late &= fields["deadline"] < time.monotonic_ns()
        return np.array(fields["cookie"][late])

    def _slots(self) -> SlotsView:
        header = self._wheel_header()
        memory = segments.attach(f"{self.prefix}slots", _native.KIND_SLOTS, writable=False)
        return SlotsView(memory, int(header["capacity"]), int(header["payload_bytes"]))

    def descriptors(self) -> int:
        """Open descriptors of the supervisor."""
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def segments(self) -> list[str]:
        """Its shared memory segments that exist now."""
        return [name for name in os.listdir(segments.SHM_DIRECTORY) if f"-{self.name}-" in name]

    def fifos(self) -> list[str]:
        """The workers' doorbells that exist now."""
        return [path.name for path in self.directory.glob("worker-*.fifo")]

    # -- its end --------------------------------------------------------------------------------

    def stop(self) -> list[str]:
        """Stop it; returns what it left behind, in words."""
        assert self.process is not None
        children = self.children()
        left = []
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(20)
            except subprocess.TimeoutExpired:
                left.append("wheeld did not stop within 20 s")
                self.process.kill()
                self.process.wait()
        if self.process.returncode:
            left.append(f"wheeld ended with {self.process.returncode}")
        left += [f"process {pid}" for pid in children if Path(f"/proc/{pid}").exists()]
        left += [f"segment {name}" for name in self.segments()]
        left += [str(path) for path in self.directory.glob("*")]
        return left

    def __enter__(self) -> Daemon:
        return self

    def __exit__(self, *exception: object) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.signal_clock(signal.SIGCONT)
            self.stop()
        for name in self.segments():
            segments.unlink(name)
        shutil.rmtree(self.base, ignore_errors=True)
