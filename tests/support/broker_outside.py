"""A broker of the example from its outside: its command, its port, its processes and what it says.

Frames are made by kio, so nothing here depends on how the broker is built.
"""

from __future__ import annotations

import dataclasses
import io
import os
import signal
import socket
import struct
import subprocess
import sys
import typing
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest
from kio.index import load_request_schema, load_response_schema
from kio.records.readers import read_batch
from kio.records.schema import NewRecordBatch, Record
from kio.records.writers import write_batch
from kio.serial import entity_reader, entity_writer

from broker_runs import LONG, until
from programs import ROOT, of_checkout

PRODUCE, FETCH, METADATA, API_VERSIONS = 0, 1, 3, 18


class Outside:
    """A running broker."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, log: Path) -> None:
        self.process, self.port, self._log = process, port, log
        self.address = f"127.0.0.1:{port}"

    def said(self) -> str:
        """Its log until now."""
        return self._log.read_text()

    def workers(self) -> list[psutil.Process]:
        """Its processes that listen on the port."""
        return [one for one, _ in self._sockets(psutil.CONN_LISTEN)]

    def worker_of(self, peer: socket.socket) -> int:
        """The pid of the worker that serves a connection."""
        name = peer.getsockname()

        def serving() -> int | None:
            accepted = self._sockets(psutil.CONN_ESTABLISHED)
            return next((one.pid for one, raddr in accepted if raddr == name), None)

        pid: int = until(serving, f"{name} is accepted")
        return pid

    def serving(self, pid: int) -> list[Any]:
        """The peers of one worker's connections."""
        return [raddr for one, raddr in self._sockets(psutil.CONN_ESTABLISHED) if one.pid == pid]

    def _sockets(self, status: str) -> Iterator[tuple[psutil.Process, Any]]:
        for child in psutil.Process(self.process.pid).children(recursive=True):
            try:
                for one in child.net_connections("tcp4"):
                    if one.status == status and one.laddr.port == self.port:
                        yield child, one.raddr
            except psutil.NoSuchProcess:
                continue

    def kill_worker(self, pid: int) -> None:
        """SIGKILL; returns when there are as many as before, without it."""
        before = len(self.workers())
        os.kill(pid, signal.SIGKILL)
        until(lambda: pid not in self._pids() and len(self._pids()) >= before, "there is another")

    def _pids(self) -> list[int]:
        return [one.pid for one in self.workers()]

    def connected(self) -> socket.socket:
        """A connection."""
        return socket.create_connection(("127.0.0.1", self.port), LONG)

    def connected_elsewhere(self, pid: int) -> socket.socket:
        """A connection that another worker serves than that one."""
        for _ in range(1000):
            peer = self.connected()
            if self.worker_of(peer) != pid:
                return peer
            peer.close()
        raise AssertionError(f"all of 1000 connections came to {pid}")


@contextmanager
def started(directory: Path, *options: str, followers: int = 0) -> Iterator[Outside]:
    """`python -m examples.broker start` on a free port; SIGTERM has to end it."""
    command = [sys.executable, "-m", "examples.broker", "start", "--port", "0"]
    command += ["--directory", str(directory / "data"), "--followers", str(followers), *options]
    log = directory / "log"
    with log.open("wb") as file:
        process = subprocess.Popen(
            command, cwd=ROOT, env=of_checkout(), stdout=subprocess.PIPE, stderr=file
        )
    with process:
        try:
            assert process.stdout is not None
            said = process.stdout.readline().decode()
            assert said.startswith("broker on "), log.read_text()
            yield Outside(process, int(said.split(":")[1]), log)
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                assert process.wait(LONG) == 0
            finally:
                process.kill()


def outside(*options: str) -> Callable[[pytest.TempPathFactory], Iterator[Outside]]:
    """A fixture: such a broker, for a module."""

    @pytest.fixture(scope="module")
    def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outside]:
        with started(tmp_path_factory.mktemp("broker"), *options) as run:
            yield run

    return broker


# -- its wire ------------------------------------------------------------------------------------


