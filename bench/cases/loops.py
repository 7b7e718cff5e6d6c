"""What waits cost on an event loop: sleeps, and timeouts that expire. CPU time of all processes."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import wheeld
import wheeld_client
from bench.cases import Sample, daemon

Loop = Callable[[], asyncio.AbstractEventLoop]


async def _expire(api: Any, seconds: float) -> None:
    """A block that its timeout ends."""
    try:
        async with api.timeout(seconds):
            await asyncio.get_running_loop().create_future()
    except TimeoutError:
        return
    raise RuntimeError("a timeout did not expire")


async def _round(api: Any, spent: daemon.Spent, quick: bool) -> Sample:
    part = 10 if quick else 1
    draw = random.Random(1).uniform
    sample: Sample = {}

    async def all_of(what: str, waits: list[Any]) -> None:
        spent.start()
        await asyncio.gather(*waits)
        parts = spent.parts("us", 1e3 * len(waits))
        sample.update({f"{what}, {name}": value for name, value in parts.items()})
        await asyncio.sleep(0.01)

    apart = [_expire(api, 0.01 + number / 1000) for number in range(500 // part)]
    await all_of("timeout that expires", apart)
    together = [_expire(api, draw(0.001, 0.02)) for _ in range(2000 // part)]
    await all_of("timeout that expires, many", together)
    await all_of("200 sleeps of 50 ms", [api.sleep(0.05) for _ in range(200 // part)])
    several = [api.sleep(draw(0.001, 0.02)) for _ in range(2000 // part)]
    await all_of("2000 sleeps of 1 to 20 ms", several)
    return sample


def plain(quick: bool, factory: Loop) -> Iterator[Sample]:
    """asyncio's own, on a loop."""
    spent = daemon.Spent()
    with asyncio.Runner(loop_factory=factory) as runner:
        while True:
            yield runner.run(_round(asyncio, spent, quick))


def shared(quick: bool, factory: Loop) -> Iterator[Sample]:
    """`AsyncTimers`, on a loop."""
    with ExitStack() as stack:
        name = stack.enter_context(wheeld.embedded(capacity=1 << 16))
        runner = stack.enter_context(asyncio.Runner(loop_factory=factory))
        timers = wheeld_client.AsyncTimers(name)
        runner.run(timers.__aenter__())
        stack.callback(lambda: runner.run(timers.__aexit__(None, None, None)))
        spent = daemon.Spent(*daemon.pids(name))
        while True:
            yield runner.run(_round(timers, spent, quick))


def asyncio_own(quick: bool) -> Iterator[Sample]:
    """asyncio."""
    return plain(quick, asyncio.new_event_loop)


def uvloop_own(quick: bool) -> Iterator[Sample]:
    """uvloop."""
    import uvloop

    return plain(quick, uvloop.new_event_loop)


def on_asyncio(quick: bool) -> Iterator[Sample]:
    """wheeld on an asyncio loop."""
    return shared(quick, asyncio.new_event_loop)


def on_uvloop(quick: bool) -> Iterator[Sample]:
    """wheeld on a uvloop loop."""
    import uvloop

    return shared(quick, uvloop.new_event_loop)
