"""Arguments with code of their own: it may close, fork or call in the middle of a call."""

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from common_fixtures import local_wheel
from local_wheel import SECOND, LocalTimers, LocalWheel
from purgatory_ops import Op
from wheeld_client import ClientClosed, DelayedOperation, ForkedClient, Purgatory

wheel = local_wheel(payload_bytes=8)


@pytest.fixture
def purgatory(timers: LocalTimers) -> Purgatory:
    return Purgatory(timers, "produce")


class Number:
    """Does something when it is read, as a float or as an int; a length, too."""

    def __init__(self, value: int, does: Callable[[], object]) -> None:
        self.value, self.does = value, does

    def __float__(self) -> float:
        self.does()
        return float(self.value)

    def __index__(self) -> int:
        self.does()
        return self.value


class Rows(np.ndarray[Any, Any]):
    """An array that does something when it is asked for its length."""

    does: Callable[[], object]

    def __len__(self) -> int:
        self.does()
        return 1


def rows(does: Callable[[], object], dtype: Any, value: Any) -> Any:
    array = np.array([value], dtype).view(Rows)
    array.does = does
    return array


ID, ONE, ROOM = np.array([1 << 32], np.uint64), np.ones(1), np.empty(1, np.uint64)
TIME, DID = np.ones(1, np.int64), np.empty(1, np.bool_)
NS = np.array([5], np.int64)
Calls = dict[str, Callable[[LocalTimers, Callable[[], object]], object]]
CALLS: Calls = {
    "schedule": lambda t, do: t.schedule(Number(1, do)),
    "schedule cookie": lambda t, do: t.schedule(1.0, Number(1, do)),
    "schedule by name": lambda t, do: t.schedule(delay=Number(1, do)),
    "schedule interval": lambda t, do: t.schedule(1.0, interval=Number(1, do)),
    "schedule to": lambda t, do: t.schedule(Number(1, do), to="w0"),
    "schedule payload": lambda t, do: t.schedule(Number(1, do), payload=b"12345678"),
    "schedule_at": lambda t, do: t.schedule_at(Number(1, do)),
    "schedule_at cookie": lambda t, do: t.schedule_at(1.0, Number(1, do)),
    "schedule_at interval": lambda t, do: t.schedule_at(1.0, interval=Number(1, do), to="w0"),
    "schedule_many interval": lambda t, do: t.schedule_many([1.0], interval=Number(1, do), to="w0"),
    "call_later": lambda t, do: t.call_later(Number(1, do), print),
    "cancel": lambda t, do: t.cancel(Number(1 << 32, do)),
    "reschedule id": lambda t, do: t.reschedule(Number(1 << 32, do), 1.0),
    "reschedule delay": lambda t, do: t.reschedule(1 << 32, Number(1, do)),
    "poll": lambda t, do: t.poll(Number(0, do)),
    "poll most": lambda t, do: t.poll(0.0, Number(1, do)),
    "dispatch": lambda t, do: t.dispatch(Number(0, do)),
    "batch": lambda t, do: t._schedule_batch(rows(do, float, 1), 0, ROOM, None, 0),
    "batch cancel": lambda t, do: t._cancel_batch(rows(do, np.uint64, 1 << 32), DID),
    "batch move": lambda t, do: t._reschedule_batch(rows(do, np.uint64, 1 << 32), ONE, DID),
    "batch move at": lambda t, do: t._reschedule_batch(
        rows(do, np.uint64, 1 << 32), TIME, DID, True, True
    ),
    "batch at": lambda t, do: t._schedule_at_batch(rows(do, np.int64, 5), 0, 0, ROOM, None, 0),
}


@pytest.mark.parametrize("name", CALLS)
def test_argument_that_closes_the_client(wheel: LocalWheel, timers: LocalTimers, name: str) -> None:
    """The call has read it before it looks whether the client is open: ClientClosed. Nothing was
    armed, cancelled or moved in a slot that is another worker's by then."""
    timers.schedule(3.0)  # has the id 1 << 32
    others: list[LocalTimers] = []
    ids: list[int] = []

    def close() -> None:
        if others:
            return
        timers.close()
        assert wheel.settle() == [0]
        others.append(wheel.worker(1))
        ids.extend(others[0].schedule_many([5.0] * 1024).tolist())  # all that there is

    with pytest.raises(ClientClosed):
        CALLS[name](timers, close)
    assert others[0].pending == 1024
    wheel.advance(4 * SECOND)
    assert len(others[0].poll()) == 0
    wheel.advance(SECOND)
    assert sorted(others[0].poll()["timer_id"].tolist()) == sorted(ids)


def test_argument_that_forks(wheel: LocalWheel, timers: LocalTimers) -> None:
    parent = os.getpid()
    children: list[int] = []

    def fork() -> None:
        children.append(os.fork())

    outcome = 0
    try:
        timers.schedule(Number(1, fork))  # type: ignore[arg-type]
    except ForkedClient:
        outcome = 7
    if os.getpid() != parent:
        os._exit(outcome)
    assert os.waitstatus_to_exitcode(os.waitpid(children[0], 0)[1]) == 7
    assert (outcome, timers.pending) == (0, 1)


class Acting(int):
    """An int that does something when it is read as a key, and as a number of seconds."""

    does: Callable[[], object]

    def __int__(self) -> int:
        self.does()
        return 5

    def __float__(self) -> float:
        self.does()
        return 5.0


@pytest.mark.parametrize("end", ["close", "shutdown"])
@pytest.mark.parametrize("call", ["watch", "check", "cancel"])
def test_key_that_ends_the_purgatory(
    purgatory: Purgatory, timers: LocalTimers, call: str, end: str
) -> None:
    op = Op(1.0)
    purgatory.try_complete_else_watch(Op(1.0), [5])
    key = Acting(5)
    key.does = getattr(timers if end == "close" else purgatory, end)
    calls: dict[str, Callable[[], object]] = {
        "watch": lambda: purgatory.try_complete_else_watch(op, [key]),
        "check": lambda: purgatory.check_and_complete(key),
        "cancel": lambda: purgatory.cancel_for_key(key),
    }
    with pytest.raises(ClientClosed):
        calls[call]()
    assert (op.state, op.tries) == ("new", 0)


def test_timeout_is_read_once() -> None:
    seen: list[int] = []

    class Timeout:
        def __float__(self) -> float:
            seen.append(1)
            return float(len(seen))

    assert DelayedOperation(Timeout()).timeout == 1.0  # type: ignore[arg-type]
    assert seen == [1]


def test_timeout_that_has_the_operation_watched(purgatory: Purgatory) -> None:
    op = Op(1.0)

    class Timeout:
        def __float__(self) -> float:
            purgatory.try_complete_else_watch(op, ["k"])
            return 2.0

    with pytest.raises(ValueError, match="already in a purgatory"):
        DelayedOperation.__init__(op, Timeout())  # type: ignore[arg-type]
    assert (op.timeout, op.state) == (1.0, "waiting")
