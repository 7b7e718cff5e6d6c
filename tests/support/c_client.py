"""The C client, built once in a run, and called through ctypes."""

from __future__ import annotations

import ctypes
import functools
import os
import shlex
import shutil
import subprocess
from ctypes import POINTER, byref, c_char_p, c_int, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from pathlib import Path
from typing import Any

from proofs import sanitize

SOURCES = Path(__file__).parents[2] / "client/c"
TOOLS = all(map(shutil.which, ("make", "pkg-config"))) and sanitize.compiler() is not None
(OK, OVER, INVALID, FULL, NOT_RUNNING, MISMATCH, NOT_PERMITTED, REFUSED, FORKED) = range(9)


class Options(ctypes.Structure):
    _fields_ = [
        *((name, c_char_p) for name in ("worker", "group", "on_death", "runtime_dir")),
        ("timeout_ns", c_int64),
    ]


class Timer(ctypes.Structure):
    _fields_ = [
        *(("delay_ns", c_int64), ("interval_ns", c_int64), ("cookie", c_uint64)),
        *(("payload", c_char_p), ("payload_size", c_uint32)),
    ]


class Event(ctypes.Structure):
    _fields_ = [
        *(("id", c_uint64), ("cookie", c_uint64), ("deadline_ns", c_int64), ("fired_ns", c_int64)),
        *(("missed", c_uint32), ("payload_size", c_uint32), ("payload", c_void_p)),
    ]


def make(*words: str, sources: Path = SOURCES) -> None:
    compiler = shlex.split(sanitize.compiler() or "cc")
    command = [
        "make",
        "-s",
        "-C",
        str(sources),
        f"CC={shlex.join(compiler)}",
        "CFLAGS=-O2 -g -Werror",
    ]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("MAKE")}
    done = subprocess.run([*command, *words], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@functools.cache
def load(library: Path) -> Any:
    c = ctypes.CDLL(str(library))
    c.wheeld_message.restype = c.wheeld_result_text.restype = c_char_p
    c.wheeld_now_ns.restype = c_int64
    c.wheeld_close.restype = None
    c.wheeld_schedule.argtypes = [c_void_p, c_int64, c_uint64, POINTER(c_uint64)]
    c.wheeld_schedule_timer.argtypes = [c_void_p, POINTER(Timer), POINTER(c_uint64)]
    c.wheeld_cancel.argtypes = [c_void_p, c_uint64]
    c.wheeld_reschedule.argtypes = [c_void_p, c_uint64, c_int64]
    c.wheeld_poll.argtypes = [c_void_p, c_int64, c_void_p, c_size_t, POINTER(c_size_t)]
    for name in ("fd", "close", "now_ns", "payload_room"):
        getattr(c, f"wheeld_{name}").argtypes = [c_void_p]
    return c


class Refused(Exception):
    """A call did not return WHEELD_OK; `result` is what it returned."""

    def __init__(self, result: int, message: str) -> None:
        super().__init__(message)
        self.result = result


class CTimers:
    def __init__(self, library: Path, daemon: str, **options: Any) -> None:
        self.c = load(library)
        self._client = c_void_p()
        encoded = {key: o.encode() if isinstance(o, str) else o for key, o in options.items()}
        self._check(
            self.c.wheeld_connect(daemon.encode(), byref(Options(**encoded)), byref(self._client))
        )

    def _check(self, result: int) -> None:
        if result != OK:
            raise Refused(result, self.c.wheeld_message().decode())

    def schedule(self, delay_ns: int, cookie: int = 0, **more: Any) -> int:
        made = c_uint64()
        timer = Timer(delay_ns=delay_ns, cookie=cookie, **more)
        self._check(self.c.wheeld_schedule_timer(self._client, byref(timer), byref(made)))
        return made.value

    def cancel(self, timer: int) -> None:
        self._check(self.c.wheeld_cancel(self._client, timer))

    def reschedule(self, timer: int, delay_ns: int) -> None:
        self._check(self.c.wheeld_reschedule(self._client, timer, delay_ns))

    def poll(self, seconds: float = 0.0, most: int = 256) -> list[Event]:
        events, got = (Event * max(most, 1))(), c_size_t()
        timeout = int(seconds * 1e9)
        self._check(self.c.wheeld_poll(self._client, timeout, events, most, byref(got)))
        return list(events[: got.value])

    def fileno(self) -> int:
        found: int = c_int(self.c.wheeld_fd(self._client)).value
        return found

    def close(self) -> None:
        client, self._client = self._client, c_void_p()
        self.c.wheeld_close(client)

    def __enter__(self) -> CTimers:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def payload(event: Event) -> bytes:
    return ctypes.string_at(event.payload, event.payload_size)
