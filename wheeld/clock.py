"""The clock process: the single writer of the wheel.

It is started by the supervisor (`python -m wheeld.clock <fd>`), gets what it needs over that
socket, and then lives in one native loop. Control messages are rare: a worker comes or goes, a
virtual clock moves, the daemon stops. When the socket closes, the supervisor is gone, and so is
the clock.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import select
import signal
import socket
import sys
from pathlib import Path

from wheeld_core import _native, control, segments
from wheeld_core.control import Message


class ClockProcess:
    """Maps the segments, serves control messages, drives the native clock between them."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._rest = b""
        hello = self._next_message()
        if hello is None:
            raise SystemExit(1)
        if hello["pin_cpu"] is not None:
            os.sched_setaffinity(0, {hello["pin_cpu"]})
        self._bells: dict[int, int] = {}
        self._memories: dict[str, mmap.mmap] = {
            kind: segments.attach(hello["segments"][kind], number, writable=True)
            for kind, number in (("wheel", _native.KIND_WHEEL), ("slots", _native.KIND_SLOTS))
        }
        self._bell = os.open(hello["bell"], os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        self._clock_set = _native.prepare_clock_process()
        self._clock = _native.Clock(self._memories["wheel"], self._memories["slots"])

    def run(self) -> None:
        """Serve until told to stop, or until the supervisor is gone."""
        self._clock.set_state(1)
        self._send({"op": "ready"})
        while True:
            reaped = self._clock.run(self._bell, self._channel.fileno(), self._clock_set)
            if reaped is not None:
                self._reaped(reaped)
            elif not self._serve():
                break
        self._clock.set_state(2)
        for bell in self._bells.values():
            with contextlib.suppress(BlockingIOError):  # a full FIFO says it already
                os.write(bell, b"\1")

    def _serve(self) -> bool:
        """Handle every message that is here. False: stop."""
        while b"\n" in self._rest or select.select([self._channel], [], [], 0)[0]:
            message = self._next_message()
            if message is None or message["op"] == "stop":
                return False
            if message["op"] == "attach":
                self._attach(message)
            elif message["op"] == "detach":
                self._clock.detach(message["row"])
            elif message["op"] == "advance":
                self._advance(message)
        return True

    def _attach(self, message: Message) -> None:
        row = message["row"]
        memory = segments.attach(message["segment"], _native.KIND_WORKER, writable=True)
        self._bells[row] = os.open(message["bell"], os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        self._clock.attach(row, message["incarnation"], memory, self._bells[row])
        self._send({"op": "attached", "row": row})

    def _advance(self, message: Message) -> None:
        while (reaped := self._clock.advance(message["to"])) is not None:
            self._reaped(reaped)
        self._send({"op": "advanced", "to": message["to"]})

    def _reaped(self, row: int) -> None:
        self._clock.forget(row)
        os.close(self._bells.pop(row))
        self._send({"op": "reaped", "row": row})

    def _send(self, message: Message) -> None:
        self._channel.sendall(control.encode(message))

    def _next_message(self) -> Message | None:
        while b"\n" not in self._rest:
            part = self._channel.recv(65536)
            if not part:
                return None
            self._rest += part
        line, _, self._rest = self._rest.partition(b"\n")
        return control.decode(line)


def main() -> None:
    """Entry point of the clock process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the supervisor's to handle
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    Path("/proc/self/comm").write_text("wheeld-clock")
    with contextlib.suppress(BrokenPipeError):  # the supervisor is gone
        ClockProcess(socket.socket(fileno=int(sys.argv[1]))).run()


if __name__ == "__main__":
    main()
