"""Rings and wheels without room, made by hand: no clock runs beside the test."""

import sys
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest

from local_wheel import LocalTimers
from wheeld_client import RingFull

RING = 1024
"""Places of the submission ring of a worker of a wheel of up to 8,192 slots."""


def fill_ring(timers: LocalTimers) -> list[int]:
    ids: list[int] = []
    with pytest.raises(RingFull):  # noqa: PT012
        while True:
            ids.append(timers.schedule(1e6, block=False))
    return ids


def fill_slots(timers: LocalTimers, drain: Callable[[], object], taken: int = 0) -> list[int]:
    capacity = int(timers._wheel.header["capacity"]) - taken
    ids: list[int] = []
    while len(ids) < capacity:
        ids += timers.schedule_many(np.full(min(RING, capacity - len(ids)), 1e6)).tolist()
        drain()
    return ids


def on_nap(monkeypatch: pytest.MonkeyPatch, timers: LocalTimers, nap: Callable[[], object]) -> None:
    def instead(seconds: float) -> bool:
        nap()
        return True

    monkeypatch.setitem(sys.modules, "gevent.monkey", SimpleNamespace())  # type: ignore[arg-type]
    monkeypatch.setattr(timers, "_nap_in_hub", instead, raising=False)


class Slept(Exception):
    """A call that must not sleep did."""


def never_sleep(monkeypatch: pytest.MonkeyPatch, timers: LocalTimers) -> list[Slept]:
    """Have a call of these timers that sleeps for room fail, whatever else it would do.

    Returns a list of those that did, should somebody take no notice of the error.
    """
    slept: list[Slept] = []

    def fail() -> None:
        slept.append(Slept())
        raise slept[-1]

    on_nap(monkeypatch, timers, fail)
    timers._patience_ns = 60_000_000_000
    return slept
