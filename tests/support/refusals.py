"""Calls that are refused, and change nothing."""

from collections.abc import Callable
from typing import Any

import pytest

from local_wheel import LocalTimers, LocalWheel

Call = Callable[[LocalTimers], Any]


def two_timers(wheel: LocalWheel) -> LocalTimers:
    timers = wheel.worker(0)
    timers.schedule_many([1.0, 2.0])
    wheel.settle()
    return timers


def refused(timers: LocalTimers, call: Call, error: type[Exception], *words: str) -> None:
    wheel_before = timers._wheel.counters()
    before = {**timers.stats(), "wheel": None}
    with pytest.raises(error) as caught:
        call(timers)
    for word in words:
        assert word in str(caught.value), (word, str(caught.value))
    assert {**timers.stats(), "wheel": None} == before
    assert timers._wheel.counters() == wheel_before
