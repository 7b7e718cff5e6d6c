"""The calls of AsyncTimers that may have to wait for room, for the tests of that."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

from full_wheels import RING, never_sleep
from local_aio import LocalAsyncTimers, on_loop
from local_wheel import SECOND, LocalWheel
from purgatory_ops import Op
from wheeld_client import AsyncPurgatory

FAR = 1e6
Body = Callable[[LocalAsyncTimers, LocalWheel], Awaitable[None]]
Run = Callable[..., None]


def runner_without_sleep(monkeypatch: pytest.MonkeyPatch) -> Run:
    def run(body: Body, capacity: int = 4 * RING) -> None:
        async def main() -> None:
            async with on_loop(wheel) as timers:
                slept = never_sleep(monkeypatch, timers.local)
                timers._room.patience = 60.0
                await body(timers, wheel)
                assert not slept
                assert not timers._waiters
                assert not timers._late

        with LocalWheel(capacity, 2) as wheel:
            asyncio.run(main())

    return run


def nothing() -> None:
    """A callback."""


async def enter(timers: LocalAsyncTimers) -> None:
    async with timers.timeout(3.0):
        pass


async def wait(timers: LocalAsyncTimers) -> bool:
    return await AsyncPurgatory(timers, "p").wait(Op(3.0), ["k"])


Waiting = Callable[[LocalAsyncTimers, int], Coroutine[Any, Any, Any]]
ARMING: dict[str, Waiting] = {
    "schedule": lambda t, id: t.patiently(t.schedule, 3.0),
    "schedule_at": lambda t, id: t.patiently(t.local.schedule_at, 3.0, 7),
    "schedule_many": lambda t, id: t.patiently(t.local.schedule_many, [3.0]),
    "schedule_at_many": lambda t, id: t.patiently(t.local.schedule_at_many, [3 * SECOND]),
    "call_later": lambda t, id: t.patiently(t.call_later, 3.0, nothing),
    "sleep": lambda t, id: t.sleep(3.0),
    "timeout": lambda t, id: enter(t),
    "operation": lambda t, id: wait(t),
}
WAITING: dict[str, Waiting] = {
    **ARMING,
    "cancel": lambda t, id: t.patiently(t.cancel, id),
    "reschedule": lambda t, id: t.patiently(t.reschedule, id, 3.0),
    "cancel_many": lambda t, id: t.patiently(t.local.cancel_many, [id]),
    "reschedule_many": lambda t, id: t.patiently(t.local.reschedule_many, [id], [3.0]),
}
