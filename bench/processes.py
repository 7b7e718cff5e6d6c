"""Processes of a benchmark: functions in spawned ones, their CPU time, a daemon for one case."""

from __future__ import annotations

import contextlib
import ctypes
import json
import multiprocessing
import os
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil

import wheeld
import wheeld_client

_context = multiprocessing.get_context("spawn")
PR_SET_TIMERSLACK = 29
READ_NS = 100_000
"""Reading two clocks takes less, unless another process runs in between."""
Sample = dict[str, float]


def _child(function: Callable[..., Any], arguments: tuple[Any, ...], pipe: Connection) -> None:
    try:
        pipe.send((True, function(*arguments, pipe)))
    except BaseException:
        with contextlib.suppress(OSError):  # nobody listens any more
            pipe.send((False, traceback.format_exc()))


class Background:
    """A spawned process that runs `function(*arguments, pipe)`."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.pipe, theirs = _context.Pipe()
        self.process = _context.Process(target=_child, args=(function, arguments, theirs))
        self.process.start()
        theirs.close()

    def go(self) -> None:
        self.pipe.send(True)

    def receive(self) -> Any:
        """The next value that it sends. RuntimeError with its traceback if it failed instead."""
        try:
            ok, value = self.pipe.recv()
        except EOFError:
            raise RuntimeError("a benchmark process was killed") from None
        if not ok:
            raise RuntimeError(f"a benchmark process failed:\n{value}")
        return value

    def stop(self) -> None:
        self.process.kill()
        self.process.join()
        self.pipe.close()


def ready(pipe: Connection) -> None:
    """Called in a task when everything is set up; returns when it may begin."""
    pipe.send((True, None))
    pipe.recv()


def alone(function: Callable[..., Any], *arguments: Any) -> Any:
    """Run `function(*arguments, pipe)`, which calls `ready`, in a process; return its result."""
    one = Background(function, *arguments)
    try:
        one.receive()
        one.go()
        return one.receive()
    finally:
        one.stop()


def exact_sleeps() -> None:
    """Have the kernel not round this process's sleeps, as the clock does for itself."""
    ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0)


def cpu_ns(pid: int) -> int:
    return time.clock_gettime_ns((~pid << 3) | 2)  # as clock_getcpuclockid(3) makes it


def family_cpu() -> Counter[str]:
    """CPU time of this process, all that it has started, and their dead, in seconds by program:
    "java", "python" and so on, "here" for this process."""
    sums: Counter[str] = Counter()
    me = psutil.Process()
    for one in (me, *me.children(recursive=True)):
        with contextlib.suppress(psutil.Error):
            used = one.cpu_times()
            sums["here" if one == me else one.name()] += sum(used[:4])
    return sums


class Watch:
    """Measures the time of this thread, less the time that it waited for a processor.

    Waits of its own (a sleep, a full ring) count; being preempted does not. Where the kernel does
    not say how long a thread was kept waiting, that counts too.
    """

    def __init__(self) -> None:
        try:
            self._file = os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            self._file = -1
        self._kept = self._start = 0

    def _waited_ns(self) -> int:
        return int(os.pread(self._file, 100, 0).split()[1]) if self._file >= 0 else 0

    def start(self) -> None:
        kept = -1
        while kept != (kept := self._waited_ns()):  # or it was preempted just before the start
            self._start = time.perf_counter_ns()
        self._kept = kept

    def ns_each(self, count: int) -> float:
        """ns since `start`, for each of `count` operations."""
        end = time.perf_counter_ns()
        kept = self._waited_ns() - self._kept
        after = time.perf_counter_ns() - end
        if after > READ_NS:  # it was preempted after the end
            kept -= after
        return (end - self._start - max(kept, 0)) / count


class Spent:
    """CPU time of this process and of others since `start`."""

    def __init__(self, *pids: int) -> None:
        self._clocks: list[Callable[[], int]] = [time.process_time_ns]
        self._clocks += [lambda pid=pid: cpu_ns(pid) for pid in pids]  # type: ignore[misc]
        self.start()

    def start(self) -> None:
        self._before = [clock() for clock in self._clocks]

    def each(self) -> list[int]:
        """ns of this process, and of each of the others."""
        pairs = zip(self._clocks, self._before, strict=True)
        return [clock() - before for clock, before in pairs]

    def parts(self, unit: str, scale: float) -> Sample:
        """CPU time of all processes, and of worker and clock alone, in a unit of `scale`
        nanoseconds."""
        used = self.each()
        names = ("CPU of the worker", "CPU of the clock")
        found = {f"{name}, {unit}": part / scale for name, part in zip(names, used, strict=False)}
        return {f"CPU of all, {unit}": sum(used) / scale, **found}


def pids(name: str) -> tuple[int, int]:
    facts = json.loads((Path(name) / "daemon.json").read_text())
    return facts["clock_pid"], facts["pid"]


def status(name: str) -> dict[str, Any]:
    from wheeld_core import control, runtime
    from wheeld_core.control.messages import Request

    content: dict[str, Any] = control.ask(runtime.find(name, None), Request.STATUS)["status"]
    return content


@contextlib.contextmanager
def worker(**config: Any) -> Iterator[tuple[wheeld_client.Timers, Spent]]:
    """This process as a worker of a daemon of its own."""
    with wheeld.embedded(**config) as name, wheeld_client.connect(name) as timers:
        yield timers, Spent(*pids(name))
