"""Virtual time for tests of AsyncTimers."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import wheeld
from wheeld_client import AsyncTimers
from wheeld_core import control


class Time:
    """Moves the daemon's virtual clock."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._connection = control.Connection(Path(name))

    def jump(self, ms: float) -> None:
        wheeld.advance(self._name, ms / 1000)

    async def pass_by(self, ms: float) -> None:
        for _ in range(int(ms)):
            self.jump(1)
            await ripple()

    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self._connection.request("status")["status"]
        return found

    def close(self) -> None:
        self._connection.close()


async def ripple() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


Body = Callable[[AsyncTimers, Time], Awaitable[None]]


def runner_on(daemon: str) -> Iterator[Callable[[Body], None]]:
    time = Time(daemon)

    def runner(body: Body) -> None:
        async def main() -> None:
            async with AsyncTimers(daemon) as timers:
                await body(timers, time)
                await ripple()
                assert timers.timers.pending == 0, "left on the wheel"
                assert not timers._waiters

        asyncio.run(main())
        assert time.status()["pending"] == 0

    yield runner
    time.close()
