"""How late timers fire: the wheel, asyncio, and a process that merely sleeps.

100,000 deadlines over ten seconds. The sleeper runs beside the wheel and sleeps to absolute times a
millisecond apart, half a tick away from the wheel's: what it oversleeps is the machine's doing.
"""

from __future__ import annotations

import asyncio
import ctypes
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import numpy.typing as npt

import wheeld
import wheeld_client
from bench import processes
from bench.result import Options, Result, Row, Target

TICK_US = 1000.0
SETTLE_SECONDS = 0.5
PR_SET_TIMERSLACK = 29


def exact_sleeps() -> None:
    """Have the kernel not round this process's sleeps, as the clock does for itself."""
    ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0)


def _delays(count: int, seconds: float) -> npt.NDArray[np.float64]:
    return SETTLE_SECONDS + np.random.default_rng(count).uniform(0, seconds, count)


def wheel(name: str, count: int, seconds: float, pipe: Connection) -> dict[str, Any]:
    """Lateness of the wheel, ns: when the clock fired, and when the worker had it in hand."""
    exact_sleeps()
    delays = _delays(count, seconds)
    fired, received, seen = [], [], 0
    with wheeld_client.connect(name) as timers:
        processes.ready(pipe)
        timers.schedule_many(delays)
        while seen < count:
            events = timers.poll(5.0)
            now = time.monotonic_ns()
            if not len(events):
                raise RuntimeError(f"{count - seen} timers did not come")
            seen += len(events)
            fired.append(events["fired"] - events["deadline"])
            received.append(now - events["deadline"])
    return {"fired": np.concatenate(fired), "received": np.concatenate(received)}


def loop(count: int, seconds: float, pipe: Connection) -> npt.NDArray[np.int64]:
    """Lateness of asyncio's callbacks, ns."""
    exact_sleeps()
    late: list[float] = []

    async def main() -> None:
        running = asyncio.get_running_loop()
        done = asyncio.Event()

        def fire(deadline: float) -> None:
            late.append(time.monotonic() - deadline)
            if len(late) == count:
                done.set()

        processes.ready(pipe)
        now = running.time()
        for delay in _delays(count, seconds).tolist():
            running.call_at(now + delay, fire, now + delay)
        await done.wait()

    asyncio.run(main())
    return (np.array(late) * 1e9).astype(np.int64)


def sleeper(seconds: float, pipe: Connection) -> npt.NDArray[np.int64]:
    """By how much a plain process oversleeps, ns."""
    exact_sleeps()
    processes.ready(pipe)
    late = []
    target = time.monotonic_ns() // 1_000_000 * 1_000_000 + 500_000
    for _ in range(int(seconds * 1000)):
        target += 1_000_000
        rest = target - time.monotonic_ns()
        if rest <= 0:
            continue  # overslept into the next: that one was counted
        time.sleep(rest / 1e9)
        late.append(time.monotonic_ns() - target)
    return np.array(late, np.int64)


def _row(name: str, late: npt.NDArray[np.int64]) -> Row:
    p50, p99, p999 = np.percentile(late, (50, 99, 99.9)) / 1e3
    return {
        "what": name,
        "count": len(late),
        "p50 us": float(p50),
        "p99 us": float(p99),
        "p99.9 us": float(p999),
        "max us": float(late.max() / 1e3),
        "early": int((late < 0).sum()),
    }


def run(options: Options, say: Callable[[str], None]) -> Result:
    """The whole measurement."""
    count, seconds = (2_000, 0.5) if options.quick else (100_000, 10.0)
    say("lateness: wheel and sleeper")
    with wheeld.embedded(capacity=1 << 18) as name:
        ours, slept = processes.together(
            (wheel, (name, count, seconds)), (sleeper, (seconds + SETTLE_SECONDS,))
        )
    say("lateness: asyncio")
    (theirs,) = processes.together((loop, (count, seconds)))
    rows = [
        _row("wheeld: fired", ours["fired"]),
        _row("wheeld: received by the worker", ours["received"]),
        _row("asyncio: callback runs", theirs),
        _row("plain sleep to a point in time", slept),
    ]
    targets = [
        Target("timers fired before their deadline", rows[0]["early"], 0),
        Target("p99 of fired - deadline; limit: one tick + p99 of a plain sleep",
               rows[0]["p99 us"], TICK_US + rows[3]["p99 us"], unit="us"),
    ]  # fmt: skip
    return Result(f"lateness, {count:,} timers over {seconds:g} s", rows, targets)
