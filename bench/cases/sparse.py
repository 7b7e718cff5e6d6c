"""Few timers at a time: 10,000 per second, as a busy server has, or 500. CPU time and lateness.

All are armed before the first is due. A timer counts as received when its worker has it in hand, or
its callback runs. CPU time is that of all processes, with arming, scaled to 100,000 timers.
"""

from __future__ import annotations

import asyncio
import heapq
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import numpy.typing as npt

from bench.cases import Sample, daemon, servers
from bench.processes import exact_sleeps

RATE = 10_000
FEW = 500
LEAD_SECONDS = 0.5
SHARES = (0.1, 1, 5, *range(10, 91, 10), 95, 99, 99.9, 100)
"""Percent of the timers: no later than what."""
SCALE = 100_000
Lateness = npt.NDArray[np.int64]


def count_of(quick: bool, rate: int = RATE) -> int:
    """Timers of a round."""
    return rate // 5 if quick else 3 * rate


def deadlines(count: int, rate: int = RATE) -> npt.NDArray[np.int64]:
    """On the monotonic clock, ns, in random order."""
    begin = time.monotonic_ns() + int(LEAD_SECONDS * 1e9)
    spread = int(1e9 * count / rate)
    return begin + np.random.default_rng(count).integers(0, spread, count)


def sample_of(late: Any, spent: daemon.Spent) -> Sample:
    """From ns of lateness."""
    sample = spent.parts("s", 1e9 * len(late) / SCALE)
    late = np.array(late, np.int64)
    sample["early"] = float((late < 0).sum())
    for share, value in zip(SHARES, np.percentile(late, SHARES), strict=True):
        sample[f"p{share:g}, us"] = float(value) / 1e3
    return sample


def _wheel(quick: bool, tick: str | None, rate: int = RATE) -> Iterator[Sample]:
    exact_sleeps()
    config = {} if tick is None else {"tick": tick}
    with daemon.worker(capacity=1 << 17, **config) as (timers, spent):
        while True:
            spent.start()
            due = deadlines(count_of(quick, rate), rate)
            timers.schedule_at_many(due)
            late: list[Lateness] = []
            seen = 0
            while seen < len(due):
                events = timers.poll(5.0)
                now = time.monotonic_ns()
                if not len(events):
                    raise RuntimeError(f"{len(due) - seen} timers did not come")
                seen += len(events)
                late.append(now - events["deadline"])
            yield sample_of(np.concatenate(late), spent)


def wheeld(quick: bool) -> Iterator[Sample]:
    """`poll`, with the default tick of 1 ms."""
    return _wheel(quick, None)


def wheeld_fine(quick: bool) -> Iterator[Sample]:
    """The same with a tick of 0.1 ms."""
    return _wheel(quick, "100us")


def wheeld_few(quick: bool) -> Iterator[Sample]:
    """`poll`, 500 per second, with the default tick."""
    return _wheel(quick, None, FEW)


def heap(quick: bool, rate: int = RATE) -> Iterator[Sample]:
    """`heapq` and `time.sleep`."""
    exact_sleeps()
    spent, now = daemon.Spent(), time.monotonic_ns
    while True:
        spent.start()
        entries: list[int] = []
        late = []
        for deadline in deadlines(count_of(quick, rate), rate).tolist():
            heapq.heappush(entries, deadline)
        while entries:
            if (rest := entries[0] - now()) > 0:
                time.sleep(rest / 1e9)
            else:
                late.append(now() - heapq.heappop(entries))
        yield sample_of(late, spent)


def heap_few(quick: bool) -> Iterator[Sample]:
    """The same, 500 per second."""
    return heap(quick, FEW)


def _loop(
    quick: bool, factory: Callable[[], asyncio.AbstractEventLoop], rate: int = RATE
) -> Iterator[Sample]:
    exact_sleeps()
    spent, now = daemon.Spent(), time.monotonic_ns

    async def round_() -> list[int]:
        loop, late, done = asyncio.get_running_loop(), list[int](), asyncio.Event()
        count = count_of(quick, rate)

        def fire(deadline: int) -> None:
            late.append(now() - deadline)
            if len(late) == count:
                done.set()

        for deadline in deadlines(count, rate).tolist():
            loop.call_later((deadline - now()) / 1e9, fire, deadline)
        await done.wait()
        return late

    with asyncio.Runner(loop_factory=factory) as runner:
        while True:
            spent.start()
            yield sample_of(runner.run(round_()), spent)


def asyncio_loop(quick: bool) -> Iterator[Sample]:
    """`loop.call_later` of asyncio."""
    return _loop(quick, asyncio.new_event_loop)


def uvloop_loop(quick: bool) -> Iterator[Sample]:
    """The same of uvloop."""
    import uvloop

    return _loop(quick, uvloop.new_event_loop)


def asyncio_few(quick: bool) -> Iterator[Sample]:
    """`loop.call_later` of asyncio, 500 per second."""
    return _loop(quick, asyncio.new_event_loop, FEW)


def uvloop_few(quick: bool) -> Iterator[Sample]:
    """The same of uvloop."""
    import uvloop

    return _loop(quick, uvloop.new_event_loop, FEW)


TAKE = """
local due = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', ARGV[1])
if #due > 0 then redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', ARGV[1]) end
return due
"""


def redis_set(quick: bool) -> Iterator[Sample]:
    """A sorted set, asked for what is due each millisecond; Unix socket, redis-py."""
    exact_sleeps()
    try:
        import redis
    except ImportError:
        raise servers.Missing("Redis: the package redis is not installed") from None
    with ExitStack() as stack:
        pid, place = stack.enter_context(servers.redis())
        client = stack.enter_context(redis.Redis(unix_socket_path=str(place)))
        take, spent, now = client.register_script(TAKE), daemon.Spent(pid), time.monotonic_ns
        while True:
            spent.start()
            due = deadlines(count_of(quick)).tolist()
            for at in range(0, len(due), 1000):
                # microseconds: a score is a double
                some = {f"{deadline}": deadline // 1000 for deadline in due[at : at + 1000]}
                client.zadd("timers", some)
            late: list[int] = []
            turn = now()
            expected = len(set(due))
            while len(late) < expected:
                found: Any = take(keys=["timers"], args=[now() // 1000 - 1])
                late += [now() - int(member) for member in found]
                turn += 1_000_000
                time.sleep(max(0, turn - now()) / 1e9)
            yield sample_of(late, spent)
