"""An error names, in this library's words, the option or the call, its value, and the expected one,
however large a number is."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import wheeld
from wheeld_client import (
    Deadlines,
    Intake,
    Jobs,
    Lease,
    MemoryPool,
    Observer,
    Purgatory,
    RateLimit,
    Semaphore,
    Timers,
    Watermarks,
    connect,
)
from wheeld_client.integrations.process import ProcessTimers
from wheeld_core.errors import WheelError

HUGE = 10**5000
FOREIGN = re.compile(
    r"__init__|must be real number|cannot be interpreted|not iterable|argument \d|"
    r"not supported between|set_int_max_str_digits|unsupported operand"
)
Call = Callable[[Timers], object]


def start_deadline(_: Timers) -> None:
    with wheeld.embedded() as daemon, connect(daemon) as timers:  # it takes a row for detached ones
        Deadlines(timers, "d", print).start("k", "x")  # type: ignore[arg-type]


REFUSED: dict[str, tuple[Call, str]] = {
    "Jobs(nope=)": (lambda t: Jobs("q", nope=1), r"connect\(\) .*'nope'"),
    "Jobs(visibility=)": (lambda t: Jobs("q", visibility="x"), "visibility: got 'x'"),  # type: ignore[arg-type]
    "Jobs(daemon=)": (lambda t: Jobs("q", daemon=5), "name: got int"),  # type: ignore[arg-type]
    "Jobs(runtime_dir=)": (lambda t: Jobs("q", runtime_dir=5), "runtime_dir: got int"),
    "every(retrys=)": (lambda t: Jobs("q").every(1, retrys=1), r"every\(\) .*'retrys'.*retries"),
    "task(retrys=)": (lambda t: Jobs("q").task(retrys=1), r"task\(\) .*'retrys'"),
    "every(jitter=)": (lambda t: Jobs("q").every(1, jitter="x"), "jitter: got 'x'"),
    "every(jitter=None)": (lambda t: Jobs("q").every(1, jitter=None), "jitter: got None"),
    "every(backoff=None)": (lambda t: Jobs("q").every(1, backoff=None), "backoff: got None"),
    "every(at_most_once=)": (lambda t: Jobs("q").every(1, at_most_once="no"), "at_most_once='no'"),
    "every(period)": (lambda t: Jobs("q").every("x"), "period: got 'x'"),  # type: ignore[arg-type]
    "job.schedule()": (lambda t: Jobs("q").task(lambda a: a).schedule(1), "job '.*lambda.*'a'"),
    "ProcessTimers(nope=)": (lambda t: ProcessTimers(nope=1), r"connect\(\) .*'nope'.*worker"),
    "Observer(HUGE)": (lambda t: Observer(HUGE), "name: got int"),  # type: ignore[arg-type]
    "schedule(delay)": (lambda t: t.schedule("x"), "delay: got 'x'"),  # type: ignore[arg-type]
    "schedule(cookie=)": (lambda t: t.schedule(1, 1.5), "cookie: got 1.5"),  # type: ignore[arg-type]
    "schedule(times=)": (lambda t: t.schedule(1, interval=1, times=True), "times=True"),
    "poll(max_events)": (lambda t: t.poll(0, "x"), "max_events: got 'x'"),  # type: ignore[call-overload]
    "Lease(seconds)": (lambda t: Lease(t, "l", "x"), "seconds: got 'x'"),  # type: ignore[arg-type]
    "Semaphore(count)": (lambda t: Semaphore(t, "s", HUGE), "count=an int of about 5001 digits"),
    "RateLimit(per)": (lambda t: RateLimit(t, "r", 1, "x"), "per: got 'x'"),  # type: ignore[arg-type]
    "RateLimit.acquire": (lambda t: RateLimit(t, "r", 1, 1).acquire("x"), "timeout: got 'x'"),  # type: ignore[arg-type]
    "try_acquire(n)": (lambda t: RateLimit(t, "r", 1, 1).try_acquire("x"), "n: got 'x'"),  # type: ignore[arg-type]
    "Deadlines.start": (start_deadline, "timeout: got 'x'"),  # type: ignore[arg-type]
    "Watermarks.advance": (lambda t: Watermarks(t, "w").advance("k", "x"), "value: got 'x'"),  # type: ignore[arg-type]
    "Watermarks.advance(-1)": (lambda t: Watermarks(t, "w-1").advance("k", -1), "value: got -1"),
    "Watermarks.wait_until": (
        lambda t: Watermarks(t, "w-2").wait_until("k", "x", 0.0),  # type: ignore[arg-type]
        "value: got 'x'",
    ),
    "check(5)": (lambda t: Purgatory(t, "p").try_complete_else_watch(None, 5), "keys: got 5|op: "),  # type: ignore[arg-type]
    "MemoryPool(name)": (lambda t: MemoryPool(t, 5), "name: got int"),  # type: ignore[arg-type]
    "allocate(size)": (lambda t: MemoryPool(t, "q").allocate("x"), "size: got 'x'"),  # type: ignore[arg-type]
    "depleted_over": (lambda t: MemoryPool(t, "q").depleted_over(-HUGE), "about 5001 digits"),
    "Intake(max_requests=)": (
        lambda t: Intake(MemoryPool(t, "q"), print, max_requests=-HUGE),  # type: ignore[arg-type]
        "max_requests=an int of about 5001 digits",
    ),
    "embedded(name=)": (lambda t: wheeld.embedded(name=5).__enter__(), "name: got int"),  # type: ignore[arg-type]
    "embedded(capacity=)": (lambda t: wheeld.embedded(capacity=HUGE).__enter__(), "capacity"),
}


@pytest.fixture(scope="module")
def timers() -> Iterator[Timers]:
    with wheeld.embedded(pools=["q=1000"], payload_bytes=16) as daemon, connect(daemon) as found:
        yield found


@pytest.mark.parametrize("call", REFUSED)
def test_the_refusal_names_what_was_wrong(timers: Timers, call: str) -> None:
    wrong, message = REFUSED[call]
    with pytest.raises(Exception, match=message) as refused:
        wrong(timers)
    assert isinstance(refused.value, (TypeError, ValueError, OverflowError, WheelError))
    assert not FOREIGN.search(str(refused.value))
    assert timers.pending == 0


def test_a_wrong_option_is_one_of_a_type(timers: Timers) -> None:
    for arguments in ({"timeout": "x"}, {"reconnect_for": []}, {"runtime_dir": 5}):
        options: Any = arguments
        with pytest.raises(TypeError, match=f"{next(iter(arguments))}.*expected"):
            connect(str(timers.directory), **options)
