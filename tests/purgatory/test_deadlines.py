"""Deadlines: extended and cancelled from any worker, told once, and not lost with their worker."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import wheeld
from common_fixtures import local_wheel, local_workers
from daemons import until
from local_wheel import DROP, KEEP, REROUTE, SECOND, LocalTimers, LocalWheel, pass_by, take_all
from wheeld_client import (
    AsyncTimers,
    ClientClosed,
    Deadlines,
    DelayedOperation,
    InvalidDelay,
    Purgatory,
    WheelFull,
    connect,
)

KEY = ("group", "member-1")


class Told(Deadlines):
    """Deadlines that write down whom they tell of."""

    def __init__(self, timers: Any, name: str = "sessions", **options: Any) -> None:
        self.keys: list[Any] = []
        super().__init__(timers, name, self.tell, **options)

    def tell(self, key: Any) -> None:
        self.keys.append(key)


wheel = local_wheel()


workers = local_workers(3)


@pytest.fixture
def told(workers: list[LocalTimers]) -> list[Told]:
    return [Told(timers) for timers in workers]


def keys(told: list[Told]) -> list[Any]:
    return [key for one in told for key in one.keys]


def left(wheel: LocalWheel) -> int:
    """Timers that are armed or that nobody is done with."""
    wheel.settle()
    return wheel.counter("detached") + wheel.counter("linked")


def taker(told: list[Told]) -> int:
    """Which worker has told of its first key."""
    (found,) = (i for i, one in enumerate(told) if one.keys)
    return found


def test_told_once_and_in_time(
    wheel: LocalWheel, workers: list[LocalTimers], told: list[Told]
) -> None:
    told[0].start(KEY, 5.0)
    pass_by(wheel, workers, 4.9)
    assert keys(told) == []
    assert told[1].remaining(KEY) == pytest.approx(0.1, abs=5e-6)
    pass_by(wheel, workers, 0.2)
    assert keys(told) == [KEY]
    assert told[1].remaining(KEY) is None
    pass_by(wheel, workers, 20)
    assert keys(told) == [KEY]
    assert left(wheel) == 0


def test_extended_from_other_workers(
    wheel: LocalWheel, workers: list[LocalTimers], told: list[Told]
) -> None:
    told[0].start(KEY, 5.0)
    for beat in range(10):
        pass_by(wheel, workers, 3)
        assert told[1 + beat % 2].extend(KEY, 5.0)
        assert told[1].extend(KEY, 1.0)  # never earlier
    assert keys(told) == []
    pass_by(wheel, workers, 4.9)
    assert keys(told) == []
    pass_by(wheel, workers, 0.2)
    assert keys(told) == [KEY]
    assert not told[1].extend(KEY, 5.0)
    assert left(wheel) == 0


def test_extended_by_a_worker_without_a_clock_that_runs(
    wheel: LocalWheel, told: list[Told]
) -> None:
    told[0].start(KEY, 5.0)
    told[1].start("moved to earlier, of which the clock does not know yet", 5.0)
    told[1].start("moved to earlier, of which the clock does not know yet", 4.0)
    for _ in range(100_000):
        assert told[1].extend(KEY, 5.0)


def test_cancelled_from_another_worker(
    wheel: LocalWheel, workers: list[LocalTimers], told: list[Told]
) -> None:
    told[0].start(KEY, 5.0)
    assert told[1].cancel(KEY)
    assert not told[0].cancel(KEY)
    assert not told[0].extend(KEY, 5.0)
    assert left(wheel) == 0
    pass_by(wheel, workers, 20)
    assert keys(told) == []


def test_begun_again_elsewhere(
    wheel: LocalWheel, workers: list[LocalTimers], told: list[Told]
) -> None:
    told[0].start(KEY, 5.0)
    told[1].start(KEY, 2.0)
    pass_by(wheel, workers, 3)
    assert keys(told) == [KEY]
    told[2].start(KEY, 1.0)
    told[2].cancel(KEY)
    told[0].start(KEY, 9.0)
    pass_by(wheel, workers, 20)
    assert keys(told) == [KEY, KEY]
    assert left(wheel) == 0


def test_begun_again_when_it_is_told(wheel: LocalWheel, workers: list[LocalTimers]) -> None:
    times: list[int] = []

    def again(key: Any) -> None:
        times.append(wheel.now // SECOND)
        if len(times) < 4:
            deadlines.start(key, 2.0)

    deadlines = Deadlines(workers[0], "ticks", again)
    deadlines.start(KEY, 2.0)
    pass_by(wheel, workers, 20)
    assert times == [2, 4, 6, 8]
    assert left(wheel) == 0


@pytest.mark.parametrize("policy", [DROP, KEEP, REROUTE])
@pytest.mark.parametrize("beats", [0, 4])
def test_the_death_of_its_worker(
    wheel: LocalWheel, workers: list[LocalTimers], told: list[Told], beats: int, policy: int
) -> None:
    told[0].start(KEY, 5.0)
    wheel.settle()
    wheel.depart(0, policy)
    wheel.settle()
    for _ in range(beats):
        pass_by(wheel, workers[1:], 3)
        assert told[2].extend(KEY, 5.0)
    pass_by(wheel, workers[1:], 4.9)
    assert keys(told) == []
    pass_by(wheel, workers[1:], 0.2)
    assert keys(told[1:]) == [KEY]
    assert left(wheel) == 0


@pytest.mark.parametrize("keep", [False, True])
def test_nobody_is_there(wheel: LocalWheel, keep: bool) -> None:
    first = Told(wheel.worker(0), keep=keep)
    first.start("soon", 5.0)
    first.start("late", 200.0)
    wheel.settle()
    wheel.depart(0, DROP)
    wheel.advance(100 * SECOND)
    again = wheel.worker(1)
    successor = Told(again)
    pass_by(wheel, [again], 1)
    assert successor.keys == (["soon"] if keep else [])
    pass_by(wheel, [again], 100)
    assert successor.keys == (["soon", "late"] if keep else ["late"])


def test_who_has_none_of_that_name_gets_none(wheel: LocalWheel, workers: list[LocalTimers]) -> None:
    sessions, mails = Told(workers[0], "sessions"), Told(workers[1], "mails")
    for number in range(50):
        sessions.start(number, 1.0)
        mails.start(number, 1.0)
    pass_by(wheel, workers, 2)  # which sees that no worker gets an event
    assert sorted(sessions.keys) == sorted(mails.keys) == list(range(50))


def test_a_poll_leaves_them_to_the_next_dispatch(
    wheel: LocalWheel, workers: list[LocalTimers]
) -> None:
    told = Told(workers[0])
    told.start(KEY, 1.0)
    workers[0].schedule(1.0, cookie=5)
    wheel.advance(2 * SECOND)
    assert workers[0].poll()["cookie"].tolist() == [5]
    assert told.keys == []
    assert told.remaining(KEY) == 0.0
    assert len(workers[0].dispatch()) == 0
    assert told.keys == [KEY]
    assert left(wheel) == 0


@pytest.mark.parametrize("policy", [DROP, KEEP, REROUTE])
def test_a_death_while_it_is_told(
    wheel: LocalWheel, workers: list[LocalTimers], told: list[Told], policy: int
) -> None:
    """The others know nothing of it until then."""
    seen: list[Any] = []

    def look(key: Any) -> None:
        other = told[1]
        for _ in range(3):
            wheel.settle()  # the worker's head has passed the event
        seen.append((other.remaining(key), other.extend(key, 5.0), other.cancel(key)))
        seen.append(sum(len(one.dispatch()) for one in workers[1:]))
        wheel.depart(0, policy)  # it is here that it dies
        raise SystemExit

    workers[0].call_later(0, print)
    told[0]._on_expire = look
    told[0].start(KEY, 5.0)
    wheel.advance(5 * SECOND)
    for one in told[1:]:
        one._timers._leave(one._group)
    wheel.settle()
    for one in told[1:]:
        one._timers._join(one._group)
    wheel.advance(SECOND // 10)
    with pytest.raises(SystemExit):
        workers[0].dispatch()
    assert seen == [(0.0, False, False), 0]
    wheel.settle()
    pass_by(wheel, workers[1:], 0.2)
    assert keys(told) == [KEY]
    assert told[1].remaining(KEY) is None
    assert left(wheel) == 0


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, ValueError])
def test_an_error_in_it(
    wheel: LocalWheel, workers: list[LocalTimers], error: type[BaseException]
) -> None:
    times: list[int] = []
    reported: list[Any] = []

    def fail(key: Any) -> None:
        times.append(key)
        if len(times) == 1:
            raise error

    one, other = workers[:2]
    one.exception_handler = lambda handle, raised: reported.append(type(raised))
    told = Deadlines(one, "sessions", fail)
    told.start(1, 1.0)
    wheel.advance(2 * SECOND)
    if error is ValueError:
        one.dispatch()
        assert reported == [ValueError]
    else:
        with pytest.raises(error):
            one.dispatch()
    elsewhere = Told(other)
    told.close()
    pass_by(wheel, [one, other], 1)
    assert times == [1]
    assert elsewhere.keys == ([] if error is ValueError else [1])
    assert left(wheel) == 0


def test_one_that_hangs(wheel: LocalWheel, workers: list[LocalTimers]) -> None:
    one, other = workers[:2]
    told = Told(other, visibility=10.0)

    def hang(key: Any) -> None:
        told.keys.append("begins")
        told._timers._join(told._group)
        pass_by(wheel, [other], 9.9)
        assert told.keys == ["begins"]
        pass_by(wheel, [other], 0.3)
        assert told.keys == ["begins", KEY]

    hangs = Deadlines(one, "sessions", hang, visibility=10.0)
    told._timers._leave(told._group)
    hangs.start(KEY, 1.0)
    hangs.start("another", 1.0)
    wheel.advance(2 * SECOND)
    one.dispatch()  # `another` waits in line behind it, and is not this worker's any more
    pass_by(wheel, [one, other], 1)
    assert sorted(map(str, told.keys)) == sorted(map(str, ["begins", KEY, "another"]))
    assert left(wheel) == 0


def test_one_timer_however_often_it_begins(
    wheel: LocalWheel, workers: list[LocalTimers], told: list[Told]
) -> None:
    for number in range(5000):
        told[0].start(KEY, 5.0 if number % 3 else 4.0)
        told[0].start(number, 3600.0)
        assert told[0].cancel(number)
        if number % 100 == 0:
            wheel.settle()
    wheel.settle()
    assert workers[0].pending == 1
    pass_by(wheel, workers, 5.1)
    assert keys(told) == [KEY]
    assert left(wheel) == 0


def test_a_start_that_fails_leaves_what_was_there(
    wheel: LocalWheel, workers: list[LocalTimers], told: list[Told]
) -> None:
    told[1]._block = False
    told[0].start(KEY, 5.0)
    take_all(wheel, workers[2])
    with pytest.raises(WheelFull):  # noqa: PT012
        for number in itertools.count():
            told[1].start(number, 100.0)
    with pytest.raises(WheelFull):
        told[1].start(KEY, 1.0)
    assert told[2].remaining(KEY) == pytest.approx(5.0, abs=5e-6)
    assert told[0].remaining(number) is None
    pass_by(wheel, workers, 6)
    assert keys(told) == [KEY]


@pytest.mark.parametrize("act", ["start", "cancel", "extend"])
def test_one_decides_when_another_acts_at_the_end(
    wheel: LocalWheel, workers: list[LocalTimers], told: list[Told], act: str
) -> None:
    """Before the clock's pass in which it is due, behind it, and behind the call."""
    calls: dict[str, Callable[[], Any]] = {
        "start": lambda: told[1].start(KEY, 2.0),
        "cancel": lambda: told[1].cancel(KEY),
        "extend": lambda: told[1].extend(KEY, 2.0),
    }
    for step, passes in enumerate([(0.0, 1.1), (0.99, 0.2), (1.1, 0.0)]):
        told[0].start(KEY, 1.0)
        wheel.advance(int(passes[0] * SECOND))
        answer = calls[act]()
        wheel.advance(int(passes[1] * SECOND))
        pass_by(wheel, workers, 3)
        found = keys(told)
        for one in told:
            one.keys.clear()
        fired = step == 2
        expected = {"start": 1 + fired, "cancel": int(answer is False), "extend": 1}[act]
        assert (step, found) == (step, [KEY] * expected)
        assert answer is (None if act == "start" else not fired)
        assert left(wheel) == 0


