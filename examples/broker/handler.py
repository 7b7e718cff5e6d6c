"""What a worker does with each kind of request.

What a request changes, it changes in the shared state first, and then it triggers the key. It
triggers even if it found the change made already: the worker that made it may have been killed
before it came to its trigger, and this is the request that was sent again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final

from examples.broker import protocol
from examples.broker.delayed_fetch import DelayedFetch, Wanted
from examples.broker.delayed_join import DelayedJoin
from examples.broker.delayed_produce import DelayedProduce
from examples.broker.groups import Groups, GroupSizeError, Ticket
from examples.broker.protocol import Kind, Message, ProtocolError, RequestError
from examples.broker.records import Record
from examples.broker.settings import Key, Settings
from examples.broker.storage import OffsetError, Partition, SequenceError
from wheeld_client import AsyncPurgatory, Request, WheelError

LONGEST_MS: Final = 600_000
MOST_FETCHED: Final = 1 << 20
MOST_MEMBERS: Final = 1000
_U63: Final = (1 << 63) - 1

log = logging.getLogger("broker.worker")

Answer = tuple[dict[str, Any], bytes]


class Handler:
    """Answers the requests of one worker.

    Parameters
    ----------
    settings : Settings
        The broker's.
    logs : dict of Key to Partition
        Opened by this process.
    groups : Groups
        As this worker sees them.
    purgatories : dict of str to AsyncPurgatory
        "produce", "fetch" and "join".
    worker : str
        This worker's name; each answer has it.
    gauges : callable
        More for the answer to a status request.
    """

    def __init__(
        self,
        settings: Settings,
        logs: dict[Key, Partition],
        groups: Groups,
        purgatories: dict[str, AsyncPurgatory],
        worker: str,
        gauges: Callable[[], dict[str, Any]],
    ) -> None:
        self._settings, self._logs, self._groups = settings, logs, groups
        self._produces = purgatories["produce"]
        self._fetches = purgatories["fetch"]
        self._joins = purgatories["join"]
        self._purgatories, self._worker, self._gauges = purgatories, worker, gauges
        self._serial = 0
        self._kinds: dict[Kind, Callable[[Message], Awaitable[Answer]]] = {
            Kind.PRODUCE: self._produce,
            Kind.FETCH: self._fetch,
            Kind.JOIN: self._join,
            Kind.STATUS: self._status,
        }

    async def __call__(self, request: Request) -> bytes | None:
        """Intake's handler. Bytes that are no request close their connection."""
        try:
            message = protocol.decode(request.data)
        except ProtocolError as error:
            log.warning("%s sent no request: %s; closed", request.connection.peer, error)
            request.connection.close()
            return None
        request.release()  # what waits in a purgatory holds none of the pool's memory
        try:
            fields, blob = await self._kinds[message.kind](message)
        except RequestError as error:
            fields, blob = {"error": error.code, "message": str(error)}, b""
        except WheelError as error:  # the daemon is gone: its client may ask another broker
            log.info("%s gets no answer: %s", request.connection.peer, error)
            request.connection.close()
            return None
        fields = {"error": "", **fields, "worker": self._worker}
        return protocol.encode(Message(message.kind, message.correlation, fields, blob))

    def _log(self, topic: object, number: object) -> tuple[Key, Partition]:
        if isinstance(topic, str) and type(number) is int and (topic, number) in self._logs:
            return (topic, number), self._logs[topic, number]
        raise RequestError("unknown-partition", f"there is no partition {topic}-{number}")

    # -- produce --------------------------------------------------------------------------------

    async def _produce(self, message: Message) -> Answer:
        fields = message.fields
        key, log = self._log(fields.get("topic"), fields.get("partition"))
        producer = protocol.number(fields, "producer", 0, _U63)
        sequence = protocol.number(fields, "sequence", 0, _U63)
        timeout = protocol.number(fields, "timeout_ms", 0, LONGEST_MS) / 1000
        if fields.get("acks") not in ("all", "leader"):
            raise RequestError("bad-request", f"acks: got {fields.get('acks')!r}")
        try:
            offset, duplicate = log.append(Record(producer, sequence, message.blob))
        except SequenceError as error:
            raise RequestError("out-of-order", str(error)) from None
        self._fetches.check_and_complete(key)
        answer: dict[str, Any] = {"offset": offset, "duplicate": duplicate}
        if fields["acks"] == "all":
            waiting = DelayedProduce(log, offset, timeout)
            await self._produces.wait(waiting, [key])
            answer["error"] = "" if waiting.replicated else "timed-out"
        return answer, b""

    # -- fetch ----------------------------------------------------------------------------------

    async def _fetch(self, message: Message) -> Answer:
        fields = message.fields
        wanted = self._wanted(fields.get("partitions"))
        least = protocol.number(fields, "min_bytes", 0, MOST_FETCHED)
        most = protocol.number(fields, "max_bytes", 1, MOST_FETCHED)
        timeout = protocol.number(fields, "max_wait_ms", 0, LONGEST_MS) / 1000
        replica = "replica" in fields
        if replica:
            self._replicated(
                protocol.number(fields, "replica", 0, self._settings.followers - 1), wanted
            )
        waiting = DelayedFetch(wanted, least, most, timeout, replica=replica)
        await self._fetches.wait(waiting, [key for key, _, _ in wanted])
        for part in waiting.parts:
            if part["first"] > part["log_end"]:
                where = f"{part['topic']}-{part['partition']}"
                raise RequestError("offset-out-of-range", f"{where} ends at {part['log_end']}")
        return {"partitions": waiting.parts}, waiting.blob

    def _wanted(self, partitions: object) -> list[Wanted]:
        if not isinstance(partitions, list) or not partitions:
            raise RequestError("bad-request", "partitions: expected [[topic, number, offset], ...]")
        found: dict[Key, Wanted] = {}
        for one in partitions:
            if not isinstance(one, list) or len(one) != 3:
                raise RequestError("bad-request", f"got {one!r}, expected topic, number, offset")
            key, log = self._log(one[0], one[1])
            offset = protocol.number({"offset": one[2]}, "offset", 0, _U63)
            if key in found:
                raise RequestError("bad-request", f"{key[0]}-{key[1]} is named twice")
            found[key] = Wanted(key, log, offset)
        return list(found.values())

    def _replicated(self, follower: int, wanted: list[Wanted]) -> None:
        """A follower has all that is below the offsets that it fetches from."""
        for key, log, offset in wanted:
            try:
                log.follow(follower, offset)
            except OffsetError as error:
                raise RequestError("offset-out-of-range", str(error)) from None
            self._produces.check_and_complete(key)
            self._fetches.check_and_complete(key)  # consumers read to the high watermark

    # -- join -----------------------------------------------------------------------------------

    async def _join(self, message: Message) -> Answer:
        fields = message.fields
        group, member = protocol.text(fields, "group"), protocol.text(fields, "member")
        size = protocol.number(fields, "size", 1, MOST_MEMBERS)
        attempt = protocol.number(fields, "attempt", 1, _U63)
        timeout_ms = protocol.number(fields, "timeout_ms", 0, LONGEST_MS)
        self._serial += 1
        now_ns = time.monotonic_ns()
        ticket = Ticket(attempt, self._worker, self._serial, now_ns + timeout_ms * 1_000_000)
        try:
            self._groups.join(group, member, size, ticket, now_ns)
        except GroupSizeError as error:
            raise RequestError("group-size", str(error)) from None
        self._joins.check_and_complete(group)
        waiting = DelayedJoin(self._groups, group, member, ticket, timeout_ms / 1000)
        try:
            await self._joins.wait(waiting, [group])
        except BaseException:  # its connection is gone, or the daemon
            waiting.withdraw()
            raise
        if waiting.generation is None:
            return {"error": "timed-out"}, b""
        generation = waiting.generation
        return {"generation": generation.number, "members": generation.members}, b""

    # -- status ---------------------------------------------------------------------------------

    async def _status(self, message: Message) -> Answer:
        partitions = [
            {
                "topic": topic,
                "partition": number,
                "log_end": log.log_end,
                "high_watermark": log.high_watermark,
                "replicated": [log.replicated(one) for one in range(log.followers)],
            }
            for (topic, number), log in self._logs.items()
        ]
        purgatories = {name: one.metrics() for name, one in self._purgatories.items()}
        waiting = {name: one.num_delayed for name, one in self._purgatories.items()}
        answer = {"partitions": partitions, "waiting": waiting, "purgatories": purgatories}
        return answer | self._gauges(), b""
