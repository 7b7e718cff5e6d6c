"""beanstalkd: its delays are whole seconds, so timers are put as they come, for a second later."""

from __future__ import annotations

import selectors
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

from bench.cases import Sample, daemon, servers
from bench.cases.sparse import RATE, count_of, sample_of

DELAY_SECONDS = 1
BEAT_NS = 1_000_000


class Taker:
    """Reserves and deletes, one job after the other, on a connection of its own."""

    def __init__(self, peer: socket.socket) -> None:
        self._peer, self._data = peer, b""
        self.late: list[int] = []
        peer.sendall(b"reserve\r\n")

    def receive(self) -> None:
        """What has come."""
        self._data += self._peer.recv(1 << 16)
        while (end := self._data.find(b"\r\n")) >= 0:
            words = self._data[:end].split()
            if words[0] == b"RESERVED":
                size = int(words[2])
                if len(self._data) < end + 4 + size:
                    return
                body = self._data[end + 2 : end + 2 + size]
                self.late.append(time.monotonic_ns() - int(body))
                self._peer.sendall(b"delete %s\r\nreserve\r\n" % words[1])
                end += 2 + size
            elif words[0] != b"DELETED":
                raise RuntimeError(f"beanstalkd says {self._data[:end]!r}")
            self._data = self._data[end + 2 :]


def _put(peer: socket.socket, many: int) -> None:
    deadline = b"%d" % (time.monotonic_ns() + DELAY_SECONDS * 1_000_000_000)
    job = b"put 0 %d 60 %d\r\n%s\r\n" % (DELAY_SECONDS, len(deadline), deadline)
    peer.sendall(job * many)


def _round(puts: socket.socket, taker: Taker, takes: Any, count: int) -> list[int]:
    taker.late = []
    each, put, said = RATE // 1000, 0, 0
    turn = time.monotonic_ns()
    while len(taker.late) < count or said < count:
        if put < count and time.monotonic_ns() >= turn:
            _put(puts, each)
            put, turn = put + each, turn + BEAT_NS
        for key, _ in takes.select(max(0, turn - time.monotonic_ns()) / 1e9 if put < count else 1):
            if key.fileobj is puts:
                said += puts.recv(1 << 16).count(b"INSERTED")
            else:
                taker.receive()
    return taker.late


def server(quick: bool) -> Iterator[Sample]:
    """One process that puts and takes."""
    with ExitStack() as stack:
        pid, port = stack.enter_context(servers.beanstalkd())
        puts, gets = (
            stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(2)
        )
        takes = stack.enter_context(selectors.DefaultSelector())
        for peer in (puts, gets):
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            takes.register(peer, selectors.EVENT_READ)
        taker, spent = Taker(gets), daemon.Spent(pid)
        count = count_of(quick) // 3  # it saturates below this rate
        while True:
            spent.start()
            yield sample_of(_round(puts, taker, takes, count), spent)
