"""Shared words by name: they grow, are waited for, are forgotten; what they survive."""

import asyncio
from contextlib import suppress
from multiprocessing import get_context

import numpy as np
import pytest

import wheeld
from aio_time import ripple
from common_fixtures import daemon_process, local_workers
from daemons import Daemon, until
from local_wheel import SECOND, LocalTimers, LocalWheel
from purgatory_ops import Op, run_threads
from wheeld_client import (
    AsyncTimers,
    AsyncWatermarks,
    ClientClosed,
    Purgatory,
    Watermarks,
    WordsFull,
    connect,
)
from wheeld_core import _native, views

PLACES = 34304  # of the directory of keys for 1,024 slots

workers = local_workers(2)


@pytest.fixture
def both(workers: list[LocalTimers]) -> list[Watermarks]:
    return [Watermarks(timers, "offsets") for timers in workers]


def states(wheel: LocalWheel) -> list[int]:
    return [int(n) for n in views.DirectoryView(wheel.keys_memory).states()]


def test_a_word_is_the_same_in_all_workers_and_only_grows(both: list[Watermarks]) -> None:
    one, other = both
    assert one.value("a") == 0
    assert one.advance("a", 5)
    assert other.value("a") == 5
    assert not other.advance("a", 5)
    assert not other.advance("a", 3)
    assert other.value("a") == 5
    assert other.advance("a", 2**64 - 1)
    assert one.value("a") == 2**64 - 1
    assert one.value("b") == 0


def test_names_and_keys_are_apart(workers: list[LocalTimers], both: list[Watermarks]) -> None:
    keys = ["1", b"1", 1, ("1",), (1,), ("1", 1), ("a", "b"), "ab", 2**70]
    for number, key in enumerate(keys, 1):
        both[0].advance(key, number)
    assert [both[1].value(key) for key in keys] == list(range(1, 10))
    assert Watermarks(workers[0], "others").value("1") == 0
    assert both[0].value(np.str_("1")) == 1


@pytest.mark.parametrize(("value", "error"), [(-1, OverflowError), (2**64, OverflowError),
                                              (1.0, TypeError), ("1", TypeError)])  # fmt: skip
def test_what_is_no_value(both: list[Watermarks], value: object, error: type[Exception]) -> None:
    with pytest.raises(error):
        both[0].advance("a", value)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        both[0].value(1.5)
    assert both[0].value("a") == 0


def test_zero_makes_no_word(wheel: LocalWheel, both: list[Watermarks]) -> None:
    assert not both[0].advance("a", 0)
    assert states(wheel)[_native.WORD_LIVE] == 0


def test_waiting_is_by_threshold(workers: list[LocalTimers], both: list[Watermarks]) -> None:
    one, other = both
    ended: list[object] = []
    for value in (7, 3, 5, 3):
        one.when("a", value, lambda outcome, value=value: ended.append((value, outcome)))
    assert one.waiting == 4
    other.advance("a", 4)
    workers[0].dispatch()
    assert ended == [(3, True), (3, True)]
    assert one.waiting == 2
    one.advance("a", 6)  # its own are told in the call
    assert ended[2:] == [(5, True)]
    other.advance("a", 9)
    workers[0].dispatch()
    assert ended[3:] == [(7, True)]
    assert one.waiting == 0
    assert views.WatchView(workers[0]._segment("watch")).watched().sum() == 0


def test_what_holds_already_ends_at_once(both: list[Watermarks]) -> None:
    both[0].advance("a", 4)
    ended: list[object] = []
    assert both[1].when("a", 4, ended.append).over
    assert ended == [True]
    assert both[1].wait_until("a", 3)


