"""The example's broker under load: `python -m bench.broker [--brief] [--json FILE]`.

Long polls that wait, and how soon one of them is answered after an append in another process;
produce and fetch requests per second, by the number of workers; memory. Beside it stands the mock
cluster of librdkafka, one thread in C that keeps its log in memory, where it does the same work.

The asking side sends frames that are made before, and of the answers looks at the length only; it
shares the processors with what it measures. On a machine that others use, too, a wake-up waits for
a processor in three processes: how long says the kernel, and the table has it without, too.

A connection has one request at a time, so each long poll has a connection of its own: the asking
side has several addresses, for ports, and as many processes as its descriptors need.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import os
import resource
import selectors
import socket
import struct
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from io import BytesIO
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

import psutil
from kio.records.schema import NewRecordBatch, Record
from kio.records.writers import write_batch

import wheeld
from bench import result as results
from bench.result import Result, Row, Target
from examples.broker import wire
from examples.broker.parent import Broker
from examples.broker.settings import Settings

PRODUCE, FETCH, METADATA = 0, 1, 3
CONNECTIONS: Final = 16
VALUE: Final = b"x" * 1000
PER_PROCESS: Final = min(15_000, resource.getrlimit(resource.RLIMIT_NOFILE)[1] * 3 // 4)
"""Connections of one client process, or worker: descriptors are limited."""
HOUR: Final = wire.milliseconds(3_600_000)


def produce_frame(topic: str) -> bytes:
    """One record of 1,000 bytes, acks=1."""
    stamp: Any = datetime(2026, 1, 1, tzinfo=UTC)
    record: Any = {"attributes": 0, "timestamp": stamp, "offset": 0, "key": None, "headers": ()}
    names: Any = {"producer_id": -1, "producer_epoch": 0, "base_sequence": -1, "attributes": 0}
    records = (Record(**record, value=VALUE),)
    write_batch(batch := BytesIO(), NewRecordBatch(**names, records=records))
    part = {"index": 0, "records": batch.getvalue()}
    data = [{"name": topic, "partition_data": [part]}]
    return framed(PRODUCE, 7, acks=1, timeout=HOUR, topic_data=data)


def fetch_frame(topic: str, offset: int, most: int = 2000) -> bytes:
    """Of at least one byte, or an hour."""
    part = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": most}
    topics = [{"topic": topic, "partitions": [part]}]
    return framed(FETCH, 11, replica_id=-1, max_wait=HOUR, min_bytes=1, topics=topics)


def framed(api: int, version: int, **fields: Any) -> bytes:
    """A request as it goes over the wire."""
    body = wire.request(api, version, 1, "bench", **fields)
    return len(body).to_bytes(4, "big") + body


def receive(peer: socket.socket) -> bytes:
    """One answer."""
    data = peer.recv(4, socket.MSG_WAITALL)
    return peer.recv(struct.unpack(">I", data)[0], socket.MSG_WAITALL)


def create(port: int, *topics: str) -> None:
    """Topics; whoever is asked makes those that it does not have."""
    with socket.create_connection(("127.0.0.1", port)) as peer:
        peer.sendall(framed(METADATA, 4, topics=[{"name": name} for name in topics]))
        receive(peer)


# -- what is asked ------------------------------------------------------------------------------


def rate(port: int, frame: bytes, seconds: float) -> float:
    """Answers per second to that request over some connections, each of which awaits its answer."""
    selector, answers = selectors.DefaultSelector(), 0
    with ExitStack() as stack:
        for _ in range(CONNECTIONS):
            peer = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            peer.sendall(frame)
            selector.register(peer, selectors.EVENT_READ, peer)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for key, _ in selector.select(0.1):
                receive(key.data)
                answers += 1
                key.data.sendall(frame)
    return answers / seconds


def wake_ups(port: int, topic: str, rounds: int) -> list[tuple[float, float]]:
    """Milliseconds from a produce request to the answer of a long poll, in another worker if there
    is one; and how many of them the three processes waited for a processor.
    """
    found = []
    with ExitStack() as stack:
        reader = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
        waits = _served_by(reader)
        appends = waits
        while appends == waits:
            writer = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
            appends = _served_by(writer)
            if waits is None:
                break
        processes = [os.getpid()] + ([waits, appends] if waits and appends else [])
        frame = produce_frame(topic)
        for offset in range(rounds):
            reader.sendall(fetch_frame(topic, offset))
            time.sleep(0.003)  # it waits by then
            kept, before = sum(map(_kept, processes)), time.monotonic()
            writer.sendall(frame)
            receive(reader)
            took = 1000 * (time.monotonic() - before)
            found.append((took, sum(map(_kept, processes)) - kept))
            receive(writer)
    return found


def _kept(pid: int) -> float:
    """Milliseconds that a process's main thread was ready, and had no processor, so far."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e6
    except FileNotFoundError:  # a kernel that does not say it
        return 0.0