@pytest.mark.parametrize(
    "key", ["a", ("a",), b"\xff\0", (b"x",), 0, -(2**80), (1, "ü'\"", b"x"), "", ("", ""), ()]
)
def test_keys(wheel: LocalWheel, workers: list[LocalTimers], told: list[Told], key: Any) -> None:
    told[0].start(key, 1.0)
    pass_by(wheel, workers, 2)
    assert keys(told) == [key]
    assert type(keys(told)[0]) is type(key)


def test_keys_that_are_not_the_same(
    wheel: LocalWheel, workers: list[LocalTimers], told: list[Told]
) -> None:
    alike = ["a", ("a",), b"a", (b"a",), ("a", ""), ("", "a"), ("sessions", "a"), 1, "1", (1,)]
    for key in alike:
        told[0].start(key, 1.0)
    Told(workers[0], "others").start("a", 1.0)
    assert told[1].cancel(("sessions", "a"))
    pass_by(wheel, workers, 2)
    assert sorted(map(repr, keys(told))) == sorted(repr(k) for k in alike if k != ("sessions", "a"))


def test_keys_of_other_makes(
    wheel: LocalWheel, workers: list[LocalTimers], told: list[Told]
) -> None:
    told[0].start(np.str_("a"), 1.0)
    told[0].start(np.int64(1), 1.0)
    pass_by(wheel, workers, 2)
    assert sorted(keys(told), key=str) == [1, "a"]


