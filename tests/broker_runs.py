"""A broker of the example, in processes of its own, for tests."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from examples.broker.client import Client
from examples.broker.parent import Broker, Child
from examples.broker.settings import Settings

LONG = 100.0
"""Seconds that a test waits for an event before it fails."""

Body = Callable[["Run"], Awaitable[None]]


class Run:
    """A running broker, and clients of it."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.clients: list[Client] = []

    def client(self) -> Client:
        """A client of whichever worker the kernel picks."""
        client = Client(self.broker.settings.host, self.broker.settings.port)
        self.clients.append(client)
        return client

    async def at(self, index: int) -> Client:
        """A client that is connected to that worker."""
        for _ in range(1000):
            client = self.client()
            if (await client.status())["worker"].startswith(f"worker-{index}."):
                return client
            await client.close()
        raise AssertionError(f"the kernel never picked worker {index}")

    async def follow(self, client: Client, offset: int) -> None:
        """Say what the only follower of the only partition has, as its fetch does."""
        await client.fetch({("t", 0): offset}, min_bytes=0, max_wait=0, replica=0)

    async def waiting(self, index: int, kind: str, count: int = 1) -> None:
        """Wait until that many requests of a kind wait in that worker."""
        client = await self.at(index)

        async def enough() -> bool:
            found: dict[str, int] = (await client.status())["waiting"]
            return found[kind] == count

        await until(enough, f"{count} {kind} in worker {index}")

    def child(self, role: str, index: int = 0) -> Child:
        """One of the broker's processes."""
        return next(one for one in self.broker.children if (one.role, one.index) == (role, index))

    async def kill(self, role: str, index: int = 0) -> None:
        """SIGKILL; returns when the next life serves."""
        child = self.child(role, index)
        await child.ready.wait()
        self.broker.kill(child)
        await child.ready.wait()


async def until(holds: Callable[[], Awaitable[Any]], what: str) -> None:
    """Look again and again until it holds."""
    give_up = asyncio.get_running_loop().time() + LONG
    while not await holds():
        assert asyncio.get_running_loop().time() < give_up, f"still not: {what}"
        await asyncio.sleep(0.005)


def run(daemon: str, directory: Path, body: Body, *, by_hand: bool = False, **options: Any) -> None:
    """Run `body` with a broker of two workers and one follower.

    Parameters
    ----------
    by_hand : bool
        The follower's process is not started: the test says how far it has come.
    """
    fields = {"workers": 2, "followers": 1, "topics": {"t": 1}, **options}

    async def main() -> None:
        broker = Broker(Settings(str(directory), daemon, 0, **fields))
        if by_hand:
            broker.children = [one for one in broker.children if one.role == "worker"]
        async with broker:
            own = Run(broker)
            try:
                await asyncio.wait_for(body(own), LONG)
            finally:
                for client in own.clients:
                    await client.close()
        assert all(
            one.process is None or one.process.returncode is not None for one in broker.children
        )

    asyncio.run(main())