def _served_by(peer: socket.socket) -> int | None:
    """The worker that has accepted a connection; None: it is no broker's of ours."""
    peer.sendall(framed(wire.API_VERSIONS, 0))
    receive(peer)
    for worker in workers_of(psutil.Process()):
        if any(one.raddr == peer.getsockname() for one in worker.net_connections("tcp")):
            return worker.pid
    return None


def workers_of(parent: psutil.Process) -> list[psutil.Process]:
    """The broker's processes that accept."""
    named = "examples.broker.worker"
    return [one for one in parent.children(recursive=True) if named in one.cmdline()]


def hold(port: int, count: int, number: int, pipe: Connection) -> None:
    """A process of so many long polls of a topic that nobody writes to."""
    allow_most()
    frame, peers = fetch_frame("idle", 0), []
    for each in range(count):
        source = (f"127.0.{number + 1}.{1 + each // 20_000}", 0)  # ports are limited, too
        peer = socket.create_connection(("127.0.0.1", port), source_address=source)
        peer.sendall(frame)
        peers.append(peer)
    pipe.send(len(peers))
    pipe.recv()


def allow_most() -> None:
    """As many descriptors as this user may have, for this process and those that it starts."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)


def say(text: str) -> None:
    """Show what is done now."""
    print(f"# {text}", file=sys.stderr, flush=True)


@contextmanager
def waiting(port: int, count: int) -> Iterator[None]:
    """So many long polls wait during the block."""
    context = multiprocessing.get_context("spawn")
    with ExitStack() as stack:
        for number, first in enumerate(range(0, count, PER_PROCESS)):
            ours, theirs = context.Pipe()
            share = min(PER_PROCESS, count - first)
            process = context.Process(target=hold, args=(port, share, number, theirs))
            process.start()
            stack.callback(process.join)
            stack.callback(ours.send, None)
            ours.recv()
        time.sleep(1.0)
        yield


# -- who is asked -------------------------------------------------------------------------------


def serve(workers: int, pipe: Connection) -> None:
    """A broker in a process of its own, until the pipe says otherwise."""
    allow_most()

    async def run(daemon: str, directory: str) -> None:
        options = {"workers": workers, "partitions": 1}
        async with Broker(Settings(directory, daemon, 0, **options)) as broker:
            pipe.send(broker.settings.port)
            await asyncio.to_thread(pipe.recv)

    with (
        tempfile.TemporaryDirectory(prefix="bench-broker-") as directory,
        wheeld.embedded(capacity=1 << 18, payload_bytes=256, pools=["requests=64M"]) as daemon,
    ):
        asyncio.run(run(str(daemon), directory))


def mock(workers: int, pipe: Connection) -> None:
    """librdkafka's mock cluster, with one broker."""
    from confluent_kafka import Producer

    cluster = Producer({"test.mock.num.brokers": workers, "log_level": 0})
    (broker,) = cluster.list_topics(timeout=10).brokers.values()
    pipe.send(broker.port)
    pipe.recv()


