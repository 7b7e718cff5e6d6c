"""A client is closed by one thread while another one waits inside a call of it.

Its slots are others' by the time that call goes on, and stay theirs. The waiting thread comes
back only when a forked child (the supervisor, the clock and another worker in one) has taken over
all of it: the closing thread keeps the GIL until then.
"""

import ctypes
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
import pytest

from children import in_child, start_child
from common_fixtures import fake_supervisor
from fake_supervisor import StandIn
from local_wheel import DROP, KEEP, LocalTimers, LocalWheel, take_all
from wheeld_client import ClientClosed, DaemonNotRunning, Timers, WheelFull, connect
from wheeld_client.connection import worker
from wheeld_core import control
from wheeld_core.views import record

CAPACITY: Final = 2048
RING: Final = 1024
FAR: Final = 1e6
libc: Final = ctypes.PyDLL(None)
"""Calls through it keep the GIL."""


@pytest.fixture
def no_switches() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e5)
    yield
    sys.setswitchinterval(before)


def _full_ring(wheel: LocalWheel, victim: LocalTimers) -> Any:
    return victim.schedule_many(np.full(RING, FAR))


def _all_taken(wheel: LocalWheel, victim: LocalTimers) -> Any:
    ids = victim.schedule_many(np.full(64, FAR))
    wheel.settle()
    other = wheel.worker(2)
    take_all(wheel, other)
    victim.cancel(int(ids[0]))
    victim._patience_ns = 10**9
    return ids, other


Setup = Callable[[LocalWheel, LocalTimers], Any]
Call = Callable[[LocalTimers, Any], object]


WAITS: Final[dict[str, tuple[Setup, Call]]] = {
    "schedule, room": (_full_ring, lambda victim, ids: victim.schedule(FAR)),
    "schedule_many, room": (_full_ring, lambda victim, ids: victim.schedule_many([FAR] * 300)),
    "schedule_many, room half-way": (
        lambda wheel, victim: victim.schedule_many([FAR] * (RING - 100)),
        lambda victim, ids: victim.schedule_many([FAR] * 300),
    ),
    "cancel": (_full_ring, lambda victim, ids: victim.cancel(int(ids[0]))),
    "cancel_many": (_full_ring, lambda victim, ids: victim.cancel_many(ids)),
    "cancel_many, half-way": (
        lambda wheel, victim: victim.schedule_many([FAR] * (RING - 10)),
        lambda victim, ids: victim.cancel_many(ids),
    ),
    "reschedule": (_full_ring, lambda victim, ids: victim.reschedule(int(ids[0]), 1.0)),
    "reschedule_many": (
        _full_ring,
        lambda victim, ids: victim.reschedule_many(ids, np.full(len(ids), 1.0)),
    ),
    "schedule_at_many, room": (
        _full_ring,
        lambda victim, ids: victim.schedule_at_many([10**15] * 64),
    ),
    "schedule, slots": (_all_taken, lambda victim, ids: victim.schedule(FAR)),
    "schedule_many, slots": (_all_taken, lambda victim, ids: victim.schedule_many([FAR] * 2)),
    "schedule_at_many, slots": (
        _all_taken,
        lambda victim, ids: victim.schedule_at_many([10**15] * 2),
    ),
    "poll": (_full_ring, lambda victim, ids: victim.poll(None)),
}


def _take_over(wheel: LocalWheel, leave: int) -> int:
    wheel.depart(0, leave)
    while wheel.row(0)["state"] == 3:
        wheel.settle()
    other = wheel.successor(0) if leave == KEEP else wheel.worker(0)
    return take_all(wheel, other)


def _world(wheel: LocalWheel) -> tuple[bytes, bytes]:
    return bytes(wheel.slots_memory), bytes(wheel.worker_memories[0])


@pytest.mark.parametrize("leave", [DROP, KEEP], ids=["drop", "keep"])
@pytest.mark.parametrize("case", WAITS)
def test_a_call_that_waited_leaves_all_alone(case: str, leave: int, no_switches: None) -> None:
    setup, call = WAITS[case]
    raised: list[BaseException] = []
    with LocalWheel(CAPACITY) as wheel:
        victim = wheel.worker(0)
        ids = setup(wheel, victim)

        def wait() -> None:
            try:
                call(victim, ids)
            except BaseException as error:
                raised.append(error)

        thread = threading.Thread(target=wait)
        thread.start()  # returns when it waits
        assert thread.is_alive(), raised
        victim._close()
        pid, pipe = start_child(lambda: _take_over(wheel, leave))
        assert libc.waitpid(pid, None, 0) == pid  # keeps the GIL
        before = _world(wheel)
        thread.join()
        assert _world(wheel) == before
        with open(pipe) as answer:
            assert int(answer.read()) > 0, "nothing was left to take over"
    assert [type(error) for error in raised] == [ClientClosed]


class Closer:
    """A number that has the client closed, and all that it held taken over, when it is read."""

    def __init__(self, wheel: LocalWheel, victim: LocalTimers, leave: int) -> None:
        self._close = lambda: (victim._close(), _take_over(wheel, leave))
        self._wheel = wheel
        self.after: tuple[bytes, bytes] | None = None

    def __index__(self) -> int:
        self._close()
        self.after = _world(self._wheel)
        return 1

    def __float__(self) -> float:
        return float(self.__index__())