def test_an_advance_looks_at_those_it_ends_only(
    both: list[Watermarks], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = both[0]
    for value in range(1000):
        one.when("a", 10 + value, lambda outcome: None)
    looks: list[object] = []
    word = one.purgatory._word

    class Counting:
        def __getattr__(self, name: str) -> object:
            return getattr(one.purgatory, name)

        def _word(self, key: object) -> int:
            looks.append(key)
            return word(key)

    monkeypatch.setattr(one._thresholds, "_purgatory", Counting())
    one.advance("a", 12)
    assert one.waiting == 997
    assert len(looks) <= 5


def test_a_timeout(wheel: LocalWheel, workers: list[LocalTimers], both: list[Watermarks]) -> None:
    ended: list[object] = []
    both[0].when("a", 1, ended.append, timeout=2.0)
    both[0].when("a", 1, ended.append, timeout=9.0)
    wheel.advance(3 * SECOND)
    workers[0].dispatch()
    assert ended == [False]
    both[1].advance("a", 1)
    workers[0].dispatch()
    wheel.advance(9 * SECOND)
    workers[0].dispatch()
    assert ended == [False, True]
    assert workers[0].pending == 0


def test_cancelled_ones_are_not_told_and_leave(wheel: LocalWheel, both: list[Watermarks]) -> None:
    one, ended = both[0], list[object]()
    for number in range(5000):
        assert one.when("a", 10, ended.append, timeout=60.0).cancel()
        if number % 64 == 0:
            wheel.settle()
    assert len(one._thresholds._levels["a"].heap) < 3000
    assert one._timers.pending == 0
    one.advance("a", 10)
    assert ended == []
    assert one._thresholds._levels == {}


def test_keys_that_nobody_waits_for_any_more_are_forgotten(both: list[Watermarks]) -> None:
    one = both[0]
    for key in range(5000):
        one.when(key, 10, print).cancel()
    assert len(one._thresholds._levels) < 3000


def test_operations_of_ones_own(workers: list[LocalTimers], both: list[Watermarks]) -> None:
    one, other = both

    class Two(Op):
        def try_complete(self) -> bool:
            return one.value("a") + one.value("b") >= 5 and self.force_complete()

    op = Two()
    one.purgatory.try_complete_else_watch(op, ["a", "b"])
    other.advance("b", 3)
    workers[0].dispatch()
    assert not op.is_completed
    other.advance("a", 2)
    workers[0].dispatch()
    assert op.is_completed


def test_a_callback_advances_the_key_that_it_waited_for(both: list[Watermarks]) -> None:
    one = both[0]
    one.when("b", 1, lambda outcome: one.advance("c", 1))
    one.advance("b", 1)
    assert one.value("c") == 1
    for value in range(3000):
        one.when("d", value, lambda outcome, value=value: one.advance("d", value + 1))
    assert one.value("d") == 3000


def test_what_a_callback_raises_harms_no_other(both: list[Watermarks]) -> None:
    one, ended, errors = both[0], list[object](), list[object]()
    one.purgatory.exception_handler = lambda op, error: errors.append(error)
    one.when("a", 1, lambda outcome: 1 / 0)
    one.when("a", 1, ended.append)
    assert one.advance("a", 1)
    assert ended == [True]
    assert isinstance(errors[0], ZeroDivisionError)


def test_closing_tells_who_waits(both: list[Watermarks]) -> None:
    ended: list[object] = []
    both[0].advance("b", 3)
    both[0].when("a", 1, ended.append)
    both[0].close()
    assert isinstance(ended[0], ClientClosed)
    with pytest.raises(ClientClosed):
        both[0].advance("a", 1)
    assert both[1].value("b") == 3


def test_forgotten_words_are_0_and_their_places_empty(
    wheel: LocalWheel, both: list[Watermarks]
) -> None:
    one, other = both
    one.advance("a", 7)
    assert other.forget("a")
    assert not one.forget("a")
    assert one.value("a") == 0
    assert states(wheel)[0] == PLACES
    assert one.advance("a", 2)
    assert other.value("a") == 2


def test_a_word_that_grows_only_from_what_was_read(
    wheel: LocalWheel, workers: list[LocalTimers]
) -> None:
    one, other = (Purgatory(timers, "decided") for timers in workers)
    assert not one._grow("a", 9, 5, 5)  # it is 0
    assert states(wheel)[_native.WORD_LIVE] == 0
    assert one._grow("a", 5, 0, 0)
    assert [other._grow("a", 9, word, word) for word in (0, 4, 6, 5)] == [False, False, False, True]
    assert not one._forget("a", 10)
    assert one._word("a") == 9
    assert one._forget("a", 9)


def test_no_room(wheel: LocalWheel, both: list[Watermarks]) -> None:
    made = 0
    with suppress(WordsFull):
        while both[0].advance(made, made + 1):
            made += 1
    with pytest.raises(WordsFull, match=rf"{PLACES} places.*forget"):
        both[0].advance(made, 1)
    assert made > 0.85 * PLACES
    assert all(both[1].value(key) == key + 1 for key in range(made))
    for key in range(made):
        assert both[1].forget(key)
    assert states(wheel)[0] == PLACES
    assert both[0].advance(made, 1)


def test_each_advance_is_told_to_one(workers: list[LocalTimers], both: list[Watermarks]) -> None:
    told: list[int] = []

    def advance(words: Watermarks) -> None:
        for number in range(2000):
            if words.advance(number % 7, number // 7 + 1):
                told.append(number)
            if number % 31 == 0:
                words.advance(("other", number), 1)
                words.forget(("other", number))

    run_threads([lambda words=words: advance(words) for words in both])
    assert sorted(told) == list(range(2000))


def test_wait_until_dispatches_when_nobody_else_does(
    wheel: LocalWheel, workers: list[LocalTimers], both: list[Watermarks]
) -> None:
    calls: list[object] = []
    workers[0].schedule(0.0, cookie=7)
    workers[0].call_later(0.0, lambda: (calls.append(1), both[1].advance("a", 2)))
    wheel.advance(SECOND)
    assert both[0].wait_until("a", 2)
    assert calls == [1]
    assert workers[0].dispatch()["cookie"].tolist() == [7]


def test_wait_until_has_a_timeout(
    wheel: LocalWheel, workers: list[LocalTimers], both: list[Watermarks]
) -> None:
    workers[0].call_later(0.0, lambda: wheel.advance(5 * SECOND))
    wheel.advance(0)
    workers[0].call_later(0.0, lambda: None)
    wheel.advance(1)
    assert both[0].wait_until("a", 2, timeout=3.0) is False


KEYS, ROUNDS = 40, 5


daemon = daemon_process(max_workers=8)


def test_words_survive_deaths_and_end_with_the_daemon(daemon: Daemon) -> None:
    found = daemon.status()["words"]
    assert found["used"] == 0
    assert found["possible"] > 1.5 * daemon.status()["capacity"]
    with connect(str(daemon.directory)) as maker:
        Watermarks(maker, "high").advance(("topic", 0), 7)
    assert daemon.status()["words"]["used"] == 1
    with connect(str(daemon.directory), reconnect_for=60.0) as timers:
        high = Watermarks(timers, "high")
        daemon.kill_clock()
        assert high.value(("topic", 0)) == 7
        daemon.kill()
        assert high.advance(("topic", 0), 8)
        daemon.start()
        until(lambda: bool(daemon.workers()), "taken up again")
        assert high.value(("topic", 0)) == 8
        assert high.advance(("topic", 1), 1)
        assert daemon.status()["words"]["used"] == 2
    daemon.stop()
    daemon.start()
    assert daemon.status()["words"]["used"] == 0


def race(name: str, answers: object) -> None:
    told = dict.fromkeys(range(KEYS * ROUNDS), 0)
    with connect(name) as timers:
        words = Watermarks(timers, "race")
        for number in told:
            told[number] += words.advance(number % KEYS, number // KEYS + 1)
            words.advance(("mine", number), 1)
            words.forget(("mine", number))
    answers.put(list(told.values()))  # type: ignore[attr-defined]


def test_of_all_processes_one_is_told_that_a_word_has_grown(daemon: Daemon) -> None:
    context = get_context("fork")
    answers = context.Queue()
    crowd = [context.Process(target=race, args=(str(daemon.directory), answers)) for _ in range(4)]
    for process in crowd:
        process.start()
    told = [answers.get(timeout=60) for _ in crowd]
    for process in crowd:
        process.join()
    assert [sum(counts) for counts in zip(*told, strict=True)] == [1] * KEYS * ROUNDS
    assert daemon.status()["words"]["used"] == KEYS


# -- asyncio ---------------------------------------------------------------------------------------


def test_waits_on_a_loop() -> None:
    async def main(name: str) -> None:
        async with AsyncTimers(name) as here, AsyncTimers(name) as there:
            one, other = AsyncWatermarks(here, "w"), AsyncWatermarks(there, "w")
            waits = [asyncio.create_task(one.wait_until("k", value)) for value in (1, 2, 3)]
            await ripple()
            assert one.waiting == 3
            other.advance("k", 2)
            assert await asyncio.wait_for(asyncio.gather(*waits[:2]), 60) == [True, True]
            assert not waits[2].done()
            one.advance("k", 3)
            assert await asyncio.wait_for(waits[2], 60) is True
            assert await one.wait_until("k", 3) is True
            assert await one.wait_until("k", 4, timeout=0.01) is False
            waiting = asyncio.create_task(one.wait_until("k", 5, timeout=60.0))
            await ripple()
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            assert one.waiting == 0
            assert here.timers.pending == 0
            waiting = asyncio.create_task(one.wait_until("k", 5))
            await ripple()
            one.close()
            with pytest.raises(ClientClosed):
                await waiting
            assert other.value("k") == 3

    with wheeld.embedded(capacity=64) as name:
        asyncio.run(main(name))


def test_who_waits_while_another_thread_dispatches() -> None:
    with wheeld.embedded(capacity=64) as name, connect(name) as timers, connect(name) as other:
        words = Watermarks(timers, "w")
        with timers.dispatching():
            timers.call_later(0.01, lambda: Watermarks(other, "w").advance("k", 1))
            assert words.wait_until("k", 1, timeout=60.0)
            assert words.wait_until("k", 2, timeout=0.01) is False
