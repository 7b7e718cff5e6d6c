"""Messages for systemd's journal, in its native protocol, with fields to filter by.

An entry is a datagram of lines `FIELD=value`; a value of several lines has its length before it.
A message that is too long for a datagram goes into a sealed file in memory, whose descriptor is
sent instead. https://systemd.io/JOURNAL_NATIVE_PROTOCOL
"""

from __future__ import annotations

import array
import errno
import fcntl
import logging
import os
import socket
import struct
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any, Final

from wheeld_core.errors import WheelError

SOCKET: Final = Path("/run/systemd/journal/socket")
_PRIORITIES: Final = ((logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6))
_DEBUG: Final = 7
_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL


def entry(**fields: str | int | None) -> bytes:
    """One entry; fields that are None are left out."""
    parts = []
    for name, value in fields.items():
        if value is None:
            continue
        text = str(value).encode(errors="replace")
        if b"\n" in text:
            parts.append(name.encode() + b"\n" + struct.pack("<Q", len(text)) + text + b"\n")
        else:
            parts.append(name.encode() + b"=" + text + b"\n")
    return b"".join(parts)


def priority(level: int) -> int:
    return next((found for least, found in _PRIORITIES if level >= least), _DEBUG)


class _About(logging.LoggerAdapter[logging.Logger]):
    """Messages begin with the worker, whose name is also a separate field."""

    def process(
        self, msg: Any, kwargs: MutableMapping[str, Any]
    ) -> tuple[Any, MutableMapping[str, Any]]:
        worker = (self.extra or {})["worker"]
        return f"worker {str(worker).replace('%', '%%')} {msg}", {**kwargs, "extra": self.extra}


def about(worker: str) -> logging.LoggerAdapter[logging.Logger]:
    """The daemon's log for messages about a worker: 'is gone' becomes 'worker web is gone'."""
    return _About(logging.getLogger("wheeld"), {"worker": worker})


def worker_of(record: logging.LogRecord) -> str | None:
    return getattr(record, "worker", None)


def said_by(daemon: str, level: int, text: str, worker: str | None = None) -> bytes:
    """The entry of a message of one of the daemon's processes."""
    return entry(
        MESSAGE=text, PRIORITY=priority(level), SYSLOG_IDENTIFIER="wheeld",
        SYSLOG_PID=os.getpid(), WHEELD_DAEMON=daemon, WHEELD_WORKER=worker,
    )  # fmt: skip


def send(through: socket.socket, content: bytes, path: str) -> None:
    """Send an entry; raises OSError if the journal does not take it."""
    try:
        through.sendto(content, path)
    except OSError as error:
        if error.errno not in (errno.EMSGSIZE, errno.ENOBUFS):
            raise
        _send_file(through, content, path)


def _send_file(through: socket.socket, content: bytes, path: str) -> None:
    file = os.memfd_create("wheeld-journal", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
    try:
        os.write(file, content)
        fcntl.fcntl(file, fcntl.F_ADD_SEALS, _SEALS)
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [file]))]
        through.sendmsg([b""], rights, 0, path)  # send_fds takes no address
    finally:
        os.close(file)


def say(daemon: str, level: int, text: str, path: Path = SOCKET) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as through:
        send(through, said_by(daemon, level, text), str(path))


class JournalHandler(logging.Handler):
    """Sends messages to the journal at `path` without ever blocking. It counts messages that the
    journal does not accept, and sends the count once the journal accepts messages again. The field
    WHEELD_DAEMON is `daemon`; a message about a worker has WHEELD_WORKER, too.

    `WheelError`: no journal listens there.
    """

    def __init__(self, daemon: str, path: Path = SOCKET) -> None:
        super().__init__()
        self._daemon, self._path, self._lost = daemon, str(path), 0
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as trial:
                trial.connect(self._path)
        except OSError as error:
            self._socket.close()
            raise WheelError(
                f"log_format 'journald': no journal at {path} ({error.strerror}): expected a host "
                "that systemd runs; give --log-format json or text elsewhere"
            ) from error

    def emit(self, record: logging.LogRecord) -> None:
        try:
            if self._lost:
                text = f"{self._lost} messages are missing here: the journal did not take them"
                self._send(said_by(self._daemon, logging.WARNING, text))
                self._lost = 0
            text = record.getMessage()
            if record.exc_info:
                text += "\n" + logging.Formatter().formatException(record.exc_info)
            self._send(said_by(self._daemon, record.levelno, text, worker_of(record)))
        except OSError:
            self._lost += 1

    def _send(self, content: bytes) -> None:
        send(self._socket, content, self._path)
