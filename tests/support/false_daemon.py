"""A daemon that lies: `false_daemon.py BASE GID`, as whichever user runs it, for a group of others.

Its standard input says, a JSON object a line, how it answers the next hello; it says "ok" to each
line, and "heard" to a hello.

    lies         members of the answer that are others than they should be
    how          drip: a byte now and then; flood: an answer without an end; descriptors: four with
                 each byte; pass: one descriptor of the kind that `kind` says in place of the bell's
    head         fields of the wheel's head that say something else
"""

import contextlib
import json
import os
import socket
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from fake_supervisor import StandIn
from wheeld_core import control, trust
from wheeld_core.control import Message
from wheeld_core.views import record

DRIP_SECONDS = 0.02


class FalseDaemon(StandIn):
    """Says what it was told to."""

    def __init__(self, base: Path, gid: int) -> None:
        self.orders: dict[str, Any] = {}
        self._true: dict[str, int] = {}
        self._open_to = gid
        super().__init__(base, max_workers=200)
        self._share()

    def _share(self) -> None:
        shm = Path("/dev/shm").glob(f"{self._prefix}*")
        for path in (self.directory, *self.directory.iterdir(), *shm):
            if path.lstat().st_uid == os.getuid() and not path.is_symlink():
                os.chown(path, -1, self._open_to)
                path.chmod(0o750 if path.is_dir() else 0o660)

    def obey(self, orders: dict[str, Any]) -> None:
        for field, value in self._true.items():
            record(self._memories["wheel"], "wheel")[field] = value
        self.orders = orders

    def _arrive(self, message: Message) -> Message:
        said = super()._arrive(message)
        self._share()
        lies = self.orders.get("lies", {})
        header = record(self._memories["wheel"], "wheel")
        for field, value in self.orders.get("head", {}).items():
            self._true[field], header[field] = int(header[field]), value
        names = lies.get("segments", {})
        if isinstance(names, dict):
            names = {**said["segments"], **names}
        answer = {**said, **lies, "segments": names}
        return {key: value for key, value in answer.items() if value != "absent"}

    def _converse(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError), connection.makefile("rb") as lines:
            for line in lines:
                message = control.decode(line)
                print("heard", flush=True)
                with self._lock:
                    answer = control.encode(self._answer(message) or {})
                how = self.orders.get("how") if message["op"] == "hello" else None
                getattr(self, f"_{how or 'answer_as_asked'}")(connection, answer)

    def _answer_as_asked(self, connection: socket.socket, answer: bytes) -> None:
        connection.sendall(answer)

    def _drip(self, connection: socket.socket, answer: bytes) -> None:
        for byte in answer:
            connection.sendall(bytes([byte]))
            time.sleep(DRIP_SECONDS)

    def _flood(self, connection: socket.socket, answer: bytes) -> None:
        for _ in range(2 * control.MAX_ANSWER >> 20):
            connection.sendall(b"x" * (1 << 20))
        connection.sendall(answer)

    def _descriptors(self, connection: socket.socket, answer: bytes) -> None:
        bell = self._bell()
        for i in range(len(answer) - 1):
            socket.send_fds(connection, [answer[i : i + 1]], [bell] * 4)
        connection.sendall(answer[-1:])

    def _pass(self, connection: socket.socket, answer: bytes) -> None:
        fifo = self.directory / "worker-0.fifo"
        kinds = {
            "a FIFO to write": lambda: os.open(fifo, os.O_WRONLY | os.O_NONBLOCK),
            "a FIFO to read": lambda: os.open(fifo, os.O_RDONLY | os.O_NONBLOCK),
            "a FIFO to look at": lambda: os.open(fifo, os.O_PATH),
            "a pipe": lambda: os.pipe()[1],
            "a file": lambda: os.open(tempfile.mkstemp()[1], os.O_RDWR),
            "a memory file": lambda: os.memfd_create("x"),
            "a directory": lambda: os.open(self.directory, os.O_RDONLY),
            "a device": lambda: os.open("/dev/zero", os.O_RDWR),
            "a socket": lambda: os.dup(connection.fileno()),
            "a bell": self._bell,
        }
        socket.send_fds(connection, [answer], [kinds[self.orders["kind"]]()])

    def _bell(self) -> int:
        return os.open(self.directory / "worker-0.fifo", trust.FIFO_FLAGS)


def main(base: str, gid: str) -> None:
    with FalseDaemon(Path(base), int(gid)) as daemon:
        print(daemon.directory, flush=True)
        for line in sys.stdin:
            daemon.obey(json.loads(line))
            print("ok", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
