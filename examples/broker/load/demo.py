"""Everything in one: a broker, the clients of all libraries, kills meanwhile, and the account."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

import psutil

from examples.broker.load import account, clients
from examples.broker.load.program import Program
from examples.broker.parent import Broker, Child
from examples.broker.settings import Settings
from examples.broker.wire import BrokerClient

TOPIC: Final = "account"
PATTERN: Final = ("worker", "follower", "worker", "clock", "worker", "follower")
"""Processes to kill, in turn."""
MEMBERS: Final = 2
"""Consumers of each group."""
CREATE_TOPICS: Final = 19


class Demo:
    """One run."""

    def __init__(
        self, settings: Settings, records: int, rate: float, kills: int, seed: int
    ) -> None:
        self._settings, self._records, self._rate = settings, records, rate
        self._kills, self._random = kills, random.Random(seed)
        self.killed: Counter[str] = Counter()
        self.producers: list[Program] = []
        self.consumers: dict[str, list[Program]] = {}  # by library, which is their group
        self.hung: list[str] = []

    async def run(self) -> dict[str, Any]:
        """The account; its "exact" is the verdict."""
        began = time.monotonic()
        async with Broker(self._settings) as broker:
            own = broker.settings
            address = f"{own.host}:{own.port}"
            async with BrokerClient(own.host, own.port, "demo") as peer:
                topic = {"name": TOPIC, "num_partitions": own.partitions, "replication_factor": -1}
                await peer.call(CREATE_TOPICS, 4, topics=[topic])
            try:
                for library in clients.installed():
                    self.consumers[library] = [
                        await Program.start(library, "consume", address, TOPIC, library)
                        for _ in range(MEMBERS)
                    ]
                for library in clients.installed():
                    load = (library, str(self._records), str(self._rate))
                    one = await Program.start(library, "produce", address, TOPIC, *load)
                    self.producers.append(one)
                await self._load(broker)
            finally:
                for one in self._programs():
                    if one.process.returncode is None and not await one.end(clients.PATIENCE):
                        self.hung.append(f"consumer of {one.library}")
            await self._replicated(own)
            restarts = broker.deaths
        found = account.account(own, self.producers, self.consumers, self.hung)
        found |= {"killed": dict(self.killed), "restarts": restarts}
        return found | {"seconds": round(time.monotonic() - began, 1)}

    def _programs(self) -> list[Program]:
        return [*self.producers, *(one for group in self.consumers.values() for one in group)]

    async def _load(self, broker: Broker) -> None:
        """Kill while they send; then wait until all groups have read all."""
        killer = asyncio.create_task(self._kill(broker))
        for one in self.producers:
            try:
                async with asyncio.timeout(self._records / self._rate + 2 * clients.PATIENCE):
                    await one.process.wait()
            except TimeoutError:
                self.hung.append(f"producer of {one.library}")
        await asyncio.gather(killer)
        sent = {line[2] for one in self.producers for line in one.lines}
        give_up = time.monotonic() + clients.PATIENCE
        for group in self.consumers.values():
            while sent - {line[2] for one in group for line in (*one.lines, *one.unsure)}:
                if time.monotonic() > give_up:
                    break
                await asyncio.sleep(0.1)
        self._progress("everything was read")

    async def _replicated(self, own: Settings) -> None:
        """Give the followers time to catch up."""
        give_up = time.monotonic() + clients.PATIENCE
        while any(
            not copy.exists() or copy.stat().st_size < log.stat().st_size
            for log, copy in account.replicas(own)
        ):
            if time.monotonic() > give_up:
                break
            await asyncio.sleep(0.1)

    async def _kill(self, broker: Broker) -> None:
        """Evenly spread over what was acknowledged, not over time: so as many fall into the load on
        any machine.
        """
        roles = [role for role in PATTERN if role != "follower" or broker.settings.followers]
        for number in range(self._kills):
            share = self._records * len(self.producers) * (number + 1) / (self._kills + 1)
            while sum(self._sent(one) for one in self.producers) < share:
                if all(one.process.returncode is not None for one in self.producers):
                    return
                await asyncio.sleep(0.02)
            role = roles[number % len(roles)]
            await self._kill_one(broker, role)
            self.killed[role] += 1
            self._progress(f"killed a {role}")

    def _sent(self, one: Program) -> int:
        """How far a producer is; one that prints nothing before its end counts like the others."""
        return len(one.lines) or max(len(other.lines) for other in self.producers)

    async def _kill_one(self, broker: Broker, role: str) -> None:
        if role == "clock":
            os.kill(clock_of(self._settings.daemon), signal.SIGKILL)
            return
        those = [child for child in broker.children if child.role == role]
        victim: Child = self._random.choice(those)
        await victim.ready.wait()
        victim.kill()

    def _progress(self, what: str) -> None:
        told = sum(len(one.lines) for one in self.producers)
        read = ", ".join(
            f"{name} {sum(len(one.lines) for one in group)}"
            for name, group in self.consumers.items()
        )
        print(f"{what}: {told} acknowledged; read: {read}", file=sys.stderr, flush=True)


def clock_of(daemon: str) -> int:
    """The process id of a daemon's clock."""
    facts = json.loads((Path(daemon) / "daemon.json").read_text())
    children = psutil.Process(facts["pid"]).children()
    return next(child.pid for child in children if child.name() == "wheeld-clock")
