"""A clock that starts may take long, as long as it shows that it gets on."""

import asyncio
from typing import Any

import numpy as np
import pytest

from wheeld.clock import guard as clock_guard
from wheeld_core.control import Message
from wheeld_core.errors import WheelError

READY: Message = {"op": "ready", "linked": 3, "skipped": []}


class Clock:
    """Stands in for the resources and the link of a clock whose word comes after so many beats."""

    def __init__(self, beats: int | None, damage: str | None = None) -> None:
        self.ready: asyncio.Future[Message]
        self.header = np.zeros((), [("heartbeat", "i8")])
        self.wheel = self
        self.waits = 0
        self._beats, self._damage = beats, damage

    def damage(self) -> str | None:
        return self._damage

    async def wait(self, tasks: Any, **patience: Any) -> None:
        assert patience["timeout"] == clock_guard.START_SECONDS + clock_guard.LOCK_SECONDS
        await asyncio.sleep(0)
        self.waits += 1
        if self._beats is None or self.waits < self._beats:
            self.header["heartbeat"] += self._beats is not None
        else:
            self.ready.set_result(READY)


def first_word(monkeypatch: pytest.MonkeyPatch, clock: Clock) -> Message:
    guard = clock_guard.ClockGuard.__new__(clock_guard.ClockGuard)
    guard._resources = clock  # type: ignore[assignment]

    async def main() -> Message:
        loop = asyncio.get_running_loop()
        guard._ready = clock.ready = loop.create_future()
        life = loop.create_future()
        with monkeypatch.context() as patches:
            patches.setattr(clock_guard.asyncio, "wait", clock.wait)
            return await guard._first_word(life)  # type: ignore[arg-type]

    return asyncio.run(main())


def test_a_long_recovery_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(100)
    assert first_word(monkeypatch, clock) == READY
    assert clock.waits == 100


def test_one_that_does_not_get_on_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(None)
    with pytest.raises(TimeoutError):
        first_word(monkeypatch, clock)
    assert clock.waits == 1


def test_damage_ends_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(100, damage="the segment has 0 bytes")
    with pytest.raises(WheelError, match="0 bytes"):
        first_word(monkeypatch, clock)