def test_what_is_refused(wheel: LocalWheel, told: list[Told]) -> None:
    for key in (1.5, True, ("a", ("b",)), None):
        with pytest.raises(TypeError):
            told[0].start(key, 1.0)
    for timeout in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(InvalidDelay):
            told[0].start(KEY, timeout)
        with pytest.raises(InvalidDelay):
            told[0].extend(KEY, timeout)
    with pytest.raises(ValueError, match="too long"):
        told[0].start("x" * 1024, 1.0)
    with pytest.raises(ValueError, match="has these already"):
        Told(told[0]._timers)
    with pytest.raises(InvalidDelay, match="visibility"):
        Told(told[0]._timers, "others", visibility=0.0)
    with pytest.raises(TypeError, match="name: got int"):
        Told(told[0]._timers, 5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"name=.*expected text"):
        Told(told[0]._timers, "\ud800")
    with pytest.raises(TypeError, match="on_expire="):
        Deadlines(told[0]._timers, "others", None)  # type: ignore[arg-type]
    assert left(wheel) == 0


def test_others_events_and_closed_ones(
    wheel: LocalWheel, workers: list[LocalTimers], told: list[Told]
) -> None:
    workers[0].schedule(1.0, cookie=5)
    for number in range(30):
        told[0].start(number, 1.0)
    wheel.advance(2 * SECOND)  # they are in the rings of all three
    told[0].close()
    told[0].close()
    assert workers[0].dispatch()["cookie"].tolist() == [5]
    pass_by(wheel, workers, 1)
    assert told[0].keys == []
    assert sorted(keys(told[1:])) == list(range(30))
    with pytest.raises(ClientClosed, match="were closed"):
        told[0].start(KEY, 1.0)
    again = Told(workers[0])
    for one in told[1:]:
        one.close()
    again.start(KEY, 1.0)
    pass_by(wheel, workers, 2)
    assert again.keys == [KEY]
    assert left(wheel) == 0


