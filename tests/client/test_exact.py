"""Few timers do not wait until their tick is over: a daemon whose tick is an hour.

tests/c/harness/exact.c has the clock's choice by their number.
"""

import asyncio
import time

import numpy as np

import wheeld_client
from children import receive
from common_fixtures import connected, embedded
from wheeld_client import Timers

daemon = embedded(capacity=4096, tick="3600s")
timers = connected()


def test_they_fire_when_they_are_due(timers: Timers) -> None:
    ids = [timers.schedule(0.01), timers.schedule(0.02)]
    assert timers.reschedule(ids[0], 0.03)
    assert set(receive(timers, 2)["timer_id"].tolist()) == set(ids)


def test_a_periodic_timer_has_many_ticks_in_one(timers: Timers) -> None:
    id = timers.schedule(0.002, interval=0.002)
    events = receive(timers, 5)
    assert timers.cancel(id)
    assert {step % 2_000_000 for step in np.diff(events["deadline"]).tolist()} == {0}


def test_a_wall_clock(timers: Timers) -> None:
    timers.schedule_at(time.time() + 0.01, clock="realtime")
    assert (receive(timers, 1)["fired"] <= time.time_ns()).all()


def test_asyncio(daemon: str) -> None:
    async def main() -> None:
        async with wheeld_client.AsyncTimers(daemon) as timers:
            await timers.sleep(0.01)
            try:
                async with timers.timeout(0.01):
                    await asyncio.Event().wait()
            except TimeoutError:
                return
            raise AssertionError("the timeout did not come")

    asyncio.run(main())
