"""The client: one connection, one request at a time, sent again when the connection breaks.

A request keeps its correlation id when it is sent again, a record its producer and sequence, a join
its attempt: so the broker knows it, and the answer is the same.
"""

from __future__ import annotations

import asyncio
import random
import socket
import struct
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from examples.broker import protocol, records
from examples.broker.protocol import Kind, Message, ProtocolError
from examples.broker.records import Record

FIRST_PAUSE: Final = 0.02
LONGEST_PAUSE: Final = 0.5
STALL_SECONDS: Final = 60.0
"""How much longer than its own timeout an answer may take before its connection is given up."""
BROKEN: Final = (OSError, EOFError, ProtocolError)


class NoAnswer(ConnectionError):
    """The broker could not be reached for too long; whether the request was done is not known."""


class BrokerError(Exception):
    """The broker's answer is an error.

    Attributes
    ----------
    code : str
        Such as "timed-out".
    fields : dict
        The whole answer.
    """

    def __init__(self, fields: dict[str, Any]) -> None:
        super().__init__(f"{fields.get('error')}: {fields.get('message', '')}".rstrip(": "))
        self.code = str(fields.get("error"))
        self.fields = fields


@dataclass
class Counts:
    """What happened on one connection, or on all of them."""

    requests: int = 0
    answers: int = 0
    resent: int = 0
    """Sendings after the first one of each request."""
    broken: int = 0
    """Connections that ended while an answer was awaited, and attempts to connect that failed."""
    strays: int = 0
    """Answers that nobody waited for: a request was answered twice."""

    def add(self, other: Counts) -> None:
        """Add another's counts."""
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)


@dataclass
class Fetched:
    """One partition's part of an answer to a fetch."""

    topic: str
    partition: int
    first: int
    high_watermark: int
    log_end: int
    raw: bytes

    @property
    def records(self) -> list[Record]:
        """The records; the first has offset `first`."""
        return list(records.unpack(self.raw))


