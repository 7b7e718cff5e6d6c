"""Calls take a timedelta for seconds, and a datetime with a time zone for a point in time."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta, timezone
from typing import Any

import numpy as np
import pandas
import pytest

import wheeld
from aio_tests import with_timers
from aio_time import Time, ripple, runner_on
from common_fixtures import embedded
from local_wheel import SECOND, LocalTimers, LocalWheel
from wheeld_client import (
    AsyncTimers,
    Deadlines,
    DelayedOperation,
    InvalidDelay,
    MemoryPool,
    Watermarks,
    connect,
)
from wheeld_client.integrations.process import ProcessTimers
from wheeld_client.integrations.seconds import limit_of, limits_of
from wheeld_core import packing
from wheeld_core.arguments import EPOCH
from wheeld_core.views import CLOCKS

daemon = embedded(capacity=4096, virtual_clock=True, payload_bytes=64, pools=["requests=1M"])
keeping = embedded("function", capacity=4096, virtual_clock=True)  # a row for what it keeps is made
run = pytest.fixture(runner_on)

HALF = timedelta(milliseconds=500)
NAIVE = datetime(2026, 3, 29, 2, 30)
EAST = timezone(timedelta(hours=5, minutes=45))

Call = Callable[[LocalTimers, Any], Any]
ARMING: dict[str, Call] = {
    "schedule": lambda t, d: t.schedule(d),
    "schedule_keywords": lambda t, d: t.schedule(delay=d, cookie=1),
    "schedule_many": lambda t, d: t.schedule_many([d]),
    "call_later": lambda t, d: t.call_later(d, list),
    "reschedule": lambda t, d: t.reschedule(t.schedule(9.0), d),
    "reschedule_many": lambda t, d: t.reschedule_many([t.schedule(9.0)], [d]),
    "handle": lambda t, d: t.call_later(9.0, list).reschedule(d),
}
OTHERS: dict[str, Call] = {
    "interval": lambda t, d: t.schedule(0.0, interval=d),
    "poll": lambda t, d: t.poll(d),
    "dispatch": lambda t, d: t.dispatch(timeout=d),
    "operation": lambda t, d: DelayedOperation(d),
}
SPANS = ARMING | OTHERS


def deadlines(wheel: LocalWheel) -> list[int]:
    """Of all armed timers, sorted."""
    return sorted(wheel.slots.slots["deadline"][wheel.slots.armed()].tolist())


def clocks(wheel: LocalWheel) -> list[str]:
    flags = wheel.slots.slots["flags"][wheel.slots.armed()]
    return [CLOCKS[int(clock)] for clock in packing.FLAGS_CLOCK.of(flags)]


@pytest.mark.parametrize("call", ARMING)
def test_a_timedelta_is_its_seconds(call: str) -> None:
    with LocalWheel(64) as wheel:
        timers = wheel.worker(0)
        ARMING[call](timers, HALF)
        assert deadlines(wheel) == [SECOND // 2]


@pytest.mark.parametrize("call", SPANS)
def test_a_time_is_no_span(call: str) -> None:
    with LocalWheel(64) as wheel:
        timers = wheel.worker(0)
        with pytest.raises(ValueError, match=r"no time zone.*datetime\.now\(UTC\)"):
            SPANS[call](timers, NAIVE)
        if "many" in call:  # as other things that are in no array of numbers
            with pytest.raises(ValueError, match="delays: got dtype object"):
                SPANS[call](timers, datetime.now(UTC))
        else:
            with pytest.raises(TypeError, match=r"a timedelta: got datetime.*schedule_at"):
                SPANS[call](timers, datetime.now(UTC))
        for negative in (-HALF, timedelta.min):
            with pytest.raises(InvalidDelay):
                SPANS[call](timers, negative)
        assert set(deadlines(wheel)) <= {9 * SECOND}


def test_what_is_neither_is_refused_by_name() -> None:
    with LocalWheel(64) as wheel:
        timers = wheel.worker(0)
        for wrong in ("1", None, [1.0], date(2026, 1, 1)):
            for name, call in {
                "delay": timers.schedule,
                "interval": lambda given: timers.schedule(1.0, interval=given or "1"),
                "jitter": lambda given: timers.schedule(1.0, jitter=given),
                "when": timers.schedule_at,
            }.items():
                with pytest.raises(TypeError, match=f"{name}: got .*, expected seconds: a number"):
                    call(wrong)
        assert timers.pending == 0


def test_the_longest_timedelta_is_the_end_of_time() -> None:
    with LocalWheel(64) as wheel:
        wheel.worker(0).schedule(timedelta.max)
        assert deadlines(wheel) == [2**63 - 1]


def test_a_subclass_with_seconds_of_its_own() -> None:
    class Nanoseconds(timedelta):
        def total_seconds(self) -> float:
            return 0.25

    with LocalWheel(64) as wheel:
        wheel.worker(0).schedule(Nanoseconds(days=1))
        assert deadlines(wheel) == [SECOND // 4]


def test_intervals_and_timeouts() -> None:
    with LocalWheel(64) as wheel:
        timers = wheel.worker(0)
        timers.schedule(HALF, 5, interval=HALF)
        for _ in range(3):
            wheel.advance(SECOND // 2)
            assert timers.poll(timedelta(0))["cookie"].tolist() == [5]
        before = time.monotonic()
        assert len(timers.poll(timedelta(milliseconds=2))) == 0
        assert len(timers.dispatch(timedelta(milliseconds=2))) == 0
        assert time.monotonic() - before >= 0.004
        assert DelayedOperation(HALF).timeout == 0.5


def test_arrays_of_them() -> None:
    with LocalWheel(64) as wheel:
        timers = wheel.worker(0)
        timers.schedule_many([HALF, 1, 1.5])
        timers.schedule_many(np.array([2000, 2500], "m8[ms]"))
        assert deadlines(wheel) == [n * SECOND // 2 for n in range(1, 6)]
        with pytest.raises(InvalidDelay, match=re.escape("delays[1]")):
            timers.schedule_many(np.array([1, "NaT"], "m8[s]"))
        with pytest.raises(ValueError, match="no time zone"):
            timers.schedule_many([1.0, NAIVE])
        with pytest.raises(ValueError, match="datetime64"):
            timers.schedule_many(np.array(["2026-01-01"], "M8[s]"))
        assert timers.pending == 5


@pytest.mark.parametrize("unit", ["ns", "us", "ms", "s", "m"])
@pytest.mark.parametrize("call", ARMING)
def test_a_timedelta_of_numpy_is_its_seconds(call: str, unit: str) -> None:
    """As a number it counts its own unit: a minute in ns would be a thousand years."""
    with LocalWheel(64) as wheel:
        ARMING[call](wheel.worker(0), np.timedelta64(1, "m").astype(f"m8[{unit}]"))
        assert deadlines(wheel) == [60 * SECOND]


@pytest.mark.parametrize("call", SPANS)
def test_what_is_no_span_of_numpy(call: str) -> None:
    with LocalWheel(64) as wheel:
        timers = wheel.worker(0)
        for wrong in (np.timedelta64("NaT"), np.datetime64("2026-01-01")):
            with pytest.raises((TypeError, ValueError), match="got"):
                SPANS[call](timers, wrong)
        assert set(deadlines(wheel)) <= {9 * SECOND}


def test_other_spans_of_numpy() -> None:
    half = np.timedelta64(500_000_000, "ns")
    with LocalWheel(64) as wheel:
        timers = wheel.worker(0)
        timers.schedule(half, key="k", interval=half)
        found = timers.find("k")
        assert found is not None
        assert (found.interval, found.remaining) == (0.5, 0.5)
        assert len(timers.poll(np.timedelta64(1, "us"))) == 0
        assert DelayedOperation(half).timeout == 0.5


# -- points in time -------------------------------------------------------------------------------


@pytest.mark.parametrize("zone", [UTC, EAST])
def test_schedule_at_a_datetime(zone: timezone) -> None:
    with LocalWheel(64) as wheel:
        timers = wheel.worker(0)
        when = datetime(2026, 3, 29, 2, 30, 0, 123_457, tzinfo=zone)
        for clock in (None, "realtime"):
            timers.schedule_at(when, clock=clock)
        exact = (when - EPOCH) // timedelta(microseconds=1) * 1000
        assert deadlines(wheel) == [exact, exact]
        assert clocks(wheel) == ["realtime", "realtime"]
        assert exact / 1e9 == pytest.approx(when.timestamp())


def test_nanoseconds_of_pandas_are_never_early() -> None:
    with LocalWheel(64) as wheel:
        timers = wheel.worker(0)
        timers.schedule_at(pandas.Timestamp(SECOND + 999, unit="ns", tz="UTC"))
        timers.schedule_at(pandas.Timestamp(2 * SECOND + 1999, unit="ns", tz="Asia/Kathmandu"))
        assert deadlines(wheel) == [SECOND + 999, 2 * SECOND + 1999]
        for wrong in (pandas.Timestamp("2026-01-01"), pandas.NaT, np.datetime64("2026-01-01")):
            with pytest.raises((TypeError, ValueError), match=r"time|NaT"):
                timers.schedule_at(wrong)
        assert timers.pending == 2


@pytest.mark.parametrize("call", ARMING)
def test_a_span_of_pandas_keeps_its_nanoseconds(call: str) -> None:
    spans = [1, 999, SECOND + 1, SECOND + 999, 7 * SECOND + 123_456_789]
    with LocalWheel(64) as wheel:
        timers = wheel.worker(0)
        for span in spans:
            ARMING[call](timers, pandas.Timedelta(span, unit="ns"))
        assert deadlines(wheel) == spans


def test_what_is_no_time_of_the_wall_clock() -> None:
    with LocalWheel(64) as wheel:
        timers = wheel.worker(0)
        with pytest.raises(ValueError, match=r"no time zone.*datetime\.now\(UTC\)"):
            timers.schedule_at(NAIVE)
        for clock in ("monotonic", "boottime"):
            with pytest.raises(ValueError, match=f"{clock}.*realtime"):
                timers.schedule_at(datetime.now(UTC), clock=clock)
        with pytest.raises(InvalidDelay, match="0 or more"):
            timers.schedule_at(datetime(1969, 12, 31, tzinfo=UTC))
        with pytest.raises(TypeError, match="point in time"):
            timers.schedule_at(HALF)  # type: ignore[arg-type]
        assert timers.pending == 0
        timers.schedule_at(datetime.max.replace(tzinfo=UTC))
        assert deadlines(wheel) == [2**63 - 1]


# -- asyncio --------------------------------------------------------------------------------------


@with_timers
async def test_spans_on_a_loop(timers: AsyncTimers, time: Time) -> None:
    called: list[int] = []
    timers.call_later(HALF, called.append, 1)
    moved = timers.call_later(9.0, called.append, 2)
    assert moved.reschedule(HALF)
    assert moved.when() == pytest.approx(timers.timers.now_ns() / 1e9 + 0.5)
    timers.call_later(-HALF, called.append, 0)
    sleeper = asyncio.create_task(timers.sleep(HALF, "slept"))
    limited = asyncio.create_task(timers.wait_for(asyncio.Event().wait(), HALF))
    await ripple()
    time.jump(499)
    await ripple()
    assert (called, sleeper.done(), limited.done()) == ([0], False, False)
    time.jump(1)
    await ripple()
    assert (called, await sleeper) == ([0, 1, 2], "slept")
    with pytest.raises(TimeoutError):
        await limited
    with pytest.raises(TimeoutError):
        await timers.wait_for(asyncio.sleep(1), timedelta(0))


@with_timers
async def test_datetimes_on_a_loop(timers: AsyncTimers, time: Time) -> None:
    def soon(seconds: float) -> datetime:  # a virtual wall clock began at 1970
        return EPOCH.astimezone(EAST) + timedelta(seconds=timers.timers.now_ns() / 1e9 + seconds)

    called: list[int] = []
    handle = timers.call_at(soon(0.5), called.append, 1)
    assert handle.when() == pytest.approx(timers._time() + 0.5, abs=0.001)
    async with timers.timeout_at(soon(0.5)) as limit:
        limit.reschedule(soon(2.0))
        time.jump(501)
        await ripple()
        assert called == [1]
    assert not limit.expired()
    with pytest.raises(TimeoutError):
        async with timers.timeout_at(soon(-1.0)):
            await asyncio.Event().wait()


@with_timers
async def test_refused_on_a_loop(timers: AsyncTimers, time: Time) -> None:
    for call in (timers.timeout_at, lambda when: timers.call_at(when, list)):
        with pytest.raises(ValueError, match="no time zone"):
            call(NAIVE)
        with pytest.raises(TypeError, match="point in time"):
            call(HALF)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="a timedelta"):
        timers.timeout(datetime.now(UTC))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="no time zone"):
        await timers.sleep(NAIVE)  # type: ignore[arg-type]
    async with timers.timeout(HALF) as limit:
        with pytest.raises(ValueError, match="no time zone"):
            limit.reschedule(NAIVE)
        assert limit.when() == pytest.approx(timers._time() + 0.5, abs=0.001)


# -- the rest of the client -----------------------------------------------------------------------


def test_words_and_deadlines(keeping: str) -> None:
    expired: list[str] = []
    with connect(keeping, timeout=timedelta(seconds=5), reconnect_for=timedelta(0)) as timers:
        deadlines = Deadlines(timers, "spans", expired.append)
        deadlines.start("a", HALF)
        assert deadlines.remaining("a") == pytest.approx(0.5, abs=0.001)
        assert deadlines.extend("a", 3 * HALF)
        assert deadlines.remaining("a") == pytest.approx(1.5, abs=0.001)
        for wrong in (timedelta(0), -HALF):
            with pytest.raises(InvalidDelay):
                deadlines.extend("a", wrong)
        outcomes: list[Any] = []
        Watermarks(timers, "spans").when("k", 1, outcomes.append, HALF)
        wheeld.advance(keeping, timedelta(seconds=2))
        while not (expired and outcomes):
            timers.dispatch(HALF)
        assert (expired, outcomes) == (["a"], [False])
        deadlines.close()


def test_pools(daemon: str) -> None:
    with connect(daemon) as timers:
        pool = MemoryPool(timers, "requests")
        with pool.allocate(1 << 20, HALF):
            assert not pool.wait_available(timedelta(milliseconds=1))
            with pytest.raises(TimeoutError):
                pool.allocate(1, timedelta(milliseconds=1))
        assert pool.wait_available(HALF)
        assert pool.depleted_over(HALF) >= 0.0


def test_options_and_limits() -> None:
    assert limit_of(HALF) == 0.5
    limit = limits_of(lambda request: request)
    assert [limit(HALF), limit(-HALF), limit(-1), limit(None)] == [0.5, 0.0, 0.0, None]
    with pytest.raises(ValueError, match=r"seconds=.*0 or more"):
        limit_of(-HALF)
    with pytest.raises(ValueError, match="timeout="):
        ProcessTimers(timeout=timedelta(0))
    ProcessTimers(timeout=HALF, reconnect_for=HALF)


def test_a_daemons_options() -> None:
    with (
        wheeld.embedded(capacity=64, virtual_clock=True, keep_for=timedelta(minutes=5)) as daemon,
        connect(daemon) as timers,
    ):
        assert timers.keep_for == 300.0
