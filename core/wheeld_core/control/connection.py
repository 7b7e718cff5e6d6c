"""The control socket's protocol: requests and answers are JSON objects, one per line.

Requests carry `op` (listed in `wheeld_core.control.messages`); answers carry `ok`, and `error`
and `kind` (an error class of `wheeld_core.errors`, or a builtin one) when it is false. Nothing on a
hot path comes here.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from wheeld_core import errors, trust
from wheeld_core.control.messages import Message as Message, Request
from wheeld_core.errors import DaemonNotRunning, WheelError
from wheeld_core.runtime import CONTROL_SOCKET

MAX_MESSAGE = 1 << 20
"""Longest message to a daemon, bytes."""
MAX_ANSWER = 1 << 26
"""Longest answer; more than the status of a daemon with the most workers takes."""

MOST_DESCRIPTORS = 4
"""Descriptors that may arrive with answers before the caller takes them; any more are closed."""

AGAIN_SECONDS: Final = 0.005
"""Between two attempts to reach a daemon that has too many connections, or is being restarted."""

_BUILTIN_ERRORS = {"ValueError": ValueError, "PermissionError": PermissionError}


def encode(message: Mapping[str, Any]) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def decode(line: bytes) -> Message:
    """Parse a message; ValueError if it is not a JSON object."""
    try:
        message = json.loads(line)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error
    if not isinstance(message, dict):
        raise ValueError(f"expected a JSON object, got {type(message).__name__}")
    return message


def failure(error: BaseException) -> Message:
    """The answer that makes `Connection.request` raise the same kind of error on the other side."""
    known = (kind.__name__ for kind in type(error).__mro__ if _error_class(kind.__name__) is kind)
    return {"ok": False, "kind": next(known, "WheelError"), "error": str(error)}


class Connection:
    """A blocking connection to a daemon's control socket. DaemonNotRunning: there is none.
    PermissionError: its directory or the process that answers is not trusted
    (`wheeld_core.trust`)."""

    def __init__(self, directory: Path, timeout: float = 10.0) -> None:
        self.directory = directory
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket = socket.socket(fileno=trust.above_standard(made.detach()))
        self._socket.settimeout(timeout)
        self._rest = bytearray()
        self._looked = 0
        self._descriptors: list[int] = []
        try:
            with trust.entered(directory) as place:
                self._connect(str(directory / CONTROL_SOCKET), timeout)
                trust.check_peer(self._socket, place.owner)
        except (FileNotFoundError, ConnectionRefusedError) as error:
            self._socket.close()
            raise DaemonNotRunning(
                f"no wheeld daemon answers at {directory / CONTROL_SOCKET}; "
                "start it with `wheeld start`"
            ) from error
        except BlockingIOError as error:
            self._socket.close()
            raise DaemonNotRunning(f"the wheeld daemon in {directory} is too busy") from error
        except BaseException:
            self._socket.close()
            raise
        self._file = os.fstat(self._socket.fileno())

    def _is_ours(self) -> bool:
        """Whether the descriptor still refers to this socket. A program may close all its
        descriptors, and then open other files under their numbers."""
        try:
            return os.path.samestat(os.fstat(self._socket.fileno()), self._file)
        except OSError:
            return False

    def _connect(self, path: str, timeout: float) -> None:
        """Connect; retry while the listening socket's backlog is full."""
        give_up = time.monotonic() + timeout
        while True:
            try:
                return self._socket.connect(path)
            except BlockingIOError:
                if time.monotonic() >= give_up:
                    raise
            time.sleep(AGAIN_SECONDS)

    def request(self, op: str, timeout: float | None = None, **fields: Any) -> Message:
        """Send a request and return its answer. DaemonNotRunning: the daemon went away, or did not
        answer in time. WheelError, ValueError, PermissionError: the daemon refused; raised as the
        class that it named."""
        if not self._is_ours():
            raise DaemonNotRunning(
                f"the connection to wheeld at {self.directory} was closed by other code "
                "(close() in another thread, os.closerange, or a library that daemonizes this "
                "process?)"
            )
        try:  # another thread may close it at any time
            if timeout is not None:
                self._socket.settimeout(timeout)
            with contextlib.suppress(BrokenPipeError):  # the reason may have come before it hung up
                self._socket.sendall(encode({"op": op, **fields}))
            answer = decode(self._read_in_time())
        except (OSError, ValueError) as error:
            raise DaemonNotRunning(f"no answer from wheeld at {self.directory}: {error}") from error
        if answer.get("ok"):
            return answer
        kind = str(answer.get("kind"))
        raise _error_class(kind)(answer.get("error", "the daemon refused"))

    def _read_in_time(self) -> bytes:
        """Read a line within the timeout of the whole call, even if it comes byte by byte."""
        seconds = self._socket.gettimeout()
        if not seconds:
            return self._read_line()
        give_up = time.monotonic() + seconds
        try:
            while (line := self._take_line()) is None:
                self._socket.settimeout(max(give_up - time.monotonic(), 0.0) or 1e-6)
                self._receive()
        finally:
            with contextlib.suppress(OSError):  # closed meanwhile: the line has come nevertheless
                self._socket.settimeout(seconds)
        return line

    def _read_line(self) -> bytes:
        while (line := self._take_line()) is None:
            self._receive()
        return line

    def _take_line(self) -> bytes | None:
        end = self._rest.find(b"\n", self._looked)
        if end < 0:
            self._looked = len(self._rest)
            return None
        line, self._looked = bytes(self._rest[:end]), 0
        del self._rest[: end + 1]
        return line

    def _receive(self) -> None:
        part, descriptors, _, _ = socket.recv_fds(
            self._socket, 65536, MOST_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC
        )
        room = MOST_DESCRIPTORS - len(self._descriptors)
        self._descriptors += map(trust.above_standard, descriptors[:room])
        for descriptor in descriptors[room:]:
            os.close(descriptor)
        if not part:
            raise ConnectionError("connection closed")
        self._rest += part
        if len(self._rest) > MAX_ANSWER:
            raise ValueError("answer too long")

    def take_descriptors(self) -> list[int]:
        """Take the descriptors that came with the answers; the caller closes them."""
        taken, self._descriptors = self._descriptors, []
        return taken

    def wait_closed(self, timeout: float, until_gone: bool = True) -> None:
        """Wait until the daemon has closed the connection and, `until_gone`, its socket's file."""
        give_up = time.monotonic() + timeout
        try:
            self._socket.settimeout(timeout)
            while self._socket.recv(4096):  # bounded by `give_up`
                if (left := give_up - time.monotonic()) <= 0:  # however much it says
                    raise TimeoutError("it goes on talking")
                self._socket.settimeout(left)
        except ConnectionError:
            pass
        except OSError as error:
            raise DaemonNotRunning(f"the daemon did not stop within {timeout:.0f} s") from error
        path = self.directory / CONTROL_SOCKET
        while until_gone and path.exists() and time.monotonic() < give_up:
            time.sleep(0.01)

    def fileno(self) -> int:
        """The socket's descriptor, which hangs up when the daemon goes; -1: it was closed."""
        return self._socket.fileno()

    def leave(self) -> None:
        """Close the connection of a worker that was never registered."""
        with contextlib.suppress(WheelError, OSError, ValueError):
            self.request(Request.BYE)
        self.close()

    def close(self) -> None:
        """Close the connection, but not a file that other code has opened under its number."""
        with contextlib.suppress(IndexError):  # each once, whoever else closes it
            while True:
                os.close(self._descriptors.pop())
        if self._socket.fileno() >= 0 and not self._is_ours():
            self._socket.detach()
        self._socket.close()


