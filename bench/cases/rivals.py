"""Timers in Redis, beanstalkd and Netty's `HashedWheelTimer`."""

from __future__ import annotations

import selectors
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bench.cases import servers, waits
from bench.processes import Sample, Spent, exact_sleeps

BEAT_NS = 1_000_000
TAKE = """
local due = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', ARGV[1])
if #due > 0 then redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', ARGV[1]) end
return due
"""
NETTY = Path(__file__).with_name("Netty.java")


def redis(quick: bool) -> Iterator[Sample]:
    """A sorted set, asked for due timers each millisecond; Unix socket, redis-py."""
    exact_sleeps()
    with ExitStack() as stack:
        pid, place = stack.enter_context(servers.redis())
        client = stack.enter_context(servers.redis_client(place))
        take, spent, now = client.register_script(TAKE), Spent(pid), time.monotonic_ns
        while True:
            spent.start()
            due = waits.deadlines(waits.count_of(quick)).tolist()
            for at in range(0, len(due), 1000):
                # microseconds: a score is a double
                client.zadd("timers", {f"{one}": one // 1000 for one in due[at : at + 1000]})
            late: list[int] = []
            turn, expected = now(), len(set(due))
            while len(late) < expected:
                found: Any = take(keys=["timers"], args=[now() // 1000 - 1])
                late += [now() - int(member) for member in found]
                turn += BEAT_NS
                time.sleep(max(0, turn - now()) / 1e9)
            yield waits.sample_of(late, spent)


class Taker:
    """Reserves and deletes, one job after the other, on its own connection to beanstalkd."""

    def __init__(self, peer: socket.socket) -> None:
        self._peer, self._data = peer, b""
        self.late: list[int] = []
        peer.sendall(b"reserve\r\n")

    def receive(self) -> None:
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
                raise RuntimeError(f"beanstalkd answered {self._data[:end]!r}")
            self._data = self._data[end + 2 :]


def beanstalk(quick: bool) -> Iterator[Sample]:
    """One process that puts and takes. Delays are whole seconds there, so jobs are put at the
    timers' rate, for a second later."""
    count = waits.count_of(quick) // 3  # it saturates below this rate
    with ExitStack() as stack:
        pid, port = stack.enter_context(servers.beanstalkd())
        connect = socket.create_connection
        puts, gets = (stack.enter_context(connect(("127.0.0.1", port))) for _ in range(2))
        takes = stack.enter_context(selectors.DefaultSelector())
        for peer in (puts, gets):
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            takes.register(peer, selectors.EVENT_READ)
        taker, spent, now = Taker(gets), Spent(pid), time.monotonic_ns
        each = waits.RATE // 1000
        while True:
            spent.start()
            taker.late, put, said, turn = [], 0, 0, now()
            while len(taker.late) < count or said < count:
                if put < count and now() >= turn:
                    deadline = b"%d" % (now() + 10**9)
                    puts.sendall(b"put 0 1 60 %d\r\n%s\r\n" % (len(deadline), deadline) * each)
                    put, turn = put + each, turn + BEAT_NS
                for key, _ in takes.select(max(0, turn - now()) / 1e9 if put < count else 1):
                    if key.fileobj is puts:
                        said += puts.recv(1 << 16).count(b"INSERTED")
                    else:
                        taker.receive()
            yield waits.sample_of(taker.late, spent)


def _netty(*arguments: str) -> Iterator[dict[str, float]]:
    with servers.java(NETTY, *arguments) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        if process.stdout.readline() != "ready\n":
            raise RuntimeError(f"Netty.java ended with {process.wait()}")
        while True:
            process.stdin.write("\n")
            process.stdin.flush()
            words = (word.partition("=") for word in process.stdout.readline().split())
            yield {name: float(value) for name, _, value in words}


def netty_fires(quick: bool) -> Iterator[Sample]:
    count, seconds = (50_000, 0.5) if quick else (1_000_000, waits.SPREAD_SECONDS)
    for found in _netty("fire", str(count), str(int(1000 * seconds))):
        yield {"together, ns": found["cpu"], "late p99, us": found["p99"]}


def netty_adds(quick: bool) -> Iterator[Sample]:
    """As `daemons.adders`: threads instead of processes, one by one."""
    for found in _netty("add", "20000" if quick else "200000", "0"):
        yield {f"{number} one by one, ns": found[number] for number in ("one", "two", "three")}
