"""The daemon's log messages, which go to its stderr and must never block it.

An unread pipe fills, a terminal can be stopped, a journal can hang: a process that writes there
blocks. So a daemon with such a stderr writes to a non-blocking pipe of its own instead, and a
thread copies that to stderr and does the waiting. Its child processes inherit this pipe as their
stderr, even for tracebacks of the interpreter, which `logging.handlers.QueueHandler` could not
carry. Messages for which the pipe has no room are counted, and the count is logged when there is
room again. A file never blocks, and is written to directly.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import os
import select
import signal
import stat
import threading
import time
from datetime import UTC, datetime
from typing import Any

from wheeld.processes import child_main, journal

STDERR = 2
WHOLE_BYTES = select.PIPE_BUF
"""Writes to a pipe up to this size are atomic: no usual message is torn."""
FLUSH_SECONDS = 1.0
"""Seconds that the end of the daemon waits for its last messages to be read."""

_relays: list[_StderrRelay] = []


def set_up(level: str, form: str, daemon: str) -> None:
    """Set up logging in this process. `WheelError`: `form` is journald and there is no journal."""
    handler: logging.Handler
    if form == "journald":
        handler = journal.JournalHandler(daemon)
    else:
        handler = _Handler()
        handler.setFormatter(JsonFormatter(daemon) if form == "json" else Formatter())
    if _can_wait(STDERR):
        _relays.append(_StderrRelay())
        _relays[-1].begin()
    logging.basicConfig(level=level.upper(), handlers=[handler])


def set_level(level: str) -> None:
    logging.getLogger().setLevel(level.upper())


class Formatter(logging.Formatter):
    """One message is one line, plus a traceback below it. Messages may quote other processes, and
    these must not be able to forge lines."""

    def __init__(self) -> None:
        super().__init__("wheeld: %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:
        return _escaped(super().formatMessage(record))

    def formatException(self, ei: Any) -> str:
        return "\n".join(map(_escaped, super().formatException(ei).split("\n")))


class JsonFormatter(logging.Formatter):
    """One message is one JSON object in one line: `time` (UTC), `level`, `daemon`, `pid`,
    `message`, `worker` if it is about one, and `exception` if there is one."""

    def __init__(self, daemon: str) -> None:
        super().__init__()
        self._daemon = daemon

    def format(self, record: logging.LogRecord) -> str:
        """The object; non-ASCII characters are escaped."""
        found = child_main.fields(record.levelname.lower(), self._daemon, record.getMessage())
        at = datetime.fromtimestamp(record.created, UTC)
        found["time"] = at.isoformat(timespec="milliseconds")
        if (worker := journal.worker_of(record)) is not None:
            found["worker"] = worker
        if record.exc_info:
            found["exception"] = self.formatException(record.exc_info)
        return json.dumps(found)


def _escaped(text: str) -> str:
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in text)


def give_back() -> None:
    for relay in _relays:
        relay.end()
    _relays.clear()


def _can_wait(fd: int) -> bool:
    mode = os.fstat(fd).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(fd)


class _Handler(logging.Handler):
    """Writes messages unbuffered, and counts those that could not be written."""

    def __init__(self) -> None:
        super().__init__()
        self._lost = 0

    def emit(self, record: logging.LogRecord) -> None:
        try:
            if self._lost:
                said = f"{self._lost} messages are missing here: the buffer was full"
                note = logging.LogRecord("wheeld", logging.WARNING, "", 0, said, None, None)
                os.write(STDERR, (self.format(note) + "\n").encode())
                self._lost = 0
            text = (self.format(record) + "\n").encode(errors="replace")
            for begin in range(0, len(text), WHOLE_BYTES):
                os.write(STDERR, text[begin : begin + WHOLE_BYTES])
        except OSError:
            self._lost += 1


class _StderrRelay(threading.Thread):
    """Copies a pipe to the original stderr."""

    def __init__(self) -> None:
        super().__init__(name="log", daemon=True)
        self._out = os.dup(STDERR)
        self._copying = threading.Lock()
        self._pipe, write = os.pipe()
        os.set_blocking(write, False)
        os.dup2(write, STDERR)
        os.close(write)

    def begin(self) -> None:
        """Start copying; at the end of the process, the rest gets a short time to be copied."""
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        try:
            self.start()  # with all signals blocked: they are the main thread's
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        atexit.register(self._finish)

    def _finish(self) -> None:
        nowhere = os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
        os.dup2(nowhere, STDERR)  # closes the last other end of the pipe, which then ends
        self.join(FLUSH_SECONDS)

    def end(self) -> None:
        """From now on messages bypass the pipe; messages in it get a short time to be copied. Child
        processes still have its other end, so it does not close by itself."""
        os.dup2(self._out, STDERR)
        give_up = time.monotonic() + FLUSH_SECONDS
        while self._is_behind() and time.monotonic() < give_up:
            time.sleep(0.001)

    def _is_behind(self) -> bool:
        waiting = select.poll()
        waiting.register(self._pipe, select.POLLIN)
        return self._copying.locked() or bool(waiting.poll(0))

    def run(self) -> None:
        ready = select.poll()
        ready.register(self._pipe, select.POLLIN)
        while ready.poll():
            with self._copying:
                if not (some := os.read(self._pipe, 65_536)):
                    return
                with contextlib.suppress(OSError):  # such as a reader that has gone: harmless
                    self._write(some)

    def _write(self, some: bytes) -> None:
        while some:
            try:
                some = some[os.write(self._out, some) :]
            except BlockingIOError:  # another process set it so; it must not become a busy loop
                ready = select.poll()
                ready.register(self._out, select.POLLOUT)
                ready.poll()