def ask(directory: Path, op: Request, timeout: float = 10.0, **fields: Any) -> Message:
    """The answer to one request, over a new connection; raises as `Connection` does."""
    connection, answer = greet(directory, timeout, op=op, **fields)
    connection.close()
    return answer


def greet(
    directory: Path, timeout: float, *, over_restart: bool = False, **request: Any
) -> tuple[Connection, Message]:
    """A new connection, and the answer to the first request on it. A daemon that has too many
    connections is asked again until `timeout` is over. With `over_restart`, for requests that may
    come twice, so is the successor of one that hung up without an answer. Raises as `Connection`
    does."""
    give_up = time.monotonic() + timeout
    while True:
        connection = Connection(directory, timeout)
        try:
            return connection, connection.request(**request)
        except BaseException as error:
            connection.close()
            hung_up = isinstance(error.__cause__, ConnectionError)
            again = isinstance(error, errors.DaemonBusy) or (over_restart and hung_up)
            if not again or time.monotonic() >= give_up:
                raise
        time.sleep(AGAIN_SECONDS)


def _error_class(kind: str) -> type[Exception]:
    if kind in _BUILTIN_ERRORS:
        return _BUILTIN_ERRORS[kind]
    found = getattr(errors, kind, WheelError)
    return found if isinstance(found, type) and issubclass(found, Exception) else WheelError
