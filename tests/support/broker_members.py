"""Members of a consumer group, of each library: threads of this process that keep one account.

`Group` is who owns what, by what the libraries tell their listeners. As a program it is one member,
until it is killed: `python tests/support/broker_members.py ADDRESS TOPIC LIBRARY SESSION_MS`.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

from broker_runs import LONG, until

POLL_SECONDS = 0.05
HEARTBEAT_MS = 100
PARTITIONS = 4
MODULES = {"confluent-kafka": "confluent_kafka", "kafka-python": "kafka", "aiokafka": "aiokafka"}
"""What each library is imported as."""


class Group:
    """The account of one group's partitions; each library's listeners write to it."""

    def __init__(
        self, address: str, topic: str, library: str, strategy: str, session_ms: int = 45_000
    ) -> None:
        self.address, self.topic, self.strategy = address, topic, strategy
        self.session_ms = session_ms
        self.members: list[Member] = []
        self.owner: dict[int, Member] = {}
        self.given: list[tuple[Member, int]] = []
        self.faults: list[str] = []
        self._library = LIBRARIES[library]
        self._lock = threading.Lock()

    def take(self, member: Member, parts: Iterable[Any]) -> None:
        """A member owns these from now on."""
        with self._lock:
            for number in (one.partition for one in parts):
                before = self.owner.get(number)
                if before not in (None, member):
                    self.faults.append(f"{number} is taken while another one has it")
                self.owner[number] = member

    def give(self, member: Member, parts: Iterable[Any]) -> None:
        """A member stops to own these."""
        with self._lock:
            for number in (one.partition for one in parts):
                if self.owner.get(number) is member:
                    del self.owner[number]
                    self.given.append((member, number))

    def lose(self, member: Member, parts: Iterable[Any]) -> None:
        """No member of these tests is ever thrown out."""
        self.faults.append(f"lost: {[one.partition for one in parts]}")
        self.give(member, parts)

    def owned(self, member: Member) -> set[int]:
        """By one member."""
        with self._lock:
            return {number for number, owner in self.owner.items() if owner is member}

    def join(self) -> None:
        """One more comes."""
        self.members.append(self._library(self))
        self.members[-1].start()

    def leave(self) -> None:
        """The one that is there for the longest time goes."""
        self.members.pop(0).end()

    def settle(self, partitions: int) -> None:
        """Wait until each partition has an owner, and all members have as much, but for one."""

        def settled() -> bool:
            sizes = sorted(len(self.owned(one)) for one in self.members)
            failed = [one.error for one in self.members if one.error]
            assert not failed, failed
            return sum(sizes) == partitions and sizes[-1] - sizes[0] <= 1

        until(settled, f"{len(self.members)} members share {partitions} partitions")

    def end(self) -> None:
        """All go."""
        while self.members:
            self.leave()


class Member(threading.Thread, ABC):
    """A consumer that polls until it is to leave."""

    strategies: tuple[str, ...] = ()
    """Those that its library has."""

    def __init__(self, group: Group) -> None:
        super().__init__(daemon=True)
        self.group, self.error = group, ""
        self._leaves = threading.Event()

    def end(self) -> None:
        """Leave the group."""
        self._leaves.set()
        self.join(LONG)
        assert not self.is_alive()
        assert not self.error, self.error

    def run(self) -> None:
        """The thread."""
        try:
            self.consume()
        except Exception as error:
            self.error = repr(error)

    @abstractmethod
    def consume(self) -> None:
        """Subscribe, poll, close."""


class Confluent(Member):
    """Of librdkafka."""

    strategies = ("range", "roundrobin", "cooperative-sticky")

    def consume(self) -> None:
        from confluent_kafka import Consumer

        group = self.group
        options = {"bootstrap.servers": group.address, "group.id": group.topic, "log_level": 0}
        options |= {"partition.assignment.strategy": group.strategy}
        options |= {"session.timeout.ms": group.session_ms}
        consumer = Consumer({**options, "heartbeat.interval.ms": HEARTBEAT_MS})
        consumer.subscribe(
            [group.topic],
            on_assign=lambda _, parts: group.take(self, parts),
            on_revoke=lambda _, parts: group.give(self, parts),
            on_lost=lambda _, parts: group.lose(self, parts),
        )
        while not self._leaves.is_set():
            consumer.poll(POLL_SECONDS)
        consumer.close()


class KafkaPython(Member):
    """Of kafka-python."""

    strategies = ("range", "roundrobin", "sticky", "cooperative-sticky")

    def consume(self) -> None:
        from kafka import ConsumerRebalanceListener, KafkaConsumer
        from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
        from kafka.coordinator.assignors.range import RangePartitionAssignor
        from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
        from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor

        found = (RangePartitionAssignor, RoundRobinPartitionAssignor, StickyPartitionAssignor)
        by_name = {one.name: one for one in (*found, CooperativeStickyAssignor)}
        member, group = self, self.group

        class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
            def on_partitions_assigned(self, assigned: Any) -> None:
                group.take(member, assigned)

            def on_partitions_revoked(self, revoked: Any) -> None:
                group.give(member, revoked)

            def on_partitions_lost(self, lost: Any) -> None:
                group.lose(member, lost)

        consumer = KafkaConsumer(
            bootstrap_servers=group.address,
            group_id=group.topic,
            partition_assignment_strategy=[by_name[group.strategy]],
            session_timeout_ms=group.session_ms,
            heartbeat_interval_ms=HEARTBEAT_MS,
        )
        consumer.subscribe([group.topic], listener=Listener())
        while not self._leaves.is_set():
            consumer.poll(int(1000 * POLL_SECONDS))
        consumer.close()


class AioKafka(Member):
    """Of aiokafka, whose sticky assignor keeps its state for all consumers of a process."""

    strategies = ("range", "roundrobin")

    def consume(self) -> None:
        asyncio.run(self._consume())

    async def _consume(self) -> None:
        from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener
        from aiokafka.coordinator.assignors.range import RangePartitionAssignor
        from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor

        by_name = {one.name: one for one in (RangePartitionAssignor, RoundRobinPartitionAssignor)}
        member, group = self, self.group

        class Listener(ConsumerRebalanceListener):  # type: ignore[misc]
            async def on_partitions_assigned(self, assigned: Any) -> None:
                group.take(member, assigned)

            async def on_partitions_revoked(self, revoked: Any) -> None:
                group.give(member, revoked)

        consumer = AIOKafkaConsumer(
            bootstrap_servers=group.address,
            group_id=group.topic,
            partition_assignment_strategy=[by_name[group.strategy]],
            session_timeout_ms=group.session_ms,
            heartbeat_interval_ms=HEARTBEAT_MS,
        )
        consumer.subscribe([group.topic], listener=Listener())
        await consumer.start()
        while not self._leaves.is_set():
            await consumer.getmany(timeout_ms=int(1000 * POLL_SECONDS))
        group.give(self, consumer.assignment())  # aiokafka does not tell its listener
        await consumer.stop()


LIBRARIES: dict[str, type[Member]] = {
    "confluent-kafka": Confluent,
    "kafka-python": KafkaPython,
    "aiokafka": AioKafka,
}


if __name__ == "__main__":
    address, topic, library, session_ms = sys.argv[1:]
    member = LIBRARIES[library](Group(address, topic, library, "range", int(session_ms)))
    member.run()
    sys.exit(member.error or 0)
