"""The cost of an operation to an event loop's thread, ns: to let it wait, to complete it, to
resume.

`begin` beside a task for each that awaits `wait`, and beside what a program without a purgatory
does: a future under its key in a dict, and `loop.call_later` for the timeout. Collection is off.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterable
from statistics import median
from typing import Any

import wheeld
import wheeld_client
from bench.cases.calls import HOUR
from bench.result import Options, Result, Row
from bench.timing import Watch

KINDS: dict[str, Callable[[int], Any]] = {
    "str keys": lambda number: f"topic-{number}",
    "int keys": lambda number: number,
    "tuple keys": lambda number: ("topic", number),
}
Costs = tuple[float, float, float]
"""To wait, to complete, until the one who awaits them all goes on."""


class Fetch(wheeld_client.DelayedOperation):
    """Completes when it is checked after it was set ready."""

    __slots__ = ("ready",)

    def __init__(self, timeout: float) -> None:
        super().__init__(timeout)
        self.ready = False

    def try_complete(self) -> bool:
        """When it is ready."""
        return self.ready and self.force_complete()


async def _costs(
    watch: Watch,
    keys: list[Any],
    enter: Callable[[Any], Any],
    complete: Callable[[Iterable[Any]], object],
) -> Costs:
    """`enter` makes an awaitable of a key; `complete` has all of them end."""
    watch.start()
    waiting = [asyncio.ensure_future(enter(key)) for key in keys]
    await asyncio.sleep(0)  # tasks begin now
    begun = watch.ns_each(len(keys))
    watch.start()
    complete(keys)
    completed = watch.ns_each(len(keys))
    watch.start()
    for one in waiting:
        await one
    return begun, completed, watch.ns_each(len(keys))


async def _operations(
    purgatory: wheeld_client.AsyncPurgatory, watch: Watch, keys: list[Any], wait: Any
) -> Costs:
    made: list[Fetch] = []

    def enter(key: Any) -> Any:
        made.append(Fetch(HOUR))
        return wait(made[-1], (key,))

    def complete(keys: Iterable[Any]) -> None:
        for operation in made:
            operation.ready = True
        for key in keys:
            purgatory.check_and_complete(key)

    return await _costs(watch, keys, enter, complete)


async def _by_hand(watch: Watch, keys: list[Any]) -> Costs:
    """Without a purgatory."""
    loop = asyncio.get_running_loop()
    held: dict[Any, tuple[asyncio.Future[bool], asyncio.TimerHandle]] = {}

    def expire(key: Any) -> None:
        held.pop(key)[0].set_result(False)

    def enter(key: Any) -> asyncio.Future[bool]:
        future = loop.create_future()
        held[key] = future, loop.call_later(HOUR, expire, key)
        return future

    def complete(keys: Iterable[Any]) -> None:
        for key in keys:
            future, timer = held.pop(key)
            timer.cancel()
            future.set_result(True)

    return await _costs(watch, keys, enter, complete)


async def measure(name: str, count: int, rounds: int) -> dict[str, list[Costs]]:
    """Costs of each way, by rounds."""
    watch = Watch()
    found: dict[str, list[Costs]] = {}
    async with wheeld_client.AsyncTimers(name) as timers:
        purgatory = wheeld_client.AsyncPurgatory(timers, "bench")
        for _ in range(rounds + 1):
            for kind, make in KINDS.items():
                keys = [make(number) for number in range(count)]
                ways = {f"begin, {kind}": _operations(purgatory, watch, keys, purgatory.begin)}
                if kind == "tuple keys":
                    wait = _operations(purgatory, watch, keys, purgatory.wait)
                    ways |= {f"a task each, {kind}": wait}
                    ways |= {f"future and call_later, {kind}": _by_hand(watch, keys)}
                for way, run in ways.items():
                    found.setdefault(way, []).append(await run)
                    await asyncio.sleep(0.01)  # for what the clock has still to do
        purgatory.shutdown()
    return {way: costs[1:] for way, costs in found.items()}  # the first warms up


def run(options: Options, say: Callable[[str], None]) -> Result:
    """The whole measurement."""
    say("purgatory: operations that are awaited")
    count = 200 if options.quick else 5_000
    gc.disable()
    try:
        with wheeld.embedded(capacity=1 << 16) as name:
            found = asyncio.run(measure(name, count, options.rounds))
    finally:
        gc.enable()
    rows: list[Row] = [
        {"operations": way} | {what: median(column) for what, column in zip(
            ("wait ns", "complete ns", "until awaited ns"), zip(*costs, strict=True), strict=True)}
        for way, costs in found.items()
    ]  # fmt: skip
    return Result("purgatory: one operation on an asyncio loop, ns (median)", rows)