def test_a_clock_dies_while_it_is_told(
    wheel: LocalWheel, workers: list[LocalTimers], told: list[Told]
) -> None:
    for one in told:
        one._on_expire = lambda key, tell=one.tell: (
            wheel.restart_clock(),
            wheel.settle(),
            tell(key),
        )
    told[0].start(KEY, 1.0)
    told[0].start("another", 1.0)
    pass_by(wheel, workers, 3)
    assert sorted(map(str, keys(told))) == sorted(map(str, [KEY, "another"]))
    assert left(wheel) == 0


def test_asyncio() -> None:
    async def main(name: str) -> None:
        expired: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        async with AsyncTimers(name) as timers:
            deadlines = Deadlines(timers, "sessions", expired.set_result)
            deadlines.start(KEY, 0.01)
            assert await asyncio.wait_for(expired, 60) == KEY

    with wheeld.embedded(payload_bytes=64) as name:
        asyncio.run(main(name))


WORKER = """
import sys
from wheeld_client import Deadlines, connect
timers = connect(sys.argv[1], worker=sys.argv[2], group="coordinators", on_death="reroute")
sessions = Deadlines(timers, "sessions", lambda key: print("expired", key, flush=True))
if sys.argv[3:]:
    sessions.start(("group", "member"), 1.0)
timers.poll()
print("ready", flush=True)
while True:
    timers.dispatch(60)
"""


