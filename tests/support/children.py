"""Forked children for tests: what they do, and what came of it."""

import ctypes
import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np

from daemons import status_of
from wheeld_client import DaemonNotRunning, ForkedClient, Timers

LONG = 60.0
"""Seconds that a test waits for an event before it fails."""


def receive(timers: Timers, count: int, **options: Any) -> np.ndarray[Any, Any]:
    parts: list[Any] = []
    while sum(map(len, parts)) < count:
        part = timers.poll(LONG, **options)
        assert len(part), f"nothing came for {LONG} s: {timers.stats()}"
        parts.append(part)
    events = np.concatenate(parts or [np.empty(0, timers.expiration_dtype)])
    assert (events["fired"] >= events["deadline"]).all(), "early"
    return events


def listed(daemon: str) -> dict[str, dict[str, Any]]:
    return {worker["name"]: worker for worker in status_of(daemon)["workers"]}


def start_child(work: Callable[[], object], fork: Callable[[], int] = os.fork) -> tuple[int, int]:
    reader, writer = os.pipe()
    pid = fork()
    if pid == 0:
        try:
            answer = work()
            os.write(writer, json.dumps("nothing" if answer is None else answer).encode())
        except BaseException as error:
            if not isinstance(error, (ForkedClient, DaemonNotRunning)):
                traceback.print_exc()
            os.write(writer, json.dumps(type(error).__name__).encode())
        os._exit(0)
    os.close(writer)
    return pid, reader


def answer_of(child: tuple[int, int]) -> Any:
    with open(child[1], "rb") as pipe:
        answer = pipe.read().decode()
    os.waitpid(child[0], 0)
    return json.loads(answer)


def in_child(work: Callable[[], object], fork: Callable[[], int] = os.fork) -> Any:
    return answer_of(start_child(work, fork))


def bare_fork() -> int:
    """fork() as a C library does it: Python is not told.

    A child that inherits another thread's request for the GIL drops it, and then waits for that
    thread to take it, which the child does not have. So nobody asks while this forks.
    """
    interval = sys.getswitchinterval()
    sys.setswitchinterval(0.2)
    time.sleep(0.001)  # who has asked already gets the GIL
    try:
        pid: int = ctypes.PyDLL(None).fork()
        return pid
    finally:
        sys.setswitchinterval(interval)


def daemon_calls(timers: Timers, id: int = 0) -> list[Callable[[], object]]:
    return [
        lambda: timers.schedule(1.0),
        lambda: timers.schedule_at(1.0),
        lambda: timers.schedule_many([1.0]),
        lambda: timers.cancel(id + 2**32),
        lambda: timers.cancel_many([id + 2**32]),
        lambda: timers.reschedule(id + 2**32, 1.0),
        lambda: timers.reschedule_many([id + 2**32], [1.0]),
        lambda: timers.poll(0.001),
        lambda: timers.call_later(1.0, print),
        timers.dispatch,
        timers.fileno,
        timers.stats,
        lambda: timers.pending,
    ]


def calls_of(timers: Timers, id: int) -> list[Callable[[], object]]:
    return [*daemon_calls(timers, id), timers.control_fileno, timers.workers, timers.now_ns]
