"""Wrong arguments and full wheels: each refused by name, and nothing of the call was done."""

import subprocess
import sys
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from common_fixtures import local_wheel
from local_wheel import LocalTimers, LocalWheel
from refusals import Call, refused, two_timers
from wheeld_client import (
    DelayedOperation,
    InvalidDelay,
    MemoryPool,
    PayloadTooLarge,
    Purgatory,
    WheelError,
    payload_of,
)
from wheeld_client.connection.options import ConnectOptions
from wheeld_core.arguments import step_ns

wheel = local_wheel(128, 2, payload_bytes=8)
timers = pytest.fixture(two_timers)


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize("value", [NAN, INF, -INF, -1.0, -1e-300, -5])
def test_bad_delays(timers: LocalTimers, value: float) -> None:
    shown = repr(value)
    calls: list[tuple[Call, str]] = [
        (lambda t: t.schedule(value), "delay"),
        (lambda t: t.schedule(delay=value), "delay"),
        (lambda t: t.schedule(1.0, interval=value), "interval"),
        (lambda t: t.reschedule(1 << 32, value), "delay"),
        (lambda t: t.poll(value), "timeout"),
        (lambda t: t.schedule_at(value), "when"),
        (lambda t: t.call_later(value, print), "delay"),
        (lambda t: t.dispatch(value), "timeout"),
    ]
    for call, what in calls:
        refused(timers, call, InvalidDelay, what, shown)
    with pytest.raises(ValueError):  # InvalidDelay is one
        timers.schedule(value)
    refused(
        timers, lambda t: t.schedule_many([1.0, float(value), 2.0]), InvalidDelay,
        "delays[1]", repr(float(value)), "nothing",
    )  # fmt: skip


def test_interval_of_zero(timers: LocalTimers) -> None:
    for interval in (0, 0.0, 1e-10, -0.0):
        refused(timers, lambda t: t.schedule(1.0, interval=interval), InvalidDelay, "interval")  # noqa: B023
    refused(timers, lambda t: t.schedule_many([1.0], interval=0.0), InvalidDelay, "interval")


WRONG_TYPES: list[Call] = [
    lambda t: t.schedule(),
    lambda t: t.schedule("1"),
    lambda t: t.schedule(None),
    lambda t: t.schedule(1j),
    lambda t: t.schedule(1.0, "cookie"),
    lambda t: t.schedule(1.0, 1.5),
    lambda t: t.schedule(1.0, None),
    lambda t: t.schedule(1.0, 1, 2),
    lambda t: t.schedule(1.0, payload="text"),
    lambda t: t.schedule(1.0, payload=3),
    lambda t: t.schedule(1.0, to=3),
    lambda t: t.schedule(1.0, to=b"w1"),
    lambda t: t.schedule(1.0, to=["w1"]),
    lambda t: t.schedule(1.0, interval="1"),
    lambda t: t.schedule(1.0, delay=2.0),
    lambda t: t.schedule(1.0, nonsense=2.0),
    lambda t: t.schedule_at("noon"),
    lambda t: t.cancel(),
    lambda t: t.cancel("1"),
    lambda t: t.cancel(1.0),
    lambda t: t.cancel(None),
    lambda t: t.reschedule(1),
    lambda t: t.reschedule("1", 1.0),
    lambda t: t.reschedule(1, "1"),
    lambda t: t.reschedule(1, 1.0, 1.0),
    lambda t: t.poll("1"),
    lambda t: t.poll(0.0, "1"),
    lambda t: t.poll(0.0, 1.5),
    lambda t: t.poll(0.0, None, 1),
    lambda t: t.poll(nonsense=1),
]


def test_a_receiver_is_text(timers: LocalTimers) -> None:
    for wrong in (3, b"w1", ["w1"]):
        refused(timers, lambda t, to=wrong: t.schedule(1.0, to=to), TypeError, "to=", "a str")
    refused(timers, lambda t: t.schedule(1.0, to="\ud800"), ValueError, "to=", "surrogates")


@pytest.mark.parametrize("number", range(len(WRONG_TYPES)))
def test_wrong_types(timers: LocalTimers, number: int) -> None:
    refused(timers, WRONG_TYPES[number], TypeError)


EVENTS = np.zeros(2, [("timer_id", "u8"), ("payload_size", "u4")])
NO_IDS = [
    None,
    True,
    1.5,
    "1",
    b"1",
    1j,
    object(),
    {1: 2},
    np.float64(1),
    np.zeros(1, [("id", "u8")]),
]
BY_ID: dict[str, Call] = {
    "cancel": lambda t: t.cancel,
    "cancel at once": lambda t: lambda id: t.cancel(id, block=False),
    "reschedule": lambda t: lambda id: t.reschedule(id, 1.0),
    "reschedule every": lambda t: lambda id: t.reschedule(id, 1.0, interval=1.0),
    "pause": lambda t: t.pause,
    "resume": lambda t: t.resume,
}
BY_EVENT: dict[str, Call] = {
    "acknowledge": lambda t: t.acknowledge,
    "acknowledge several": lambda t: lambda event: t.acknowledge([EVENTS[0], event]),
    "nack": lambda t: t.nack,
}


