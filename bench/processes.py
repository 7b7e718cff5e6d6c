"""Functions in processes of their own (spawned, never forked), and what /proc says about them."""

from __future__ import annotations

import contextlib
import ctypes
import multiprocessing
import os
import time
import traceback
from collections import Counter
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

_context = multiprocessing.get_context("spawn")
_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")

PR_SET_TIMERSLACK = 29
Task = tuple[Callable[..., Any], tuple[Any, ...]]


def _child(function: Callable[..., Any], arguments: tuple[Any, ...], pipe: Connection) -> None:
    try:
        pipe.send((True, function(*arguments, pipe)))
    except BaseException:
        with contextlib.suppress(OSError):  # nobody listens any more
            pipe.send((False, traceback.format_exc()))


class Background:
    """A process that runs `function(*arguments, pipe)`."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self.pipe, theirs = _context.Pipe()
        self.process = _context.Process(target=_child, args=(function, arguments, theirs))
        self.process.start()
        theirs.close()

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self.process.pid is not None
        return self.process.pid

    def go(self) -> None:
        """Make its call of `ready` return."""
        self.pipe.send(True)

    def receive(self) -> Any:
        """The next value that it sends. RuntimeError with its traceback if it failed instead."""
        try:
            message = self.pipe.recv()
        except EOFError:
            raise RuntimeError("a benchmark process died without a word") from None
        ok, value = message
        if not ok:
            raise RuntimeError(f"a benchmark process failed:\n{value}")
        return value

    def end(self, seconds: float) -> None:
        """Make it clean up, at its next message to this process; kill it if that takes too long."""
        self.pipe.close()
        self.process.join(seconds)
        self.process.kill()
        self.process.join()

    def stop(self) -> None:
        """Kill it, whatever it does."""
        self.process.kill()
        self.process.join()
        self.pipe.close()


def ready(pipe: Connection) -> None:
    """Called in a task when everything is set up; returns when all the others are ready as well."""
    pipe.send((True, None))
    pipe.recv()


def together(*tasks: Task) -> list[Any]:
    """Run tasks, each in a process of its own; they begin together at their call of `ready`.

    Returns what each returned, in order. Raises RuntimeError with the traceback of one that failed.
    """
    started = [Background(function, *arguments) for function, arguments in tasks]
    try:
        for one in started:
            one.receive()
        for one in started:
            one.go()
        return [one.receive() for one in started]
    finally:
        for one in started:
            one.stop()


def exact_sleeps() -> None:
    """Have the kernel not round this process's sleeps, as the clock does for itself."""
    ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0)


def switches(pid: int) -> int:
    """How often the threads of a process were switched, voluntarily or not."""
    total = 0
    for thread in Path(f"/proc/{pid}/task").iterdir():
        for line in (thread / "status").read_text().splitlines():
            if "ctxt_switches" in line:
                total += int(line.split()[1])
    return total


def cpu_seconds(pid: int) -> float:
    """CPU time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_SECOND


def cpu_ns(pid: int) -> int:
    """The same in ns, as exact as the kernel knows it."""
    return time.clock_gettime_ns((~pid << 3) | 2)  # as clock_getcpuclockid(3) makes it


def family_cpu_seconds() -> float:
    """CPU time that this process, all that it has started, and their dead have used."""
    return sum(family_cpu().values())


def family_cpu() -> Counter[str]:
    """The same in seconds by program: "java", "python" and so on, "here" for this process."""
    parents, names, used = {}, {}, {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                begin, _, rest = (entry / "stat").read_text().rpartition(")")
                pid, fields = int(entry.name), rest.split()
                parents[pid], names[pid] = int(fields[1]), begin.partition("(")[2]
                used[pid] = sum(map(int, fields[11:15])) / _TICKS_PER_SECOND
    family = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= more
    sums: Counter[str] = Counter()
    for pid in family & set(used):
        sums["here" if pid == os.getpid() else names[pid]] += used[pid]
    return sums
