"""AsyncTimers by key: what its own calls take and give."""

import pytest

from aio_calls import runner_without_sleep
from aio_tests import with_timers
from local_aio import LocalAsyncTimers
from local_wheel import SECOND, LocalWheel
from wheeld_client import KeyInUse

run = pytest.fixture(runner_without_sleep)


@with_timers
async def test_timers_by_key(timers: LocalAsyncTimers, wheel: LocalWheel) -> None:
    id = timers.schedule(1.0, key="k")
    with pytest.raises(KeyInUse):
        timers.schedule(1.0, key="k")
    assert timers.schedule(1.0, key="k", on_conflict="keep") == id
    assert timers.reschedule(key="k", delay=3.0)
    assert timers.remaining("k") == 3.0
    record = timers.find("k")
    assert record is not None
    assert record.id == id
    assert timers.cancel(key="k")
    assert timers.find("k") is None
    timers.schedule(1.0, key=("again", 1))
    wheel.advance(SECOND)
    assert timers.key_of(await anext(timers)) == ("again", 1)
    assert timers.schedule_at(9.0, key="k") == timers.schedule_at(5.0, key="k", on_conflict="keep")
    assert timers.pause(key="k")
    wheel.advance(20 * SECOND)
    assert timers.remaining("k") == 8.0  # at 1 s 8 were left
    assert timers.resume(key="k")
    wheel.advance(8 * SECOND)
    assert timers.key_of(await anext(timers)) == "k"
    for call in (timers.cancel, timers.reschedule, timers.pause, timers.resume):
        with pytest.raises(TypeError):
            call()
