"""Shared words of a daemon: what they survive, how many the status says there are; on asyncio."""

import asyncio
from multiprocessing import get_context

import pytest

import wheeld
from aio_time import ripple
from common_fixtures import daemon_process
from daemons import Daemon, until
from wheeld_client import AsyncTimers, AsyncWatermarks, ClientClosed, Watermarks, connect
from wheeld_core import _native

KEYS, ROUNDS = 40, 5


daemon = daemon_process(max_workers=8)


def test_words_survive_deaths_and_end_with_the_daemon(daemon: Daemon) -> None:
    assert daemon.status()["words"] == {
        "used": 0,
        "possible": _native.WORD_SETS * _native.WORD_PLACES,
    }
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
