"""The load generator: many connections with mixed requests; it remembers what it was told."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import Final

from examples.broker.client import BrokerError, Client, Counts, Fetched, NoAnswer
from examples.broker.settings import Key
from examples.broker.workload import HURRIED_SECONDS, Joined, Plan, Produced, Results, value

LISTEN_SECONDS: Final = 10.0
"""How long a connection listens at its end for answers too many; the broker closes earlier."""


class Load:
    """One run of a plan against a broker.

    Parameters
    ----------
    plan : Plan
        What to send.
    host, port : str, int
        Where.

    Attributes
    ----------
    results, counts : Results, Counts
        Complete when `run` has returned.
    """

    def __init__(self, plan: Plan, host: str, port: int) -> None:
        plan.check()
        self.plan, self.host, self.port = plan, host, port
        self.results, self.counts = Results(), Counts()
        self.name = f"{random.getrandbits(40):010x}"  # two loads at a time are in different groups
        self._started = 0.0
        self._moved = asyncio.Event()
        self._begun: dict[int, int] = {}  # group -> requests that its foremost member has begun

    def progress(self) -> float:
        """How much is done, 0 to 1."""
        if self.plan.requests:
            return self.results.answered() / self.plan.requests
        gone = time.monotonic() - self._started if self._started else 0.0
        return min(gone / self.plan.seconds, 1.0)

    async def reached(self, share: float) -> None:
        """Wait until the load's progress has reached `share`."""
        while self.progress() < share:
            self._moved.clear()
            await self._moved.wait()

    async def run(self) -> None:
        """Send everything and wait for every answer."""
        async with Client(self.host, self.port) as client:
            status = await client.status()
        keys = [(one["topic"], one["partition"]) for one in status["partitions"]]
        self._started = time.monotonic()
        async with asyncio.TaskGroup() as tasks:
            for number in range(self.plan.connections):
                tasks.create_task(self._connection(number, keys))

    async def _connection(self, number: int, keys: list[Key]) -> None:
        client = Client(self.host, self.port)
        sender = Sender(self, client, number, keys)
        share, least = self.plan.share(number), self.plan.requests // self.plan.connections
        for sent, kind in enumerate(self.plan.kinds(number)):
            if (self.plan.requests and sent >= share) or self._over(number, sent):
                break
            await self._pace(number, sent)
            # The request that some connections have more than others is no join: to that, the
            # others of the group would never come.
            await sender.send("fetch" if kind == "join" and sent == least else kind)
            self._moved.set()
        await client.close(listen=LISTEN_SECONDS)
        self.counts.add(client.counts)

    def _over(self, number: int, sent: int) -> bool:
        """Whether the time is over. Then the members of a group still come to the same number of
        requests, as each waits in its joins for the others.
        """
        seconds, group = self.plan.seconds, self.plan.group(number)
        if not seconds:
            return False
        if time.monotonic() - self._started >= seconds:
            return group is None or sent >= self._begun.get(group, 0)
        if group is not None:
            self._begun[group] = max(self._begun.get(group, 0), sent + 1)
        return False

    async def _pace(self, number: int, sent: int) -> None:
        if self.plan.rate:
            due = self._started + (sent * self.plan.connections + number) / self.plan.rate
            await asyncio.sleep(max(0.0, due - time.monotonic()))


class Sender:
    """The requests of one connection: a producer, a consumer and a member of a group."""

    def __init__(self, load: Load, client: Client, number: int, keys: list[Key]) -> None:
        self._plan, self._results, self._client, self._keys = load.plan, load.results, client, keys
        self._rng = random.Random(f"{load.plan.seed}/connection/{number}")
        self._positions = dict.fromkeys(keys, 0)
        self._sequences = dict.fromkeys(keys, 0)
        self._group = f"{load.name}-{load.plan.group(number)}"
        self._member = f"member-{number}"

    async def send(self, kind: str) -> None:
        """Send one request and note what became of it."""
        self._results.sent += 1
        send: Callable[[], Awaitable[str]] = {
            "produce": self._produce,
            "fetch": self._fetch,
            "join": self._join,
        }[kind]
        before = time.monotonic()
        try:
            error = await send()
        except NoAnswer:
            self._results.lost[kind] = self._results.lost.get(kind, 0) + 1
        except BrokerError as refused:
            self._results.note(kind, refused.code, time.monotonic() - before)
        else:
            self._results.note(kind, error, time.monotonic() - before)

    async def _produce(self) -> str:
        key = topic, partition = self._rng.choice(self._keys)
        hurried = self._rng.random() < self._plan.hurried
        acks = "leader" if self._rng.random() < self._plan.leader_only else "all"
        sequence, producer = self._sequences[key], self._client.producer
        answer = await self._client.produce(
            topic,
            partition,
            value(producer, topic, partition, sequence, self._plan.value_bytes),
            acks=acks,
            max_wait=HURRIED_SECONDS if hurried else self._plan.patience,
        )
        if answer.error in ("", "timed-out"):
            self._sequences[key] += 1
            offset = answer.fields["offset"]
            self._results.produced.append(Produced(topic, partition, producer, sequence, offset))
        return answer.error

    async def _fetch(self) -> str:
        chosen = self._rng.sample(self._keys, self._rng.randint(1, len(self._keys)))
        parts = await self._client.fetch(
            {key: self._positions[key] for key in chosen},
            min_bytes=self._rng.choice([1, 1, 1000, 4000]),
            max_bytes=16_384,
            max_wait=self._rng.choice([0.05, 0.2, 0.5]),
        )
        for part in parts:
            self._look(part)
        return ""

    def _look(self, part: Fetched) -> None:
        """Check what can be checked at once; the log is compared at the end."""
        key = part.topic, part.partition
        if part.first != self._positions[key]:
            self._results.bad_fetches.append(f"{key}: records from {part.first} on")
        try:
            count = len(part.records)
        except ValueError as damaged:
            self._results.bad_fetches.append(f"{key}: {damaged}")
            return
        if part.first + count > part.high_watermark:
            self._results.bad_fetches.append(f"{key}: records above the high watermark")
        self._results.fetched_records += count
        self._positions[key] += count

    async def _join(self) -> str:
        answer = await self._client.join(
            self._group, self._member, self._plan.group_size, max_wait=self._plan.patience
        )
        if not answer.error:
            number, members = answer.fields["generation"], tuple(answer.fields["members"])
            self._results.joined.append(Joined(self._group, self._member, number, members))
        return answer.error
