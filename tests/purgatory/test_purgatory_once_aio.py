"""Callbacks on a loop: once, whatever is raised; chains of any length; one wake-up for many."""

import asyncio
import threading
from typing import Any

import pytest

import wheeld
from common_fixtures import embedded
from purgatory_ops import Hooked, Op, chain, raising, watch_all
from wheeld_client import AsyncPurgatory, AsyncTimers

LONG = 60.0
"""Seconds that a test waits for another thread before it fails."""
LENGTH = 5000
"""Of a chain; more than any stack holds."""
KINDS = [ValueError, RecursionError, KeyboardInterrupt, SystemExit]


daemon = embedded(capacity=1 << 14, virtual_clock=True)


@pytest.mark.parametrize("threaded", [False, True])
@pytest.mark.parametrize("kind", [*KINDS, None])
def test_once_on_a_loop(daemon: str, kind: type[BaseException] | None, threaded: bool) -> None:
    ops = [raising(kind or LookupError) for _ in range(6)]
    told: list[Any] = []

    async def main() -> None:
        async with AsyncTimers(daemon) as timers:
            loop = asyncio.get_running_loop()
            loop.set_exception_handler(lambda loop, context: None)
            purgatory = AsyncPurgatory(timers, "p")

            def handler(op: Any, error: BaseException) -> None:
                if kind is not None:
                    raise error

            purgatory.exception_handler = handler
            waiters = [purgatory.begin(op, ["k"]) for op in ops[:4]]
            for waiter in waiters:
                waiter.add_done_callback(lambda waiter: told.append(waiter.result()))
            ops[0].ready = ops[1].ready = True

            def end() -> None:
                for call in (lambda: purgatory.check_and_complete("k"), ops[2].force_complete):
                    try:
                        call()
                    except Exception:
                        assert kind is not None

            await (asyncio.to_thread(end) if threaded else asyncio.sleep(0, end()))
            wheeld.advance(daemon, 0.001)
            await waiters[3]
            await asyncio.sleep(0)

    if kind is None or issubclass(kind, Exception):
        asyncio.run(main())
        assert sorted(told) == [False, True, True, True]
        assert [op.ran for op in ops] == [["complete"]] * 3 + [["complete", "expire"], [], []]
    else:
        with pytest.raises(kind):
            asyncio.run(main())
        assert ops[0].ran == ["complete"]
        assert all(op.ran == (["complete"] if op.is_completed else []) for op in ops)


@pytest.mark.parametrize("threaded", [False, True])
def test_chain_on_a_loop(daemon: str, threaded: bool) -> None:
    order: list[Any] = []

    async def main() -> list[Hooked]:
        async with AsyncTimers(daemon) as timers:
            purgatory = AsyncPurgatory(timers, "p")
            ops = chain(purgatory, LENGTH, "check", order)
            last = ops[-1]
            ended = asyncio.Event()
            last.complete = ended.set
            ops[0].ready = True
            if threaded:
                assert await asyncio.to_thread(purgatory.check_and_complete, 0) == 1
            else:
                assert purgatory.check_and_complete(0) == 1
            await ended.wait()
            return ops

    ops = asyncio.run(main())
    assert [op.ran for op in ops] == [["complete"]] * LENGTH


async def test_one_wake_up_for_many(daemon: str) -> None:
    wakes: list[Any] = []
    async with AsyncTimers(daemon) as timers:
        purgatory = AsyncPurgatory(timers, "p")
        ops = [Op(None, number) for number in range(1000)]
        waiters = [purgatory.begin(op, [op.name]) for op in ops]
        loop: Any = asyncio.get_running_loop()
        rouse = loop.call_soon_threadsafe
        loop.call_soon_threadsafe = lambda *call: (wakes.append(call), rouse(*call))
        thread = threading.Thread(target=lambda: [op.force_complete() for op in ops])
        thread.start()
        thread.join(LONG)  # the loop stands still meanwhile
        del loop.call_soon_threadsafe
        assert await asyncio.gather(*waiters) == [True] * 1000
    assert len(wakes) == 1


async def test_loop_that_ends_with_completions_in_line(daemon: str) -> None:
    ops = [Op(None) for _ in range(5)]
    async with AsyncTimers(daemon) as timers:
        purgatory = AsyncPurgatory(timers, "p")
        watch_all(purgatory, ops, ["k"])
        thread = threading.Thread(target=lambda: [op.force_complete() for op in ops])
        thread.start()
        thread.join(LONG)
    assert [op.ran for op in ops] == [["complete"]] * 5


def test_completed_after_the_loop(daemon: str) -> None:
    ops = [Op(None) for _ in range(3)]

    async def main() -> AsyncPurgatory:
        async with AsyncTimers(daemon) as timers:
            purgatory = AsyncPurgatory(timers, "p")
            for op in ops:
                op.force_complete = purgatory._run  # type: ignore[method-assign, assignment]
            return purgatory

    asyncio.run(main())
    for op in ops:
        del op.force_complete
        thread = threading.Thread(target=op.force_complete)
        thread.start()
        thread.join(LONG)
    assert [op.ran for op in ops] == [["complete"]] * 3