def test_a_session_whose_coordinator_is_killed() -> None:
    with wheeld.embedded(payload_bytes=64) as daemon:
        one, other = (
            subprocess.Popen(
                [sys.executable, "-c", WORKER, str(daemon), *more],
                stdout=subprocess.PIPE,
                text=True,
            )
            for more in (("one", "start"), ("other",))
        )
        try:
            for process in (other, one):
                assert process.stdout is not None
                assert process.stdout.readline() == "ready\n"
            os.kill(one.pid, signal.SIGKILL)
            assert other.stdout is not None
            assert other.stdout.readline() == "expired ('group', 'member')\n"
            with connect(daemon) as timers:
                told = Told(timers)  # the key is taken until on_expire has returned
                until(lambda: told.remaining(("group", "member")) is None, "it is over")
        finally:
            for process in (one, other):
                process.kill()
                process.communicate()


class Session(DelayedOperation):
    """An operation of one worker, whose time any worker extends or cancels, as docs/purgatory.md
    has it.
    """

    def __init__(self, deadlines: Deadlines) -> None:
        super().__init__(86_400.0)
        self._deadlines = deadlines
        self.ended = 0

    def try_complete(self) -> bool:
        return not self._deadlines.remaining(KEY) and self.force_complete()

    def on_complete(self) -> None:
        self.ended += 1


@pytest.mark.parametrize("end", ["its time", "cancelled", "its worker is gone"])
def test_an_operation_that_other_workers_extend_and_cancel(
    wheel: LocalWheel, workers: list[LocalTimers], end: str
) -> None:
    purgatories = [Purgatory(timers, "members") for timers in workers]
    sessions = [
        Deadlines(timers, "sessions", each.check_and_complete)
        for timers, each in zip(workers, purgatories, strict=True)
    ]
    sessions[1].start(KEY, 5.0)
    session = Session(sessions[0])
    assert not purgatories[0].try_complete_else_watch(session, [KEY])
    for _ in range(5):
        pass_by(wheel, workers, 3)
        assert sessions[2].extend(KEY, 5.0)
    if end == "cancelled":
        assert sessions[2].cancel(KEY)
        purgatories[2].check_and_complete(KEY)
        pass_by(wheel, workers, 0.1)
    else:
        gone = end == "its worker is gone"
        if gone:
            wheel.settle()
            wheel.depart(1, REROUTE)
            wheel.settle()
        there = workers[::2] if gone else workers
        pass_by(wheel, there, 4.9)
        assert session.ended == 0
        pass_by(wheel, there, 5.2 if gone else 0.2)
        pass_by(wheel, there, 0.1)  # the end is another worker's, which then rings the first
    assert session.ended == 1
    assert not sessions[2].extend(KEY, 5.0)
    assert purgatories[0].num_delayed == 0
