"""Deadlines: extended and cancelled from any worker, told once, and not lost with their worker."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from typing import Any

import numpy as np
import pytest

import wheeld
from common_fixtures import local_wheel, local_workers
from local_wheel import DROP, KEEP, REROUTE, SECOND, LocalTimers, LocalWheel, pass_by
from wheeld_client import (
    AsyncTimers,
    Deadlines,
    DelayedOperation,
    InvalidDelay,
    PayloadTooLarge,
    Purgatory,
    WheelFull,
    connect,
)
from wheeld_core import _native
from wheeld_core.views import DirectoryView

KEY = ("group", "member-1")


class Told(Deadlines):
    """Deadlines that write down whom they tell of."""

    def __init__(self, timers: Any, name: str = "sessions") -> None:
        self.keys: list[Any] = []
        super().__init__(timers, name, self.keys.append)


class Between:
    """Words of a worker before whose next step but `left` another worker acts."""

    def __init__(self, words: Any, left: int, other: Deadlines, act: str) -> None:
        self._real, self._left, self._other, self._act = words, left, other, act
        self.answers: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def _grow(self, *given: Any) -> bool:
        if self._left == 0:
            more = () if self._act == "cancel" else (2.0,)
            self.answers.append(getattr(self._other, self._act)(KEY, *more))
        self._left -= 1
        return bool(self._real._grow(*given))


wheel = local_wheel(payload_bytes=64)


workers = local_workers(3, group="coordinators")


@pytest.fixture
def told(workers: list[LocalTimers]) -> list[Told]:
    return [Told(timers) for timers in workers]


def words(wheel: LocalWheel) -> int:
    return int(DirectoryView(wheel.keys_memory).states()[_native.WORD_LIVE])


def test_told_once_and_in_time(
    wheel: LocalWheel, workers: list[LocalTimers], told: list[Told]
) -> None:
    told[0].start(KEY, 5.0)
    pass_by(wheel, workers, 4.9)
    assert told[0].keys == []
    assert told[1].remaining(KEY) == pytest.approx(0.1, abs=5e-6)
    pass_by(wheel, workers, 0.2)
    assert [one.keys for one in told] == [[KEY], [], []]
    assert told[1].remaining(KEY) is None
    pass_by(wheel, workers, 20)
    assert told[0].keys == [KEY]
    assert words(wheel) == 0
    assert workers[0].pending == 0


def test_extended_from_other_workers(
    wheel: LocalWheel, workers: list[LocalTimers], told: list[Told]
) -> None:
    told[0].start(KEY, 5.0)
    for beat in range(10):
        pass_by(wheel, workers, 3)
        assert told[1 + beat % 2].extend(KEY, 5.0)
        assert told[1].extend(KEY, 1.0)  # never earlier
    assert told[0].keys == []
    pass_by(wheel, workers, 4.9)
    assert told[0].keys == []
    pass_by(wheel, workers, 0.2)
    assert told[0].keys == [KEY]
    assert not told[1].extend(KEY, 5.0)
    assert words(wheel) == 0


def test_extended_by_a_worker_without_a_clock_that_runs(told: list[Told]) -> None:
    told[0].start(KEY, 5.0)
    for _ in range(100_000):
        assert told[1].extend(KEY, 5.0)


def test_cancelled_from_another_worker(
    wheel: LocalWheel, workers: list[LocalTimers], told: list[Told]
) -> None:
    told[0].start(KEY, 5.0)
    assert told[1].cancel(KEY)
    assert not told[0].cancel(KEY)
    assert not told[0].extend(KEY, 5.0)
    assert words(wheel) == 0
    pass_by(wheel, workers, 20)
    assert told[0].keys == []
    assert workers[0].pending == 0


def test_begun_again_elsewhere(
    wheel: LocalWheel, workers: list[LocalTimers], told: list[Told]
) -> None:
    told[0].start(KEY, 5.0)
    told[1].start(KEY, 2.0)
    pass_by(wheel, workers, 3)
    assert [one.keys for one in told] == [[], [KEY], []]
    told[2].start(KEY, 1.0)
    told[2].cancel(KEY)
    told[0].start(KEY, 9.0)
    pass_by(wheel, workers, 20)
    assert [one.keys for one in told] == [[KEY], [KEY], []]
    assert [timers.pending for timers in workers] == [0, 0, 0]


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
    assert words(wheel) == 0


@pytest.mark.parametrize("beats", [0, 4])
def test_the_death_of_its_worker(
    wheel: LocalWheel, workers: list[LocalTimers], told: list[Told], beats: int
) -> None:
    told[0].start(KEY, 5.0)
    wheel.settle()
    wheel.depart(0, REROUTE)
    wheel.settle()
    for _ in range(beats):
        pass_by(wheel, workers[1:], 3)
        assert told[2].extend(KEY, 5.0)
    pass_by(wheel, workers[1:], 4.9)
    assert told[1].keys + told[2].keys == []
    pass_by(wheel, workers[1:], 5.2)
    assert told[1].keys + told[2].keys == [KEY]
    assert words(wheel) == 0


def test_kept_for_a_successor(
    wheel: LocalWheel, workers: list[LocalTimers], told: list[Told]
) -> None:
    told[0].start(KEY, 5.0)
    wheel.settle()
    wheel.depart(0, KEEP)
    wheel.settle()
    wheel.advance(9 * SECOND)
    again = wheel.successor(0)
    wheel._seat(0, int(wheel.row(0)["incarnation"]))
    successor = Told(again)
    pass_by(wheel, [again], 10)
    assert successor.keys == [KEY]


def test_a_death_while_it_begins(
    wheel: LocalWheel, workers: list[LocalTimers], told: list[Told], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(told[0], "_replace", lambda key, units: None)
    told[0].start(KEY, 1.0)
    wheel.settle()
    assert workers[0].pending == 1
    wheel.depart(0, REROUTE)
    wheel.settle()
    pass_by(wheel, workers[1:], 5)
    assert told[1].keys + told[2].keys == []
    assert words(wheel) == 0
    assert [timers.pending for timers in workers[1:]] == [0, 0]


def test_a_tick_before_it_has_begun(
    wheel: LocalWheel, workers: list[LocalTimers], told: list[Told], monkeypatch: pytest.MonkeyPatch
) -> None:
    def arm(*given: Any) -> int:
        timer = Deadlines._arm(told[0], *given)
        pass_by(wheel, workers, 1.5)
        return timer

    monkeypatch.setattr(told[0], "_arm", arm)
    told[0].start(KEY, 1.0)
    pass_by(wheel, workers, 5)
    assert told[0].keys == [KEY]
    assert words(wheel) == 0


def test_a_death_while_it_is_told(
    wheel: LocalWheel, workers: list[LocalTimers], told: list[Told], monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(key: Any, mine: int) -> None:
        raise RuntimeError

    told[0].start(KEY, 5.0)
    monkeypatch.setattr(told[0], "_expire", die)
    monkeypatch.setattr(workers[0], "cancel", lambda id, block: False)
    pass_by(wheel, workers, 6)
    assert told[1].remaining(KEY) == 0.0
    assert not told[1].extend(KEY, 5.0)
    assert not told[1].cancel(KEY)
    wheel.depart(0, REROUTE)
    wheel.settle()
    pass_by(wheel, workers[1:], 6)
    assert told[1].keys + told[2].keys == [KEY]
    assert words(wheel) == 0


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
    assert workers[0].pending == words(wheel) == 1
    pass_by(wheel, workers, 5.1)
    assert told[0].keys == [KEY]


@pytest.mark.parametrize("broken", ["_arm", "_replace"])
def test_a_start_that_fails_leaves_what_was_there(
    wheel: LocalWheel,
    workers: list[LocalTimers],
    told: list[Told],
    monkeypatch: pytest.MonkeyPatch,
    broken: str,
) -> None:
    def refuse(*given: Any) -> None:
        raise WheelFull

    told[0].start(KEY, 5.0)
    monkeypatch.setattr(told[1], broken, refuse)
    with pytest.raises(WheelFull):
        told[1].start(KEY, 1.0)
    assert told[2].remaining(KEY) == pytest.approx(5.0, abs=5e-6)
    pass_by(wheel, workers, 6)
    assert [one.keys for one in told] == [[KEY], [], []]
    assert [timers.pending for timers in workers] == [0, 0, 0]


@pytest.mark.parametrize("act", ["start", "cancel", "extend"])
def test_one_decides_when_another_acts_at_the_end(
    wheel: LocalWheel, workers: list[LocalTimers], told: list[Told], act: str
) -> None:
    for step in range(4):
        real = told[0]._words
        between = Between(real, step, told[1], act)
        told[0].start(KEY, 1.0)
        told[0]._words = between
        pass_by(wheel, workers, 1.1)
        told[0]._words = real
        before = sum(len(one.keys) for one in told)
        pass_by(wheel, workers, 3)
        keys = [key for one in told for key in one.keys]
        for one in told:
            one.keys.clear()
        if act == "cancel":
            assert len(keys) == (0 if between.answers == [True] else 1), step
        elif between.answers in ([None], [True]):
            assert len(keys) == before + 1, step
        assert [timers.pending for timers in workers] == [0, 0, 0]
        assert words(wheel) == 0


def test_lost_where_it_is_to_be(wheel: LocalWheel, workers: list[LocalTimers]) -> None:
    one, other = Told(workers[0]), Told(workers[1])
    one.start(KEY, 5.0)
    wheel.settle()
    wheel.depart(0, DROP)
    pass_by(wheel, workers[1:], 20)
    assert other.keys == []


@pytest.mark.parametrize("key", ["a", b"\xff\0", 0, -(2**80), (1, "ü'\"", b"x")])
def test_keys(wheel: LocalWheel, workers: list[LocalTimers], told: list[Told], key: Any) -> None:
    told[0].start(key, 1.0)
    pass_by(wheel, workers, 2)
    assert told[0].keys == [key]
    assert type(told[0].keys[0]) is type(key)


def test_keys_of_other_makes(
    wheel: LocalWheel, workers: list[LocalTimers], told: list[Told]
) -> None:
    told[0].start(np.str_("a"), 1.0)
    told[0].start(True, 1.0)
    pass_by(wheel, workers, 2)
    assert told[0].keys == ["a", 1]


def test_what_is_refused(wheel: LocalWheel, told: list[Told]) -> None:
    with pytest.raises(TypeError):
        told[0].start(1.5, 1.0)
    with pytest.raises(TypeError):
        told[0].start((), 1.0)
    for timeout in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(InvalidDelay):
            told[0].start(KEY, timeout)
        with pytest.raises(InvalidDelay):
            told[0].extend(KEY, timeout)
    with pytest.raises(PayloadTooLarge, match="needs 13"):
        told[0].start("x" * 121, 1.0)
    with pytest.raises(ValueError, match="has a purgatory"):
        Told(told[0]._timers)
    assert words(wheel) == 0


def test_no_slot_for_it(wheel: LocalWheel, told: list[Told]) -> None:
    told[0]._block = False
    with pytest.raises(WheelFull):  # noqa: PT012
        for number in range(5000):
            told[0].start(number, 100.0)
            wheel.settle()
    assert told[0].remaining(number) is None
    assert words(wheel) == number


def test_others_events_and_closed_ones(
    wheel: LocalWheel, workers: list[LocalTimers], told: list[Told]
) -> None:
    workers[0].schedule(1.0, cookie=5)
    told[0].start(KEY, 1.0)
    wheel.advance(2 * SECOND)
    assert workers[0].dispatch()["cookie"].tolist() == [5]
    assert told[0].keys == [KEY]
    told[0].close()
    with pytest.raises(Exception, match="was shut down"):
        told[0].start(KEY, 1.0)


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
                assert Told(timers).remaining(("group", "member")) is None
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