READS: Final[dict[str, Callable[[LocalTimers, int, Any], object]]] = {
    "delay": lambda victim, id, bad: victim.schedule(bad),
    "cookie": lambda victim, id, bad: victim.schedule(1.0, bad),
    "interval": lambda victim, id, bad: victim.schedule(1.0, interval=bad),
    "cookie, then a name": lambda victim, id, bad: victim.schedule(1.0, bad, to="w0", payload=b""),
    "interval of many": lambda victim, id, bad: victim.schedule_many([1.0], interval=bad),
    "cookie at a time": lambda victim, id, bad: victim.schedule_at(1.0, bad),
    "id": lambda victim, id, bad: victim.cancel(bad),
    "delay of a move": lambda victim, id, bad: victim.reschedule(id, bad),
    "timeout": lambda victim, id, bad: victim.poll(bad),
    "max_events": lambda victim, id, bad: victim.poll(0, bad),
}


@pytest.mark.parametrize("leave", [DROP, KEEP], ids=["drop", "keep"])
@pytest.mark.parametrize("what", READS)
def test_an_argument_that_closes_the_client(what: str, leave: int) -> None:
    with LocalWheel(CAPACITY) as wheel:
        victim = wheel.worker(0)
        id = victim.schedule(FAR)
        wheel.settle()
        bad = Closer(wheel, victim, leave)
        with pytest.raises(ClientClosed):
            READS[what](victim, id, bad)
        assert bad.after is not None
        assert _world(wheel) == bad.after


def test_a_slab_that_is_not_ours_any_more_stays() -> None:
    with LocalWheel(CAPACITY) as wheel:
        worker = wheel.worker(0)
        worker.cancel_many(worker.schedule_many(np.full(256, FAR)))
        wheel.settle()
        owners = wheel.slots.owners
        owners[:] = 7 << 16 | 3
        with pytest.raises(WheelFull):
            worker.schedule(FAR)  # takes back its slots, none of whose slabs is its own
        assert (owners == 7 << 16 | 3).all()


def test_a_row_that_is_anothers() -> None:
    with LocalWheel(CAPACITY) as wheel:
        lost = wheel.worker(0)
        id = lost.schedule(FAR)
        wheel.depart(0)
        assert wheel.settle() == [0]
        other = wheel.worker(0)
        other.schedule_many(np.full(64, FAR))
        before = _world(wheel)
        for call in (lambda: lost.schedule(FAR), lambda: lost.cancel(id), lost.poll):
            with pytest.raises(
                DaemonNotRunning, match=r"no longer serves this worker.*connect\(\)"
            ):
                call()
        assert _world(wheel) == before


@pytest.mark.parametrize("_again", range(8))  # the thread may be gone before the fork
def test_closed_before_a_fork_is_closed_in_the_child(no_switches: None, _again: int) -> None:
    with LocalWheel(64) as wheel:
        victim = wheel.worker(0)

        def wait() -> None:
            with pytest.raises(ClientClosed):
                victim.poll(60.0)

        thread = threading.Thread(target=wait)
        thread.start()
        row = record(wheel.worker_memories[0], "worker")
        while not int(row["wait_seq"]) & 1:
            time.sleep(0.001)
        victim.close()
        assert in_child(lambda: victim._state) == "closed"
        thread.join()
        assert victim._state == "closed"


standin = fake_supervisor()


def _then(at: Any, name: str, act: Callable[[], object]) -> None:
    """When this method was called next, act."""
    method = getattr(at, name)

    def call(*args: Any, **named: Any) -> Any:
        delattr(at, name)
        found = method(*args, **named)
        act()
        return found

    setattr(at, name, call)


def _in_thread(act: Callable[[], object]) -> None:
    thread = threading.Thread(target=act)
    thread.start()
    thread.join()


@pytest.mark.parametrize("step", ["_is_ours", "_take_line"])
def test_a_connection_closed_in_a_request(standin: StandIn, step: str) -> None:
    connection = control.Connection(standin.directory)
    _then(connection, step, lambda: _in_thread(connection.close))
    with pytest.raises(DaemonNotRunning):
        connection.request("status", timeout=60.0)
    with pytest.raises(DaemonNotRunning):
        connection.wait_closed(60.0)


def test_an_answer_that_came_before_the_close(standin: StandIn) -> None:
    connection = control.Connection(standin.directory)
    _then(connection, "_receive", connection.close)
    assert connection.request("status")["ok"] is True


def test_only_one_close_says_goodbye(standin: StandIn) -> None:
    timers = connect(standin.name)
    _then(timers._connection, "_is_ours", lambda: _in_thread(timers.close))
    timers.close()
    assert (len(standin.heard("bye")), len(standin.heard("resume"))) == (1, 0)


GONE: Final[dict[str, Callable[[StandIn, Timers], object]]] = {
    "daemon": lambda standin, timers: standin.kill(),
    "connection": lambda standin, timers: timers._connection.close(),
    "connection, in the call": lambda standin, timers: _then(
        timers._connection, "_is_ours", timers._connection.close
    ),
    "worker": lambda standin, timers: setattr(
        standin, "_answer", lambda message: {"ok": False, "kind": "ValueError", "error": "unknown"}
    ),
}


@pytest.mark.parametrize("gone", GONE)
def test_a_close_when_all_has_gone(standin: StandIn, gone: str) -> None:
    timers = connect(standin.name)
    GONE[gone](standin, timers)
    timers.close()
    with pytest.raises(ClientClosed):
        timers.schedule(1.0)


def test_what_a_closed_connection_tells() -> None:
    """As in the thread that restores the connection while another one closes the client."""
    closed = SimpleNamespace(fileno=lambda: -1)
    assert worker._has_hung_up(closed)  # type: ignore[arg-type]
    assert not worker._is_silent(closed)  # type: ignore[arg-type]
