"""The purgatory: Kafka's experiment, single operations, and from one process to another.

The experiment is that of "Apache Kafka, Purgatory, and Hierarchical Timing Wheels" (Confluent,
2015). An open loop: requests arrive in exponential intervals; a driver that is late catches up. How
long one takes is log-normal, given by its median and its upper quartile. A request that takes less
than the timeout is completed by another thread when it is over, the others expire.

Under the interpreter's lock a driver that never waits would take half of the time or more, and late
completions are expirations. So the driver waits whenever the completer lags, for all contenders
alike, and a run counts only if as many expired as were drawn to. The harness looks at the clock
once per millisecond, and its completer has a list per millisecond instead of a queue.
"""

from __future__ import annotations

import asyncio
import gc
import math
import os
import resource
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import wheeld
import wheeld_client
from bench import processes
from bench.cases.calls import HOUR
from bench.cases.designs import LazyOperation, LazyPurgatory, OldOperation, OldPurgatory
from bench.processes import Background, Sample, Watch, cpu_ns, exact_sleeps, pids
from wheeld_client import DelayedOperation, Purgatory

SETTLE_SECONDS = 0.01
"""A pause before each measurement, for the remaining work of the clock, a reaper or a
dispatcher."""


class NullOperation:
    """Can be completed; it is not watched and does not expire."""

    __slots__ = ()

    def __init__(self, timeout: float) -> None:
        pass

    def force_complete(self) -> bool:
        self.on_complete()  # type: ignore[attr-defined]
        return True


class Null:
    """No purgatory: the harness's own cost, with the calls of the user's methods."""

    def try_complete_else_watch(self, operation: Any, keys: Any) -> bool:
        return operation.try_complete() or operation.try_complete()

    def shutdown(self) -> None:
        pass


RIVALS = {"old design": (OldOperation, OldPurgatory), "lazy heap": (LazyOperation, LazyPurgatory),
          "nothing": (NullOperation, Null)}  # fmt: skip


def purgatory_of(who: str, daemon: str, stack: ExitStack) -> tuple[Any, Any]:
    """The base class of operations, and a purgatory; a dispatching thread if it is wheeld's."""
    if who in RIVALS:
        operation, make = RIVALS[who]
        purgatory = make()
        stack.callback(purgatory.shutdown)
        return operation, purgatory
    timers = stack.enter_context(wheeld_client.connect(daemon))
    purgatory = Purgatory(timers, "bench")
    stack.callback(purgatory.shutdown)
    stack.enter_context(timers.dispatching())
    return DelayedOperation, purgatory


def daemon_of(who: str, capacity: int, stack: ExitStack) -> str:
    return "" if who in RIVALS else stack.enter_context(wheeld.embedded(capacity=capacity))


def ready_operation(base: Any) -> Any:
    class Fetch(base):  # type: ignore[misc]
        """Completes when it is checked after it was set ready."""

        __slots__ = ("ready",)

        def __init__(self, timeout: float) -> None:
            super().__init__(timeout)
            self.ready = False

        def try_complete(self) -> bool:
            return self.ready and bool(self.force_complete())

        def on_complete(self) -> None:
            pass

        def on_expiration(self) -> None:
            pass

    return Fetch


# -- single operations --------------------------------------------------------------------------


def pairs(who: str, quick: bool) -> Iterator[Sample]:
    """Watch operations, each under its own key; check the keys when the operations are ready."""
    count, watch = 500 if quick else 20_000, Watch()
    with ExitStack() as stack:
        base, purgatory = purgatory_of(who, daemon_of(who, 1 << 17, stack), stack)
        fetch = ready_operation(base)
        enter, check = purgatory.try_complete_else_watch, purgatory.check_and_complete
        gc.disable()
        stack.callback(gc.enable)
        while True:
            time.sleep(SETTLE_SECONDS)
            watch.start()
            made = [(fetch(HOUR), f"key-{number}") for number in range(count)]
            making = watch.ns_each(count)
            watch.start()
            for operation, key in made:
                enter(operation, (key,))
            watched = watch.ns_each(count)
            for operation, _ in made:
                operation.ready = True
            time.sleep(SETTLE_SECONDS)
            watch.start()
            for _, key in made:
                check(key)
            checked = watch.ns_each(count)
            yield {
                "pair, made too, ns": making + watched + checked,
                "watch, ns": watched,
                "check and complete, ns": checked,
            }


WAITING = (10_000, 1_000_000)
KEYS = 1000


