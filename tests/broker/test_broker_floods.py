"""A flood at the broker's port: memory is the pool's, however many connections ask for it."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path

import pytest

from broker_runs import inside, until
from daemons import status_of

pytest.importorskip("kio")

from broker_runs import Run
from examples.broker.wire import BrokerClient

pytestmark = pytest.mark.xdist_group("broker floods")
broker = inside()

METADATA = 3
PEERS = 300
REQUEST, HALF = 2 << 20, 1 << 20
ROOM = 64 << 20
"""Bytes that a worker may take more: the pool has 16 MiB, half of what comes has 150."""


def _peak(run: Run) -> list[int]:
    """The most memory that each worker ever had, bytes."""
    found = []
    for index in range(2):
        process = run.child("worker", index).process
        assert process is not None
        status = Path(f"/proc/{process.pid}/status").read_text()
        found.append(int(status.split("VmHWM:")[1].split()[0]) << 10)
    return found


def _send(peer: socket.socket, rest: memoryview) -> memoryview:
    """Send what the kernel takes; an ended connection takes all."""
    try:
        return rest[peer.send(rest) :]
    except BlockingIOError:
        return rest
    except OSError:
        return rest[:0]


async def test_half_requests(broker: Run) -> None:
    before, half = _peak(broker), REQUEST.to_bytes(4, "big") + bytes(HALF)
    with contextlib.ExitStack() as stack:
        rests = {}
        for _ in range(PEERS):
            peer = stack.enter_context(socket.create_connection(("127.0.0.1", broker.port)))
            peer.setblocking(False)
            rests[peer] = memoryview(half)

        def is_used_up() -> bool:
            for peer, rest in rests.items():
                rests[peer] = _send(peer, rest)
            (pool,) = status_of(str(broker.daemon))["pools"]
            return bool(pool["used"] >= pool["size"])

        until(is_used_up, "a pool that is used up")
        grown = [peak - was for peak, was in zip(_peak(broker), before, strict=True)]
        assert max(grown) < ROOM, grown
    async with BrokerClient("127.0.0.1", broker.port, "honest") as client:
        await client.call(METADATA, 4, topics=[], allow_auto_topic_creation=False)
