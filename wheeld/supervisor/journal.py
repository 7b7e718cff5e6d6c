"""Messages for systemd's journal, in its native protocol, with fields to filter by.

An entry is a datagram of lines `FIELD=value`; a value of several lines has its length before it.
One that is too long for a datagram goes in a sealed file in memory; its descriptor is sent instead.
https://systemd.io/JOURNAL_NATIVE_PROTOCOL
"""

from __future__ import annotations

import array
import errno
import fcntl
import logging
import os
import socket
import struct
from pathlib import Path
from typing import Final

from wheeld_core.errors import WheelError

SOCKET: Final = Path("/run/systemd/journal/socket")
_PRIORITIES: Final = ((logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6))
_DEBUG: Final = 7
_SEALS: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL


def entry(**fields: str | int | None) -> bytes:
    """One entry; a field that is None is left out."""
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
    """The syslog priority for a level of Python's logging."""
    return next((found for least, found in _PRIORITIES if level >= least), _DEBUG)


def worker_of(record: logging.LogRecord) -> str | None:
    """The worker that a message is about: those messages begin with its name."""
    said = record.msg  # any object, such as an exception
    if isinstance(said, str) and said.startswith("worker %s") and isinstance(record.args, tuple):
        return str(record.args[0])
    return None


class JournalHandler(logging.Handler):
    """Sends messages to the journal without ever blocking: messages that it does not take are
    counted, and the count is sent when it takes some again.

    Parameters
    ----------
    daemon : str
        Its name: the field WHEELD_DAEMON. A message about a worker has WHEELD_WORKER, too.
    path : Path
        The journal's socket.

    Raises
    ------
    WheelError
        No journal listens there.
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
        """Send the message, or count it."""
        try:
            if self._lost:
                text = f"{self._lost} messages are missing here: the journal did not take them"
                self._send(self._entry(logging.WARNING, text, None))
                self._lost = 0
            text = record.getMessage()
            if record.exc_info:
                text += "\n" + logging.Formatter().formatException(record.exc_info)
            self._send(self._entry(record.levelno, text, worker_of(record)))
        except OSError:
            self._lost += 1

    def _entry(self, level: int, text: str, worker: str | None) -> bytes:
        return entry(
            MESSAGE=text, PRIORITY=priority(level), SYSLOG_IDENTIFIER="wheeld",
            SYSLOG_PID=os.getpid(), WHEELD_DAEMON=self._daemon, WHEELD_WORKER=worker,
        )  # fmt: skip

    def _send(self, content: bytes) -> None:
        try:
            self._socket.sendto(content, self._path)
        except OSError as error:
            if error.errno not in (errno.EMSGSIZE, errno.ENOBUFS):
                raise
            self._send_file(content)

    def _send_file(self, content: bytes) -> None:
        file = os.memfd_create("wheeld-journal", os.MFD_ALLOW_SEALING | os.MFD_CLOEXEC)
        try:
            os.write(file, content)
            fcntl.fcntl(file, fcntl.F_ADD_SEALS, _SEALS)
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [file]))]
            self._socket.sendmsg([b""], rights, 0, self._path)  # send_fds takes no address
        finally:
            os.close(file)