@pytest.mark.parametrize("wrong", NO_IDS, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("call", [*BY_ID, *BY_EVENT])
def test_what_is_no_id(timers: LocalTimers, call: str, wrong: Any) -> None:
    """One rule: an int, of numpy too, that no timer has is not found; anything else is an error."""
    use = (BY_ID | BY_EVENT)[call](timers)
    for id in (0, 2**70, -1, np.int64(-1), np.uint64(7)):
        assert not use(id)
    says = ("got",) if not hasattr(wrong, "__index__") and wrong is not None else ()
    refused(timers, lambda t: use(wrong), TypeError, *says)


@pytest.mark.parametrize("call", BY_ID)
def test_an_event_is_no_id(timers: LocalTimers, call: str) -> None:
    refused(timers, lambda t: BY_ID[call](t)(EVENTS[0]), TypeError, "timer_id", "got")


def test_what_is_an_event(timers: LocalTimers) -> None:
    """One, several, an array of them, ids, or a mixture; what is wrong is found first."""
    for several in (EVENTS, EVENTS[0], [EVENTS[0], 7], (7, np.uint64(8)), np.array([7, 8]), []):
        assert timers.acknowledge(several) == 0
    wrong: Call
    for wrong in (
        lambda t: t.nack(EVENTS),
        lambda t: t.nack([]),
        lambda t: t.acknowledge(EVENTS[0], EVENTS[1]),
        lambda t: t.acknowledge([7, [8, 1.5]]),
        lambda t: t.key_of(7),
        lambda t: t.key_of(EVENTS),
        lambda t: t.find(1.5),
        lambda t: t.remaining(EVENTS[0]),
    ):
        refused(timers, wrong, TypeError)


def test_nothing_is_acknowledged_beside_what_is_wrong() -> None:
    with LocalWheel(64, 2) as wheel:
        timers = wheel.worker(0, group="g")
        wheel.set_member(0, "g", joins=True)
        timers.schedule(0.0, to="group:g")
        wheel.settle()
        (event,) = timers.poll(0.0, hold=True)
        with pytest.raises(TypeError, match=r"got 1\.5"):
            timers.acknowledge([event, 1.5])
        with pytest.raises(TypeError, match=r"got 1\.5"):
            timers.nack(1.5)
        assert timers.acknowledge(event) == 1


def test_none_stands_for_absent_in_options(timers: LocalTimers) -> None:
    assert timers.schedule(1.0, 0, interval=None, to=None)
    assert len(timers.poll(0.0, max_events=None)) == 0


@pytest.mark.parametrize("value", [-1, 2**64, -(2**70)])
def test_numbers_out_of_range(timers: LocalTimers, value: int) -> None:
    refused(timers, lambda t: t.schedule(1.0, value), ValueError, "cookie", str(value))
    refused(timers, lambda t: t.schedule(1.0, cookie=value), ValueError, "cookie", str(value))
    refused(timers, lambda t: t.schedule_many([1.0], value), ValueError, "cookie", str(value))
    refused(timers, lambda t: t.schedule_at(1.0, value), ValueError, "cookie", str(value))
    refused(timers, lambda t: t.poll(0.0, value), ValueError, "max_events", str(value))


BATCHES: list[tuple[str, Call, tuple[str, ...]]] = [
    ("text", lambda t: t.schedule_many(["1"]), ("<U1", "float64")),
    ("objects", lambda t: t.schedule_many([None, 1.0]), ("object", "float64")),
    ("bools", lambda t: t.schedule_many([True]), ("bool", "float64")),
    ("complex", lambda t: t.schedule_many([1j]), ("complex128", "float64")),
    ("table", lambda t: t.schedule_many([[1.0], [2.0]]), ("(2, 1)", "(n,)")),
    ("scalar", lambda t: t.schedule_many(1.0), ("()", "(n,)")),
    ("cookies long", lambda t: t.schedule_many([1.0], [1, 2]), ("(2,)", "(1,)")),
    ("cookies short", lambda t: t.schedule_many([1.0, 2.0], [1]), ("(1,)", "(2,)")),
    ("cookies none", lambda t: t.schedule_many([1.0, 2.0], []), ("(0,)", "(2,)")),
    ("cookies float", lambda t: t.schedule_many([1.0], [1.5]), ("float64", "uint64")),
    ("cookies negative", lambda t: t.schedule_many([1.0], [-1]), ("cookies", "-1")),
    ("cookies table", lambda t: t.schedule_many([1.0], [[1]]), ("(1, 1)", "(n,)")),
    ("ids float", lambda t: t.cancel_many([1.5]), ("float64", "uint64")),
    ("ids text", lambda t: t.cancel_many(["a"]), ("<U1", "uint64")),
    ("ids table", lambda t: t.cancel_many([[1, 2]]), ("(1, 2)", "(n,)")),
    ("moves short", lambda t: t.reschedule_many([1, 2], [1.0]), ("(1,)", "(2,)")),
    ("moves scalar", lambda t: t.reschedule_many([1], 1.0), ("()", "(n,)")),
    ("moves text", lambda t: t.reschedule_many([1], ["a"]), ("<U1", "float64")),
    ("payloads text", lambda t: t.schedule_many([1.0], payloads=["a"]), ("<U1", "S or V")),
    ("payloads long", lambda t: t.schedule_many([1.0], payloads=[b"a", b"b"]), ("(2,)", "(1,)")),
    ("payloads objects", lambda t: t.schedule_many([1.0], payloads=[None]), ("object", "S or V")),
]


@pytest.mark.parametrize("case", BATCHES, ids=lambda case: case[0])
def test_bad_batches(timers: LocalTimers, case: tuple[str, Call, tuple[str, ...]]) -> None:
    refused(timers, case[1], ValueError, *case[2])


def test_native_batch_calls_check_lengths_themselves(timers: LocalTimers) -> None:
    ids, one, two = np.empty(2, np.uint64), np.ones(1), np.ones(2)
    calls: list[Call] = [
        lambda t: t._schedule_batch(two, 0, ids[:1], None, 0),
        lambda t: t._schedule_batch(two, np.ones(1, np.uint64), ids, None, 0),
        lambda t: t._schedule_batch(two, 0, ids, np.array([b"ab"]), 2),
        lambda t: t._schedule_batch(two.astype(np.float32), 0, ids, None, 0),
        lambda t: t._schedule_batch(two, 0, ids.astype(np.uint32), None, 0),
        lambda t: t._cancel_batch(ids, np.empty(1, np.bool_)),
        lambda t: t._cancel_batch(ids.astype(np.uint32), np.empty(2, np.bool_)),
        lambda t: t._reschedule_batch(ids, one, np.empty(2, np.bool_)),
        lambda t: t._reschedule_batch(ids, two, np.empty(1, np.bool_)),
        lambda t: t._schedule_ns(0, 3, 0),
    ]
    for call in calls:
        refused(timers, call, ValueError)
    read_only = np.empty(1, np.uint64)
    read_only.flags.writeable = False
    refused(timers, lambda t: t._schedule_batch(one, 0, read_only, None, 0), Exception)


@pytest.mark.parametrize("extra", [1, 100, 10**6])
def test_payload_too_large(timers: LocalTimers, extra: int) -> None:
    text = bytes(8 + extra)
    words = (str(len(text)), "8", "payload-bytes")
    refused(timers, lambda t: t.schedule(1.0, payload=text), PayloadTooLarge, *words)
    refused(timers, lambda t: t.schedule_at(1.0, payload=text), PayloadTooLarge, *words)
    rows = np.array([text]).view(f"V{len(text)}")
    refused(timers, lambda t: t.schedule_many([1.0], payloads=rows), PayloadTooLarge, *words)
    assert issubclass(PayloadTooLarge, ValueError)


def test_payload_where_there_is_no_room_at_all() -> None:
    with LocalWheel() as wheel:
        timers = wheel.worker(0)
        assert timers.schedule(1.0, payload=b"")
        refused(
            timers, lambda t: t.schedule(1.0, payload=b"x"), PayloadTooLarge, "1 bytes", "0 per"
        )


@pytest.mark.parametrize(
    "name", ["nobody", "", "w", "w00", "w1 ", "w1\0", "w" * 64, "w1" * 50, "ä"]
)
def test_unknown_target(wheel: LocalWheel, timers: LocalTimers, name: str) -> None:
    wheel.worker(1)
    refused(timers, lambda t: t.schedule(1.0, to=name), ValueError, "to=", repr(name))
    refused(timers, lambda t: t.schedule_many([1.0], to=name), ValueError, "to=")
    assert timers.schedule(1.0, to="w1")


def test_objects_that_were_never_connected() -> None:
    program = """
from wheeld_core import _native
worker = _native.Worker()
clock = _native.Clock.__new__(_native.Clock)
calls = [
    lambda: worker.schedule(1.0), lambda: worker.cancel(1), lambda: worker.poll(),
    lambda: worker.reschedule(1, 1.0), lambda: worker.pending, lambda: worker.fileno(),
    lambda: worker.now_ns(), lambda: worker._counters(), lambda: worker._close(),
    lambda: worker._cancel_batch(b"", b""), lambda: worker._schedule_ns(1, 0, 0),
    lambda: clock.attach(0, 1, b"", 0), lambda: clock.detach(0), lambda: clock.forget(0),
    lambda: clock.check(), lambda: clock.advance(1), lambda: clock.set_state(1),
    lambda: clock.run(0, 0, 0),
]
for number, call in enumerate(calls):
    print(number, flush=True)
    try:
        call()
    except Exception:
        pass
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, (
        f"died of signal {-done.returncode} in call {done.stdout.split()[-1]}"
    )


def test_unknown_clock(timers: LocalTimers) -> None:
    words = ("sundial", "monotonic", "realtime", "boottime")
    refused(timers, lambda t: t.schedule_at(1.0, clock="sundial"), ValueError, *words)


class Unprintable(str):
    def __repr__(self) -> str:
        raise KeyError("of its own")


class Endless:
    def __repr__(self) -> str:
        return "x" * 10**6


UNPRINTABLE = Unprintable("nobody" * 100)
ODD_VALUES = pytest.mark.parametrize(
    "value",
    [10**5000, -(10**5000), [10**5000], UNPRINTABLE, Endless(), b"x" * 10**6],
    ids=["huge", "less", "list", "unprintable", "endless", "bytes"],
)


@ODD_VALUES
def test_messages_about_any_value(timers: LocalTimers, value: Any) -> None:
    operation = DelayedOperation(None)
    calls: list[Call] = [
        lambda t: t.schedule(value),
        lambda t: t.schedule(1.0, value),
        lambda t: t.schedule(1.0, interval=value),
        lambda t: t.schedule(1.0, to=value),
        lambda t: t.schedule(1.0, **{UNPRINTABLE: 1}),  # type: ignore[arg-type]
        lambda t: t.schedule_at(value),
        lambda t: t.schedule_at(1.0, clock=value),
        lambda t: t.schedule_many([value, 1]),
        lambda t: t.schedule_many([1.0], [value]),
        lambda t: t.schedule_at_many([value]),
        lambda t: t.reschedule_many([1 << 32], [value]),
        lambda t: t.call_later(value, print),
        lambda t: t.call_later(1.0, value),
        lambda t: t.poll(value),
        lambda t: t.dispatch(value),
        lambda t: payload_of(value),
        lambda t: DelayedOperation(value),
        lambda t: Purgatory(t, "odd").try_complete_else_watch(operation, [[value]]),
        lambda t: MemoryPool(t, value),
        lambda t: ConnectOptions(timeout=value),
        lambda t: ConnectOptions(group=value),
        lambda t: ConnectOptions(on_death=value),
        lambda t: step_ns(value),
    ]
    for call in calls:
        with pytest.raises((TypeError, ValueError, WheelError)) as caught:
            call(timers)
        assert "4300 digits" not in str(caught.value)
        assert len(str(caught.value)) < 500
        assert type(caught.value) is not ValueError or str(caught.value)
    timers.close()


@pytest.mark.parametrize("call", ["schedule", "schedule_at", "reschedule"])
@pytest.mark.parametrize(
    "seconds", [2**64, 10**300, np.float64(1e18), True, Fraction(1, 3), Decimal("0.25")], ids=str
)
def test_one_rule_for_a_delay_and_many(timers: LocalTimers, call: str, seconds: Any) -> None:
    getattr(timers, call)(*([timers.schedule(5.0)] if call == "reschedule" else []), seconds)
    timers.schedule_many([seconds, 1])
    timers.reschedule_many([1 << 32, 1 << 33], [1, seconds])
    with pytest.raises(InvalidDelay):
        timers.schedule_many([10**400, 1])
    with pytest.raises(InvalidDelay):
        timers.schedule(10**400)


@pytest.mark.parametrize(
    "event", [np.float64(1), np.zeros(1, "u8"), b"", None, np.zeros(1, [("a", "i4")])[0]], ids=repr
)
def test_payload_of_what_is_no_event(event: Any) -> None:
    with pytest.raises(TypeError, match="takes one expiration"):
        payload_of(event)


def test_numbers_and_payloads_that_are_none(timers: LocalTimers) -> None:
    signaling = Decimal("sNaN")
    for call in (
        lambda: timers.schedule(signaling),
        lambda: timers.schedule(1.0, interval=signaling),
        lambda: timers.reschedule(timers.schedule(5.0), signaling),
        lambda: timers.schedule_many([signaling]),
        lambda: timers.schedule_many([np.longdouble("1e4000")]),
        lambda: timers.poll(signaling),
    ):
        with pytest.raises(InvalidDelay):
            call()
    for payload in ("text", 10**5000, 1.5):
        refused(timers, lambda t, p=payload: t.schedule(1.0, payload=p), TypeError, "payload: got")
    assert len(timers.find_many(np.array(3))) == 1