class Client:
    """A connection to a broker, made at the first request and again whenever it breaks.

    Parameters
    ----------
    host, port : str, int
        Where the broker listens.
    patience : float
        Seconds of pauses between a request's tries before `NoAnswer`.
    producer : int, optional
        The producer id; default: a random one. Its sequences begin at 0 in every partition.
    """

    def __init__(
        self, host: str, port: int, *, patience: float = 30.0, producer: int | None = None
    ) -> None:
        self.host, self.port, self.patience = host, port, patience
        self.producer = random.getrandbits(62) if producer is None else producer
        self.counts = Counts()
        self._correlation = 0
        self._sequences: dict[tuple[str, int], int] = {}
        self._attempts: dict[str, int] = {}
        self._lock = asyncio.Lock()
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def __aenter__(self) -> Client:
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    # -- requests -------------------------------------------------------------------------------

    async def produce(
        self, topic: str, partition: int, value: bytes, *, acks: str = "all", max_wait: float = 10.0
    ) -> Message:
        """Append a record; the answer's fields have `offset`, and `error` "timed-out" if the
        followers were too slow: the record is in the log even so.
        """
        sequence = self._sequences.get((topic, partition), 0)
        fields = {
            "topic": topic,
            "partition": partition,
            "producer": self.producer,
            "sequence": sequence,
            "acks": acks,
            "timeout_ms": round(max_wait * 1000),
        }
        answer = await self.request(Kind.PRODUCE, fields, value, wait=max_wait)
        if answer.error in ("", "timed-out"):
            self._sequences[topic, partition] = sequence + 1
        return answer

    async def fetch(
        self,
        positions: dict[tuple[str, int], int],
        *,
        min_bytes: int = 1,
        max_bytes: int = 1 << 18,
        max_wait: float = 1.0,
        replica: int | None = None,
    ) -> list[Fetched]:
        """Read records from several partitions; waits until `min_bytes` are there, `max_wait` at
        most. `replica`: this is a follower, and has all below the positions.

        Raises
        ------
        BrokerError
            A position is behind the log's end, or a partition is not known.
        """
        fields = {
            "partitions": [[*key, offset] for key, offset in positions.items()],
            "min_bytes": min_bytes,
            "max_bytes": max_bytes,
            "max_wait_ms": round(max_wait * 1000),
        }
        if replica is not None:
            fields["replica"] = replica
        answer = await self.request(Kind.FETCH, fields, wait=max_wait)
        if answer.error:
            raise BrokerError(answer.fields)
        return _fetched(answer)

    async def join(self, group: str, member: str, size: int, *, max_wait: float = 10.0) -> Message:
        """Wait until the group has `size` members; the answer's fields have `generation` and
        `members`, or `error` "timed-out".
        """
        attempt = self._attempts[group] = self._attempts.get(group, 0) + 1
        fields = {
            "group": group,
            "member": member,
            "size": size,
            "attempt": attempt,
            "timeout_ms": round(max_wait * 1000),
        }
        return await self.request(Kind.JOIN, fields, wait=max_wait)

    async def status(self) -> dict[str, Any]:
        """What the worker at the other end has to say of itself and of the partitions."""
        return (await self.request(Kind.STATUS, {})).fields

    async def request(
        self, kind: Kind, fields: dict[str, Any], blob: bytes = b"", *, wait: float = 0.0
    ) -> Message:
        """Send a request until it is answered.

        Parameters
        ----------
        wait : float
            Seconds that the broker may let it wait.

        Raises
        ------
        NoAnswer
            Nothing worked.
        ValueError
            The request is too long for a frame.
        """
        if len(blob) > protocol.MAX_FRAME // 2:
            raise ValueError(f"got {len(blob)} bytes, at most {protocol.MAX_FRAME // 2}")
        async with self._lock:
            self._correlation += 1
            self.counts.requests += 1
            message = Message(kind, self._correlation, fields, blob)
            body = protocol.frame(protocol.encode(message))
            answer = await self._until_answered(body, wait + STALL_SECONDS)
            self.counts.answers += 1
            return answer

    # -- the connection -------------------------------------------------------------------------

    async def _until_answered(self, body: bytes, stall: float) -> Message:
        patience, pause, sendings = self.patience, FIRST_PAUSE, 0
        while True:
            try:
                await self._connect()
                self.counts.resent += sendings > 0
                sendings += 1
                async with asyncio.timeout(stall):  # wait_for may swallow a cancellation
                    return await self._exchange(body)
            except BROKEN as error:  # TimeoutError is an OSError
                self._drop()
                self.counts.broken += 1
                patience -= pause
                if patience < 0:
                    message = f"no broker at {self.host}:{self.port}: {error!r}"
                    raise NoAnswer(message) from error
            except asyncio.CancelledError:
                self._reset()
                raise
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # not all at the same moment
            pause = min(2 * pause, LONGEST_PAUSE)

    async def _connect(self) -> None:
        if self._writer is None:
            self._reader, self._writer = await asyncio.open_connection(self.host, self.port)

    async def _exchange(self, body: bytes) -> Message:
        assert self._writer is not None
        self._writer.write(body)
        await self._writer.drain()
        while True:
            answer = await self._read()
            if answer.correlation == self._correlation:
                return answer
            self.counts.strays += 1

    async def _read(self) -> Message:
        assert self._reader is not None
        (size,) = protocol.LENGTH.unpack(await self._reader.readexactly(protocol.LENGTH.size))
        if size > protocol.MAX_FRAME:
            raise ProtocolError(f"got a frame of {size} bytes, at most {protocol.MAX_FRAME}")
        return protocol.decode(await self._reader.readexactly(size))

    async def close(self, *, listen: float = 0.0) -> None:
        """Close the connection.

        Parameters
        ----------
        listen : float
            First say that no more requests come, and read for so many seconds, or until the broker
            closes: what still comes is an answer too many.
        """
        if self._writer is None:
            return
        if listen:
            with suppress(*BROKEN):
                self._writer.write_eof()
                async with asyncio.timeout(listen):
                    while True:
                        await self._read()
                        self.counts.strays += 1
        writer = self._writer
        self._drop()
        with suppress(*BROKEN):
            await writer.wait_closed()

    def _reset(self) -> None:
        """Close by a reset: the next request must not read this one's answer, and the broker is to
        know that nobody waits. An orderly end might be that of one who only sends no more.
        """
        if self._writer is not None:
            connection = self._writer.get_extra_info("socket")
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._drop()

    def _drop(self) -> None:
        if self._writer is not None:
            self._writer.close()
        self._reader = self._writer = None


def _fetched(answer: Message) -> list[Fetched]:
    parts, at = [], 0
    for part in answer.fields["partitions"]:
        size = part.pop("bytes")
        parts.append(Fetched(**part, raw=answer.blob[at : at + size]))
        at += size
    return parts
