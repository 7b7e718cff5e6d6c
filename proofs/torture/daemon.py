"""The daemon under test: a real `wheeld start`, its process ids, its outages."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

import daemons
from wheeld.tables.registry import KEEPER
from wheeld_core import _native, runtime, segments
from wheeld_core.views import SlotsView, WheelView

CAPACITY: Final = 65_536
KEEP_SECONDS: Final = 4
HANG_SECONDS: Final = 3


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


class Daemon(daemons.Daemon):
    """A context manager for one daemon in its own directory; it removes both at the end. {base} in
    `options` is its directory."""

    def __init__(self, log: Path, options: tuple[str, ...] = ()) -> None:
        super().__init__(
            Path(tempfile.mkdtemp(prefix="wt-", dir="/tmp")),  # sockets have short paths
            f"t{os.getpid()}-torture-{os.urandom(3).hex()}",
            quiet=True,
            capacity=CAPACITY,
            payload_bytes=24,
            max_workers=32,
            parent_pid=os.getpid(),
            keep_for=f"{KEEP_SECONDS}s",
            hang_after=f"{HANG_SECONDS}s",
        )
        self.log = log
        self.program = ["setsid", *daemons.PROGRAM]  # Ctrl-C is the driver's to handle
        self.outages: list[Outage] = []
        self._more = [option.format(base=self.base) for option in options]
        self._wheel: WheelView | None = None

    def serve(self) -> None:
        """Start it, or start it again over what a killed one left; returns when it serves."""
        try:
            self.start(*self._more)
        except AssertionError as error:
            raise DaemonFailed(f"wheeld start: {error}") from None
        self._wheel = self.view()

    def clock_pidfd(self) -> int | None:
        """A pidfd of the clock; the caller closes it."""
        pid = self.find_clock()
        if pid is None:
            return None
        with suppress(ProcessLookupError):
            pidfd = os.pidfd_open(pid)
            if self.find_clock() == pid:  # still the supervisor's child: it was no other meanwhile
                return pidfd
            os.close(pidfd)
        return None

    def signal_clock(self, number: int) -> int:
        pidfd = self.clock_pidfd()
        if pidfd is None:
            return 0
        try:
            signal.pidfd_send_signal(pidfd, number)
        except ProcessLookupError:
            return 0
        finally:
            os.close(pidfd)
        return 1

    # -- what it says ---------------------------------------------------------------------------

    def header(self, field: str) -> int:
        """A field of the wheel's header; reading it wakes nobody."""
        assert self._wheel is not None
        return int(self._wheel.header[field])

    def armed(self) -> npt.NDArray[np.uint64]:
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

    def kept(self) -> dict[str, int]:
        """Bytes of the heap and detached timers, if there are any once the clock has looked: it may
        sleep since before the last acknowledgement."""
        with suppress(OSError):  # a full FIFO wakes it, too
            bell = os.open(self.directory / runtime.CLOCK_FIFO, os.O_WRONLY | os.O_NONBLOCK)
            os.write(bell, b"\0")
            os.close(bell)
        heap = int(self.status()["payload_heap"]["bytes"])
        found = {"payload_bytes": heap, "detached": self.header("detached")}
        return {name: count for name, count in found.items() if count}

    def _slots(self) -> SlotsView:
        memory = segments.attach(self.segment("slots"), _native.KIND_SLOTS, writable=False)
        return SlotsView(memory, self.header("capacity"), self.header("payload_bytes"))

    def descriptors(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def rows(self) -> list[str]:
        """Names of the workers; the row that keeps detached timers is nobody's."""
        names = [worker["name"] for worker in self.status()["workers"]]
        return [name for name in names if name != KEEPER]

    def workers_files(self) -> list[str]:
        found = [path.name for path in self.directory.glob("worker-*.fifo")]
        found += [name for name in self.segments() if "worker" in name]
        keeper = rf"worker-{self.header('keeper') - 1}\b"
        return [name for name in found if not re.search(keeper, name)]

    # -- its end --------------------------------------------------------------------------------

    def finish(self) -> list[str]:
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

    def __exit__(self, *exception: object) -> None:
        super().__exit__(None)
        shutil.rmtree(self.base, ignore_errors=True)