def waiting(who: str, quick: bool) -> Iterator[Sample]:
    """Watch three of a thousand keys, complete oldest first or in random order, while many wait.

    With a million of them, each comes from memory when the order is random, not from a cache; how
    much that alone costs, the contender shows that only keeps the operations.
    """
    count = 200 if quick else 5_000
    while True:
        sample: Sample = {}
        for size in WAITING:
            with ExitStack() as stack:
                found = _waiting(who, size // 100 if quick else size, count, stack)
            sample |= {f"{what} among {size:,}, ns": cost for what, cost in found.items()}
        yield sample


def _waiting(who: str, size: int, count: int, stack: ExitStack) -> Sample:
    rng, watch = np.random.default_rng(size), Watch()
    daemon = daemon_of(who, 2 * (size + 6 * count), stack)
    base, purgatory = purgatory_of(who, daemon, stack)
    request, names = make_request(base, [0]), [f"key-{number}" for number in range(KEYS)]
    enter = purgatory.try_complete_else_watch
    gc.disable()
    stack.callback(gc.enable)

    def new(many: int) -> list[Any]:
        drawn = rng.integers(KEYS, size=(many, 3)).tolist()
        return [(request(HOUR), (names[one], names[two], names[three]))
                for one, two, three in drawn]  # fmt: skip

    held = []
    for operation, keys in new(size):
        enter(operation, keys)
        held.append(operation)
    found: dict[str, list[float]] = {"watch": [], "oldest": [], "random": []}
    for _ in range(4):
        for order in ("oldest", "random"):
            made = new(count)
            time.sleep(SETTLE_SECONDS)
            watch.start()
            for operation, keys in made:
                enter(operation, keys)
            found["watch"].append(watch.ns_each(count))
            held += [operation for operation, _ in made]
            del made, operation
            chosen = (
                rng.choice(len(held), count, replace=False) if order == "random" else range(count)
            )
            victims = [held[at] for at in chosen]
            gone = set(map(int, chosen))
            held = [one for at, one in enumerate(held) if at not in gone]
            time.sleep(SETTLE_SECONDS)
            watch.start()
            for victim in victims:
                victim.force_complete()
            found[order].append(watch.ns_each(count))
            del victims, victim
    return {what: median(costs) for what, costs in found.items()}


class Plain:
    """An object as large as an operation, for which nobody waits."""

    def __init__(self, number: int) -> None:
        self.timeout, self.data = HOUR, [number]


class Waits(DelayedOperation):
    """Holds something that the collector looks at."""

    def __init__(self, number: int) -> None:
        super().__init__(HOUR)
        self.data = [number]

    def try_complete(self) -> bool:
        return False


def collection(operations: bool, quick: bool) -> Iterator[Sample]:
    """A full collection of Python's cycle collector while operations wait, or beside as many plain
    objects. A worker that was called since the last one is taken for alive, with all that waits in
    it; without `gc.freeze()`."""
    count = 20_000 if quick else 500_000
    with ExitStack() as stack:
        timers, _ = stack.enter_context(processes.worker(capacity=2 * count))
        mine = Purgatory(timers, "bench")
        stack.callback(mine.shutdown)
        plain = [Plain(number) for number in range(0 if operations else count)]
        for number in range(count if operations else 0):
            keys = [("a", number % KEYS), ("b", number % 777), ("c", number % 333)]
            mine.try_complete_else_watch(Waits(number), keys)
        while True:
            mine.check_and_complete("nobody's")
            begin = time.thread_time()  # no other process's time
            gc.collect()
            yield {"a full collection, ms": (time.thread_time() - begin) * 1e3}
            assert len(plain) in (0, count)  # it went through them, too


class Asked(DelayedOperation):
    """Counts how often any of them is asked."""

    __slots__ = ()
    times = 0

    def try_complete(self) -> bool:
        Asked.times += 1
        return False


LOOKS = (10_000, 100_000, 1_000_000)
CHECKS = 10_000


def looks(quick: bool) -> Iterator[Sample]:
    """Operations of another worker, under other keys, that a check has called needlessly.

    Both workers are in this process: the count depends on hashes alone.
    """
    while True:
        sample: Sample = {}
        for size in LOOKS[: 1 if quick else None]:
            with ExitStack() as stack:
                name = stack.enter_context(wheeld.embedded(capacity=1 << 21))
                mine, other = (stack.enter_context(wheeld_client.connect(name)) for _ in range(2))
                checks, waits = Purgatory(mine, "bench"), Purgatory(other, "bench")
                stack.callback(waits.shutdown)
                for number in range(size):
                    waits.try_complete_else_watch(Asked(None), [("key", number)])
                for at_once in (1, 1000, CHECKS):
                    Asked.times = 0
                    for number in range(CHECKS):
                        checks.check_and_complete(("key", number))
                        if (number + 1) % at_once == 0:
                            other.dispatch(0)
                    sample[f"{at_once} at once, {size:,} wait"] = Asked.times / CHECKS - 1
        yield sample


# -- Kafka's experiment -------------------------------------------------------------------------

TIMEOUT_MS, DATA_BYTES = 200, 100
CASES = {"low": (20.0, 60.0), "high": (200.0, 400.0)}
"""Median and upper quartile, ms: few requests time out, or many."""
QUARTILE = 0.67449
"""The standard normal distribution's."""
CHUNK = 512
"""How many requests are handled per reading of the clock, at most."""
TICK = 0.001
RING = 1024
"""Milliseconds; more than the longest completion and the longest stall together."""
LOOK_BACK = 32
LAG_MS = 2
"""The driver waits for a completer that is further behind."""
SWITCH_SECONDS = 0.0005
"""How long a thread may keep the interpreter's lock when another wants it: by Python's default,
5 ms, completions would be late."""
CAP = 200 << 20
"""Bytes that a run may take beyond those of its start; the size of the original's JVM heap."""
EXCESS = 0.01
"""How much the share of expired requests may differ from the drawn share in a valid run."""
ACHIEVED, STEP = 0.95, 1.06
SECONDS, ROUGH_RATE = 2.0, 150_000


Plan = tuple[Any, Any]
"""When requests come (seconds), and after how many ms each is completed (0: never)."""


def make_plan(case: str, rate: float, count: int, seed: int) -> Plan:
    """`count` requests at `rate` per second; an infinite rate: all at once."""
    rng = np.random.default_rng(seed)
    p50, p75 = CASES[case]
    gaps = rng.exponential(1.0, count)
    latencies = rng.lognormal(math.log(p50), math.log(p75 / p50) / QUARTILE, count)
    waits = np.where(latencies < TIMEOUT_MS, np.ceil(latencies), 0).astype(np.int64)
    return np.cumsum(gaps) / rate, waits


def make_request(base: Any, expired: list[int]) -> Any:
    """The operation of the experiment for one purgatory; `expired[0]` counts expirations."""

    class Request(base):  # type: ignore[misc]
        __slots__ = ("data",)

        def try_complete(self) -> bool:
            return False  # only the completer completes it

        def on_complete(self) -> None:
            pass

        def on_expiration(self) -> None:
            expired[0] += 1

    return Request


class Completer(threading.Thread):
    """Completes requests in their millisecond.

    A list is emptied from its front, never replaced: requests that the driver appends meanwhile
    stay. It may append to a millisecond that has just passed, so the last ones are looked at again.
    """

    def __init__(self, begin: float) -> None:
        super().__init__(name="completer", daemon=True)
        self.ring: list[list[Any]] = [[] for _ in range(RING)]
        self.completed = 0
        self.reached = 0
        """All requests of the milliseconds before this one are completed."""
        self._begin = begin
        self._done = False

    def run(self) -> None:
        last = 0
        while not self._done:
            now = int((time.monotonic() - self._begin) * 1000)
            first, last = max(last, now - RING) - LOOK_BACK, now
            for at in range(first, now + 1):
                if bucket := self.ring[at % RING]:
                    batch = bucket.copy()
                    del bucket[: len(batch)]
                    self.completed += sum([operation.force_complete() for operation in batch])
                self.reached = max(self.reached, at)
            time.sleep(TICK)

    def stop(self) -> None:
        self._done = True
        self.join()


def drive(plan: Plan, completer: Completer, begin: float, request: Any, watch: Any) -> None:
    """Put all requests into the purgatory, none before its time, nor while the completer lags."""
    (arrivals, waits), keys = plan, ("topic-1", "topic-2", "topic-3")
    ring, timeout, at, count = completer.ring, TIMEOUT_MS / 1000, 0, len(plan[0])
    while at < count:
        now = time.monotonic() - begin
        if now * 1000 - completer.reached > LAG_MS:
            time.sleep(TICK / 2)
            continue
        end = min(int(arrivals.searchsorted(now, "right")), at + CHUNK)
        if end <= at:
            time.sleep(max(TICK, arrivals[at] - now))
            continue
        ms, some = int(now * 1000) + 1, waits[at:end]
        for slot in np.where(some, (ms + some) % RING, -1).tolist():
            operation = request(timeout)
            operation.data = bytes(DATA_BYTES)
            watch(operation, keys)
            if slot >= 0:
                ring[slot].append(operation)
        at = end


def run(plan: Plan, base: Any, purgatory: Any) -> tuple[float, float, int, int]:
    """The whole workload; returns when all requests have left: enqueued and finished, seconds since
    the start, completed and expired.

    RuntimeError: some request was completed twice, or never.
    """
    expired = [0]
    request = make_request(base, expired)
    sys.setswitchinterval(SWITCH_SECONDS)
    begin = time.monotonic() + 0.01
    completer = Completer(begin)
    completer.start()
    drive(plan, completer, begin, request, purgatory.try_complete_else_watch)
    enqueued = time.monotonic() - begin
    wanted = np.count_nonzero(plan[1]) if base is NullOperation else len(plan[1])
    give_up = time.monotonic() + 60
    while completer.completed + expired[0] < wanted and time.monotonic() < give_up:
        time.sleep(TICK)
    finished = time.monotonic() - begin
    completer.stop()
    if completer.completed + expired[0] != wanted:
        raise RuntimeError(f"{wanted} requests: {completer.completed} + {expired[0]} left")
    return enqueued, finished, completer.completed, expired[0]


def _size(field: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {field}")


def one_run(who: str, daemon: str, case: str, rate: float, count: int, pipe: Connection) -> Sample:
    """The workload once, in a process that may take CAP bytes beyond those of its start."""
    exact_sleeps()
    plan = make_plan(case, rate, count, 1)
    with ExitStack() as stack:
        base, purgatory = purgatory_of(who, daemon, stack)
        run(make_plan("low", np.inf, 500, 1), base, purgatory)
        clock = pids(daemon)[0] if daemon else None
        processes.ready(pipe)
        threading.stack_size(1 << 20)  # stacks count with their whole size
        hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
        resource.setrlimit(resource.RLIMIT_DATA, (_size("VmData") + CAP, hard))
        gc.collect()
        resident, cpu = _size("VmRSS"), time.process_time_ns() + (cpu_ns(clock) if clock else 0)
        enqueued, finished, _, expired = run(plan, base, purgatory)
        cpu = time.process_time_ns() + (cpu_ns(clock) if clock else 0) - cpu
        drawn = 0 if base is NullOperation else count - np.count_nonzero(plan[1])
        # Nobody gets a better rate by leaving the expirations for later: the last request may take
        # its timeout, no more.
        return {
            "rate": count / max(enqueued, finished - TIMEOUT_MS / 1000),
            "counts": float(abs(expired - drawn) <= EXCESS * count),
            "CPU, ns": cpu / count,
            "peak, MB": (_size("VmHWM") - resident) / 2**20,
        }


def saturation(achieves: Callable[[float], bool], rate: float, least: float, step: float) -> float:
    """The highest rate that is achieved, searched in steps from `rate` on; at least `least`."""
    if achieves(rate):
        while achieves(rate * step):
            rate *= step
        return rate
    while rate > least and not achieves(rate := rate / step):
        pass
    return rate


def experiment(who: str, quick: bool) -> Iterator[Sample]:
    """Few timeouts and many: all requests at once, and the highest rate that is kept up with.

    A run that fails (out of memory, say) or has late completions counts for nothing.
    """
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # numpy's threads would spin, and take memory
    with ExitStack() as stack:
        daemon = daemon_of(who, 1 << 19, stack)

        def measured(case: str, rate: float, about: float) -> Sample:
            count = 2_000 if quick else max(2_000, int(about * SECONDS))
            try:
                found: Sample = processes.alone(one_run, who, daemon, case, rate, count)
            except RuntimeError as error:
                print(f"{who}, {case}: {error}", file=sys.stderr)
                found = {"counts": 0.0}
            return found if found["counts"] else {
                "rate": 1e-9, "CPU, ns": math.inf, "peak, MB": math.inf}  # fmt: skip

        while True:
            sample: Sample = {}
            for case in CASES:
                about = ROUGH_RATE / 10
                if not quick:
                    about = max(measured(case, math.inf, ROUGH_RATE)["rate"], about)
                flat_out = measured(case, math.inf, about)

                def achieves(rate: float, case: str = case) -> bool:
                    return measured(case, rate, rate)["rate"] >= ACHIEVED * rate

                if quick and achieves(about):
                    best = about
                else:
                    best = saturation(achieves, about, 1_000, 100.0 if quick else STEP)
                sample[f"{case}, saturation, ns"] = 1e9 / best
                sample[f"{case}, all at once, ns"] = 1e9 / flat_out["rate"]
                sample |= {f"{case}, {name}": flat_out[name] for name in ("CPU, ns", "peak, MB")}
            yield sample


# -- from a check here to `on_complete` there: the receiver sleeps before each message ------------

BYSTANDERS = 1000
"""Operations of the other process that watch other keys."""
CHECKED = {"nobody watches": "unwatched", "others watch": "other-1"}


def _await_bytes(loop: str, end: Connection, pipe: Connection) -> None:
    """Wait for a byte in a system call, or in an event loop."""
    exact_sleeps()
    times: list[int] = []

    async def serve() -> None:
        event = asyncio.Event()

        def take() -> None:
            times.append(time.monotonic_ns())
            os.read(end.fileno(), 8)
            event.set()

        asyncio.get_running_loop().add_reader(end.fileno(), take)
        processes.ready(pipe)
        while count := pipe.recv():
            for _ in range(count):
                event.clear()
                pipe.send((True, None))
                await event.wait()
            pipe.send((True, times))
            times.clear()

    if loop != "thread":
        _run(loop, serve())
    processes.ready(pipe)
    while count := pipe.recv():
        for _ in range(count):
            pipe.send((True, None))
            os.read(end.fileno(), 8)
            times.append(time.monotonic_ns())
        pipe.send((True, times))
        times.clear()


def _run(loop: str, main: Any) -> None:
    from bench.cases.waits import new_loop

    with asyncio.Runner(loop_factory=lambda: new_loop(loop)) as runner:
        runner.run(main)


class Answer(DelayedOperation):
    """Completes when it is checked after it was set ready; notes when."""

    __slots__ = ("done", "ready", "when")

    def __init__(self, timeout: float, done: Callable[[], Any]) -> None:
        super().__init__(timeout)
        self.ready, self.when, self.done = False, 0, done

    def try_complete(self) -> bool:
        return self.ready and self.force_complete()

    def on_complete(self) -> None:
        self.when = time.monotonic_ns()
        self.done()


def _await_checks(loop: str, daemon: str, pipe: Connection) -> None:
    """Operations wait, for a dispatching thread or awaited on an event loop."""
    exact_sleeps()
    done = threading.Semaphore(0)

    def prepare(mine: Any) -> None:
        for number in range(BYSTANDERS):
            mine.try_complete_else_watch(Answer(HOUR, int), [f"other-{number}"])
        processes.ready(pipe)

    def armed(done: Callable[[], Any], begin: Callable[..., Any]) -> tuple[Answer, Any]:
        operation = Answer(5.0, done)
        waits = begin(operation, ["key"])
        operation.ready = True
        pipe.send((True, None))
        return operation, waits

    async def serve() -> None:
        async with wheeld_client.AsyncTimers(daemon) as timers:
            mine = wheeld_client.AsyncPurgatory(timers, "bench")
            prepare(mine)
            while count := pipe.recv():
                times = []
                for _ in range(count):
                    operation, waits = armed(int, mine.begin)
                    await waits
                    times.append(operation.when)
                pipe.send((True, times))

    if loop != "thread":
        _run(loop, serve())
    with wheeld_client.connect(daemon) as timers, Purgatory(timers, "bench") as mine:
        prepare(mine)
        with timers.dispatching():
            while count := pipe.recv():
                times = []
                for _ in range(count):
                    operation, _ = armed(done.release, mine.try_complete_else_watch)
                    done.acquire()
                    times.append(operation.when)
                pipe.send((True, times))


def latency(bare: bool, loop: str, quick: bool) -> Iterator[Sample]:
    """The latency of a check, or of a byte through a pipe if `bare`; and the caller's cost of a
    check."""
    count, checks, watch = 20 if quick else 400, 1_000 if quick else 100_000, Watch()
    rng = np.random.default_rng(1)
    with ExitStack() as stack:
        if bare:
            reader, writer = Pipe(duplex=False)
            other = Background(_await_bytes, loop, reader)
        else:
            daemon = stack.enter_context(wheeld.embedded())
            timers = stack.enter_context(wheeld_client.connect(daemon))
            mine = stack.enter_context(Purgatory(timers, "bench"))
            other = Background(_await_checks, loop, daemon)
        stack.callback(other.stop)
        other.receive()
        other.go()
        while True:
            other.pipe.send(count)
            begins = []
            for _ in range(count):
                other.receive()
                time.sleep(rng.uniform(0.001, 0.003))
                begins.append(time.monotonic_ns())
                if bare:
                    os.write(writer.fileno(), b"\1" * 8)
                else:
                    mine.check_and_complete("key")
            late = (np.array(other.receive()) - begins) / 1e3
            sample = {f"p{share}, us": float(np.percentile(late, share)) for share in (50, 99)}
            for what, key in () if bare else CHECKED.items():
                watch.start()
                for _ in range(checks):
                    mine.check_and_complete(key)
                sample[f"{what}, ns"] = watch.ns_each(checks)
            yield sample
