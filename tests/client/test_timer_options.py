"""The options of a timer are the same for every call that arms timers, one or many."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, get_type_hints

import pytest

from local_wheel import SECOND, LocalTimers, LocalWheel
from wheeld_core.errors import InvalidDelay
from wheeld_core.timer_options import SharedOptions, TimerOptions

Arm = Callable[..., Any]
ONE: dict[str, Callable[[LocalTimers], Arm]] = {
    "schedule": lambda t: lambda **options: t.schedule(1.0, 7, **options),
    "schedule_at": lambda t: lambda **options: t.schedule_at(1.0, 7, **options),
}
MANY: dict[str, Callable[[LocalTimers], Arm]] = {
    "schedule_many": lambda t: lambda **options: t.schedule_many([1.0], 7, **options),
    "schedule_at_many": lambda t: lambda **options: t.schedule_at_many([SECOND], 7, **options),
}
ALL = ONE | MANY


@pytest.mark.parametrize("call", ALL)
def test_each_call_takes_each_option(call: str) -> None:
    with LocalWheel(64) as wheel:
        timers, other = wheel.worker(0), wheel.worker(1, "other")
        given: dict[str, Any] = {"interval": 1.0, "to": "other", "block": False}
        given |= {"detached": False, "keep": False}  # test_detached.py, with a daemon
        given |= {"key_until": "fired"}  # test_held_keys.py
        assert given.keys() == get_type_hints(SharedOptions).keys()
        arm = ALL[call](timers)
        arm(**given)
        for _ in range(3):
            wheel.advance(SECOND)
            assert other.poll(0.0)["cookie"].tolist() == [7]
        assert len(timers.poll(0.0)) == 0


@pytest.mark.parametrize("call", ONE)
def test_calls_of_one_timer_take_a_payload(call: str) -> None:
    with LocalWheel(64, payload_bytes=8) as wheel:
        timers = wheel.worker(0)
        assert get_type_hints(TimerOptions).keys() - get_type_hints(SharedOptions) == {
            "payload", "key", "on_conflict"
        }  # fmt: skip
        ALL[call](timers)(payload=b"abc")
        wheel.advance(SECOND)
        (event,) = timers.poll(0.0)
        assert event["payload"].tobytes()[: event["payload_size"]] == b"abc"


@pytest.mark.parametrize("call", ALL)
def test_wrong_options_are_named_by_the_public_call(call: str) -> None:
    with LocalWheel(64) as wheel:
        timers = wheel.worker(0)
        arm = ALL[call](timers)
        with pytest.raises(TypeError, match=rf"{call}\(\) got an unexpected keyword .*'by'"):
            arm(by="x")
        with pytest.raises(InvalidDelay, match="interval must be above 0"):
            arm(interval=0.0)
        with pytest.raises(ValueError, match="no worker of that name"):
            arm(to="nobody")
        assert timers.pending == 0