@contextmanager
def started(server: Any, workers: int = 1) -> Iterator[int]:
    """Start a broker or a mock; yields the port."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=server, args=(workers, theirs))
    process.start()
    try:
        yield ours.recv()
    finally:
        ours.send(None)
        process.join()


# -- the tables ---------------------------------------------------------------------------------


def rates(seconds: float, most_workers: int) -> Result:
    """Requests per second."""
    rows: list[Row] = []
    for server, workers in [(serve, n) for n in range(1, most_workers + 1)] + [(mock, 1)]:
        name = f"broker, workers: {workers}" if server is serve else "librdkafka's mock"
        say(f"requests per second: {name}")
        with started(server, workers) as port:
            create(port, "t")
            produced = rate(port, produce_frame("t"), seconds)
            fetched = rate(port, fetch_frame("t", 0), seconds)
        rows.append({"who": name, "produce": produced, "fetch": fetched})
    notes = [
        f"{CONNECTIONS} connections, one request of each at a time; a record of {len(VALUE)} bytes"
    ]
    return Result("requests per second", rows, [], notes)


def polls(rounds: int, counts: list[int]) -> Result:
    """Wake-ups while others wait, and what they cost."""
    rows: list[Row] = []
    for count in counts:
        workers = max(2, -(-count // PER_PROCESS))
        say(f"{count:,} long polls, workers: {workers}")
        with started(serve, workers) as port:
            create(port, "idle", "busy")
            before = _memory()
            with waiting(port, count):
                after = _memory()
                found = wake_ups(port, "busy", rounds)
            each = (after - before) / count if count else None
        rows.append(_row(f"broker, workers: {workers}", count, found, after, each))
    with started(mock) as port:
        create(port, "busy")
        rows.append(_row("librdkafka's mock", 0, wake_ups(port, "busy", rounds), None, None))
    texts = ("p50 of a wake-up, nothing else waiting", "p99 of it, less waits for a processor")
    first = zip(texts, ("p50 ms", "p99 less"), strict=True)
    limits = [Target(text, rows[0][column], 5.0, unit="ms") for text, column in first]
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    notes = [
        "less: without the time in which one of the three processes was ready and not running;",
        "some of that is beside the way, when the writer's worker has done its part: a lower bound",
        f"{hard:,} descriptors a process: a worker, and a process that asks, has {PER_PROCESS:,}",
    ]
    return Result("long polls, and an append in another process", rows, limits, notes)


def _row(
    who: str, count: int, found: list[tuple[float, float]], total: float | None, each: float | None
) -> Row:
    all_of_it = sorted(took for took, _ in found)
    less = sorted(max(0.0, took - kept) for took, kept in found)
    at = {"p50": len(found) // 2, "p99": len(found) * 99 // 100}
    row: Row = {"who": who, "waiting": count}
    row |= {f"{name} ms": all_of_it[place] for name, place in at.items()}
    row |= {f"{name} less": less[place] for name, place in at.items()}
    return row | {"workers MiB": total and total / 2**20, "KiB each": each and each / 1024}


def _memory() -> float:
    """Bytes of the workers' own."""
    return float(sum(one.memory_full_info().uss for one in workers_of(psutil.Process())))


def main(arguments: list[str] | None = None) -> int:
    """Entry point."""
    parser = argparse.ArgumentParser(prog="python -m bench.broker", description=__doc__)
    parser.add_argument("--brief", action="store_true", help="small sizes: does it run at all?")
    parser.add_argument("--json", type=Path, metavar="FILE")
    given = parser.parse_args(arguments)
    facts = results.machine()
    print("  ".join(f"{key}: {value}" for key, value in facts.items()), flush=True)
    found = {}
    for name, measure in (
        ("rates", lambda: rates(0.3 if given.brief else 5.0, 2 if given.brief else 3)),
        ("polls", lambda: polls(*((20, [0, 100]) if given.brief else (500, [0, 10_000, 100_000])))),
    ):
        begin = time.monotonic()
        result = measure()
        result.seconds = time.monotonic() - begin
        print(results.show(result), flush=True)
        found[name] = result.as_json()
    if given.json:
        given.json.write_text(json.dumps({"machine": facts, "measurements": found}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