def frame(api: int, version: int, correlation: int = 1, **values: Any) -> bytes:
    """A request as it goes over the wire; `values` are of kio's entity, nested ones are dicts."""
    schema, out = load_request_schema(api, version), io.BytesIO()
    head = {"request_api_key": api, "request_api_version": version}
    header = _entity(schema.__header_schema__, correlation_id=correlation, client_id="x", **head)
    entity_writer(schema.__header_schema__)(out, header)
    entity_writer(schema)(out, _entity(schema, **values))
    return framed(out.getvalue())


def _entity(schema: Any, **values: Any) -> Any:
    """What is given of an entity's fields; they have to be all that have no default."""
    found = {}
    for field in dataclasses.fields(schema):
        if field.name in values:
            value = values[field.name]
            if isinstance(value, list):
                value = tuple(_element(field.type, one) for one in value)
            found[field.name] = value
    return schema(**found)


def _element(array: Any, value: Any) -> Any:
    """Of an array, which may be one that can be null."""
    if not isinstance(value, dict):
        return value
    kinds = [array, *typing.get_args(array)]
    nested = (inner for kind in kinds for inner in typing.get_args(kind))
    return _entity(next(one for one in nested if dataclasses.is_dataclass(one)), **value)


def framed(body: bytes) -> bytes:
    """With its length before it."""
    return struct.pack(">i", len(body)) + body


def receive(peer: socket.socket) -> bytes | None:
    """The next answer; None: the broker has closed the connection."""
    data = b""
    try:
        while len(data) < 4 or len(data) < 4 + struct.unpack(">i", data[:4])[0]:
            got = peer.recv(1 << 16)
            if not got:
                return None
            data += got
    except ConnectionResetError:
        return None
    return data[4:]


def decoded(api: int, version: int, answer: bytes | None) -> tuple[Any, Any]:
    """Header and body, read to the last byte."""
    assert answer is not None, "the connection was closed"
    schema = load_response_schema(api, version)
    header, at = entity_reader(schema.__header_schema__)(answer, 0)
    body, size = entity_reader(schema)(answer, at)
    assert at + size == len(answer)
    return header, body


def batch(
    *values: bytes,
    stamp: datetime = datetime(2026, 1, 1, tzinfo=UTC),
    producer: int = -1,
    sequence: int = -1,
    epoch: int = 0,
) -> bytes:
    """A batch of records, as a producer sends it."""
    when: Any = stamp
    records: Any = tuple(
        Record(attributes=0, timestamp=when, offset=n, key=None, value=value, headers=())
        for n, value in enumerate(values)
    )
    names: Any = {"producer_id": producer, "producer_epoch": epoch, "base_sequence": sequence}
    names["attributes"] = 0
    out = io.BytesIO()
    write_batch(out, NewRecordBatch(**names, records=records))
    return out.getvalue()


def produce_frame(topic: str, partition: int, records: bytes, acks: int = 1) -> bytes:
    """Of one batch."""
    data = [{"name": topic, "partition_data": [{"index": partition, "records": records}]}]
    common = {"transactional_id": None, "acks": acks, "timeout": timedelta(seconds=30)}
    return frame(PRODUCE, 7, **common, topic_data=data)


def read_all(run: Outside, topic: str, partition: int) -> list[bytes]:
    """The values in a partition, by the offsets from 0 on; all that consumers may read."""
    found: list[bytes] = []
    with run.connected() as peer:
        while True:
            part = {"partition": partition, "fetch_offset": len(found)}
            topics = [{"topic": topic, "partitions": [part | {"partition_max_bytes": 1 << 20}]}]
            common = {"replica_id": -1, "max_wait": timedelta(0), "min_bytes": 0}
            peer.sendall(frame(FETCH, 4, **common, topics=topics))
            _, body = decoded(FETCH, 4, receive(peer))
            raw = body.responses[0].partitions[0].records or b""
            if not raw:
                return found
            at = 0
            while at < len(raw):
                records, size = read_batch(raw, at)
                at += size
                for one in records.records:
                    assert one.offset == len(found)
                    found.append(one.value or b"")


def create(run: Outside, topic: str) -> None:
    """A topic, with as many partitions as the broker makes."""
    with run.connected() as peer:
        peer.sendall(frame(METADATA, 1, topics=[{"name": topic}]))
        receive(peer)
