"""Peers of the broker that stall, vanish, say nothing or take nothing: the others go on."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import ExitStack

import psutil
import pytest

pytest.importorskip("kio")

from broker_outside import batch
from broker_runs import LONG, Run, running, until
from examples.broker.wire import milliseconds, request

PRODUCE, FETCH, METADATA = 0, 1, 3
LARGEST = 1 << 20
POOL = 16 << 20
"""Of `running`."""


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    place = tmp_path_factory.mktemp("broker")
    with running(place, largest=LARGEST, partitions=1) as run:
        assert answered(run)
        yield run


def connected(run: Run) -> socket.socket:
    return socket.create_connection(("127.0.0.1", run.port), LONG)


def framed(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


def fetch(topic: str) -> bytes:
    part = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": LARGEST}
    topics = [{"topic": topic, "partitions": [part]}]
    wait = milliseconds(3_600_000)
    return framed(request(FETCH, 11, 1, "abuse", max_wait=wait, min_bytes=1, topics=topics))


def answered(run: Run) -> bool:
    """Does it answer, in whichever worker? Also a request that needs memory of the pool."""
    for _ in range(8):
        with connected(run) as peer:
            peer.sendall(framed(request(METADATA, 1, 1, "abuse", topics=[{"name": "t"}])))
            assert len(peer.recv(4, socket.MSG_WAITALL)) == 4
            data = [{"name": "t", "partition_data": [{"index": 0, "records": batch(b"x")}]}]
            peer.recv(1 << 16)
            peer.sendall(framed(request(PRODUCE, 7, 1, "abuse", acks=1, topic_data=data)))
            assert len(peer.recv(4, socket.MSG_WAITALL)) == 4
    return True


def accepted(run: Run, peers: list[socket.socket]) -> int:
    """How many of these its workers have open."""
    ports = {peer.getsockname()[1] for peer in peers}
    pids = [one.process.pid for one in run.broker.children if one.process is not None]
    found = [one for one in psutil.net_connections("tcp") if one.pid in pids and one.raddr]
    return sum(one.raddr.port in ports for one in found)


def test_peers_that_announce_and_do_not_send(broker: Run) -> None:
    """More than the pool has, all together; they hold what they have sent, not what they said."""
    with ExitStack() as stack:
        for _ in range(2 * POOL // LARGEST):
            peer = stack.enter_context(connected(broker))
            peer.sendall(LARGEST.to_bytes(4, "big") + b"x")
        assert answered(broker)


def test_peers_that_vanish_in_a_long_poll(broker: Run) -> None:
    """Nothing of them stays."""
    with connected(broker) as peer:
        peer.sendall(framed(request(METADATA, 1, 1, "abuse", topics=[{"name": "empty"}])))
        peer.recv(1 << 16)
    with ExitStack() as stack:
        peers = [stack.enter_context(connected(broker)) for _ in range(300)]
        for peer in peers:
            peer.sendall(fetch("empty"))
        until(lambda: accepted(broker, peers) == 300, "they wait")
        for peer in peers:
            peer.shutdown(socket.SHUT_RDWR)  # which has its port still
        until(lambda: accepted(broker, peers) == 0, "theirs are closed")
    assert answered(broker)


def test_peers_that_say_nothing(broker: Run) -> None:
    with ExitStack() as stack:
        for _ in range(1000):
            stack.enter_context(connected(broker))
        assert answered(broker)


def test_peers_that_take_nothing(broker: Run) -> None:
    """Each asks for a megabyte again and again, and reads nothing."""
    records = batch(b"x" * (LARGEST - 2000))
    data = [{"name": "t", "partition_data": [{"index": 0, "records": records}]}]
    with connected(broker) as peer:
        peer.sendall(framed(request(PRODUCE, 7, 1, "abuse", acks=1, topic_data=data)))
        assert len(peer.recv(4, socket.MSG_WAITALL)) == 4
    with ExitStack() as stack:
        for _ in range(50):
            peer = stack.enter_context(connected(broker))
            peer.sendall(fetch("t") * 20)
        assert answered(broker)
