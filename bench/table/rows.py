"""The fourteen rows: what is measured against whom, and the targets."""

from __future__ import annotations

from functools import partial

from bench.cases import (
    adders,
    beanstalk,
    callbacks,
    calls,
    firing,
    loops,
    netty,
    pairs,
    pool,
    sleeper,
    sparse,
    start,
)
from bench.contenders import Asyncio, Heap, Uvloop, Wheel
from bench.table.row import Below, Line, Row

LOOPS = {
    "wheeld on asyncio": loops.on_asyncio,
    "wheeld on uvloop": loops.on_uvloop,
    "asyncio": loops.asyncio_own,
    "uvloop": loops.uvloop_own,
}
SPARSE = {
    "wheeld, tick 1 ms": sparse.wheeld,
    "wheeld, tick 0.1 ms": sparse.wheeld_fine,
    "heapq": sparse.heap,
    "asyncio": sparse.asyncio_loop,
    "uvloop": sparse.uvloop_loop,
    "Redis": sparse.redis_set,
    "beanstalkd": beanstalk.server,
}
FEW = {
    "wheeld": sparse.wheeld_few,
    "heapq": sparse.heap_few,
    "asyncio": sparse.asyncio_few,
    "uvloop": sparse.uvloop_few,
}


BATCHES = "the slots' lines, fetched ahead, and a submission for each timer"
ONE_CALL = "the call itself, and the cache lines of a slot that lies anywhere"
CALLBACKS = (
    "the worker takes {CPU of the worker, ns:.0f} ns of CPU, the clock {CPU of the clock, ns:.0f}; "
    "the worker's part is the handle, which the garbage collector visits while it waits, its entry "
    "in their table, the native schedule, and call_later and the callback in Python"
)
SPARSE_CPU = (
    "the worker takes {CPU of the worker, s:.2f} s, the clock {CPU of the clock, s:.2f}: both are "
    "woken for each tick that has timers, by the kernel, for as long as it takes to sleep again"
)
PAIRS = "making the operation and its key, and its methods in Python, which are called for each"
POOL = "the calls of the buffer's object from Python; the memory takes two atomic additions"
MEMORY = (
    "what it loads, Python, numpy, asyncio and its own modules, are 20 MB; 12 to 13 of these it "
    "shares with its clock, which is a fork of it"
)
IMPORT = "{import without bytecode, CPU s:.2f} s of CPU without bytecode: compiling 77 modules"
START = "{start, CPU s:.2f} s of CPU: Python, numpy and asyncio are loaded, then shared memory made"


def _on_both(text: str, what: str, reach: float | None, where: str) -> tuple[Line, ...]:
    """On both loops; without a number to be reached, no more than what the loop's own needs."""
    worker, clock = (f"{{{what}, CPU of the {who}, us:.1f}} us" for who in ("worker", "clock"))
    return tuple(
        Line(
            f"{text}, on {loop}",
            f"{what}, CPU of all, us",
            Below(loop) if reach is None else reach,
            "us",
            f"wheeld on {loop}",
            where=f"the worker takes {worker}, the clock {clock}; {where}",
        )
        for loop in ("asyncio", "uvloop")
    )


def _adders(text: str, what: str, reach: float | None) -> Line:
    """Timers per second of all adders together."""
    return Line(
        text,
        f"{what}, ns",
        reach,
        "M/s",
        rate=1e3,
        where=f"a timer takes {{{what}, CPU of an adder, ns:.0f}} ns of its adder and "
        f"{{{what}, CPU of the clock, ns:.0f}} of the clock, which links it; the clock has the "
        "cores, too: three processes on two",
    )


def _one_call(what: str, reach: float) -> tuple[Line, Line]:
    """In fresh slots, and in scattered ones."""
    metric = f"{what}, ns"
    return (
        Line(f"{what}, scattered slots", metric, reach, ours="wheeld, scattered", where=ONE_CALL),
        Line(f"{what}, fresh slots", metric, reach, ours="wheeld, fresh", where=ONE_CALL),
    )


ROWS = (
    Row(
        "fire",
        "CPU per firing: 1 M timers, random deadlines over 2 s, one worker",
        {"wheeld": firing.wheeld, "Netty": netty.fire, "plain sleep": sleeper.sleep},
        (
            Line(
                "clock and worker together",
                "together, ns",
                250,
                where="the clock takes {clock, ns:.0f} ns, the worker {worker, ns:.0f}: most of it "
                "loads of slots and bucket entries that lie anywhere in memory (`perf`: wh_pass, "
                "wh_prefetch_slot, wh_client_receive)",
            ),
            Line(
                "late, p99",
                "late p99, us",
                Below("plain sleep", 1000),
                "us",
                where="a tick, and passes of the clock that cascade a bucket before they fire",
            ),
        ),
        rounds=3,
        floors=("plain sleep",),
    ),
    Row(
        "batches",
        "batches of 100,000, 1 M pending, per timer",
        {"wheeld": calls.several, "heapq": calls.several_of_heap},
        (
            Line("reschedule_many, later", "reschedule_many, later, ns", 40, where=BATCHES),
            Line("reschedule_many, earlier", "reschedule_many, earlier, ns", 40, where=BATCHES),
            Line("schedule_many", "schedule_many, ns", 40, where=BATCHES),
            Line("cancel_many", "cancel_many, ns", 40, where=BATCHES),
        ),
    ),
    Row(
        "one-call",
        "one by one, 100,000 pending",
        {
            "wheeld, scattered": partial(calls.single, Wheel, True),
            "wheeld, fresh": partial(calls.single, Wheel, False),
            "heapq": partial(calls.single, Heap, True),
            "asyncio": partial(calls.single, Asyncio, True),
            "uvloop": partial(calls.single, Uvloop, True),
        },
        (
            *_one_call("reschedule", 440),
            *_one_call("schedule", 259),
            *_one_call("cancel", 186),
        ),
        rounds=7,
        notes=("rivals: scattered, too; they cancel and schedule anew to reschedule",),
    ),
    Row(
        "callbacks",
        "call_later and dispatch, sustained",
        {
            "wheeld": callbacks.wheeld,
            "heapq": callbacks.heap,
            "asyncio": callbacks.asyncio_loop,
            "uvloop": callbacks.uvloop_loop,
        },
        (
            Line("callbacks per second", "each, ns", 1.5, "M/s", rate=1e3, where=CALLBACKS),
            Line("CPU of all processes, each", "CPU of all, ns", 667, where=CALLBACKS),
        ),
        busy=True,
    ),
    Row(
        "timeout",
        "asyncio: a timeout() that expires, one each millisecond, CPU of all processes",
        LOOPS,
        _on_both(
            "a timeout that expires",
            "timeout that expires",
            None,
            "each expiry wakes two processes, the clock and the loop, where asyncio wakes one",
        ),
        busy=True,
    ),
    Row(
        "sleep-200",
        "asyncio: 200 tasks that sleep 50 ms each, CPU of all processes",
        LOOPS,
        _on_both(
            "a sleep",
            "200 sleeps of 50 ms",
            None,
            "tasks are made, wait and end within it, in asyncio's part too",
        ),
    ),
    Row(
        "sleep-2000",
        "asyncio: 2,000 sleepers of 1 to 20 ms, CPU of all processes",
        LOOPS,
        _on_both(
            "a sleep",
            "2000 sleeps of 1 to 20 ms",
            5,
            "tasks are made, wait and end within it, in asyncio's part too",
        ),
    ),
    Row(
        "sparse",
        "10,000 timers per second, tick 1 ms; CPU of all processes for 100,000",
        SPARSE,
        (Line("CPU", "CPU of all, s", 0.5, "s", "wheeld, tick 1 ms", where=SPARSE_CPU),),
        rounds=3,
        warm=False,
        busy=True,
    ),
    Row(
        "sparse-fine",
        "the same at a tick of 0.1 ms",
        SPARSE,
        (
            Line(
                "late, p50",
                "p50, us",
                80,
                "us",
                "wheeld, tick 0.1 ms",
                where="the wake-ups of clock and worker, one after the other",
            ),
            Line("CPU", "CPU of all, s", 1.5, "s", "wheeld, tick 0.1 ms", where=SPARSE_CPU),
        ),
        rounds=3,
        warm=False,
        busy=True,
    ),
    Row(
        "adders",
        "processes that schedule at once",
        {"wheeld": adders.wheeld, "Netty": netty.add},
        (
            _adders("two, one by one", "two one by one", 8),
            _adders("two, in batches of 10,000", "two in batches", 20),
            _adders("three, one by one", "three one by one", None),
            _adders("three, in batches of 10,000", "three in batches", None),
        ),
        notes=("Netty: threads of one JVM, which has no batches",),
    ),
    Row(
        "pairs",
        "purgatory: watch and check of one key, operations in Python, one process",
        {"wheeld": pairs.wheeld, "lazy heap": pairs.lazy, "old design": pairs.old},
        (
            Line(
                "pairs per second, made too",
                "pair, made too, ns",
                800,
                "k/s",
                rate=1e6,
                where=PAIRS,
            ),
            Line("watch", "watch, ns", 625, where=PAIRS),
            Line("check and complete", "check and complete, ns", 625, where=PAIRS),
        ),
        notes=("rivals in Python: a heap with lazy deletion, and Kafka's design before its wheel",),
    ),
    Row(
        "allocate",
        "a pool's memory, 1,000 bytes",
        {"wheeld": pool.wheeld, "multiprocessing.Semaphore": pool.semaphore},
        (
            Line("with pool.allocate(n)", "with allocate(), ns", 180, where=POOL),
            Line("try_allocate(n).release()", "try_allocate().release(), ns", 115, where=POOL),
        ),
        rounds=9,
    ),
    Row(
        "start",
        "before the first timer",
        {"wheeld": start.wheeld, "Redis": start.redis},
        (
            Line(
                "from wheeld_client import connect, beyond numpy",
                "import, s",
                0.25,
                "s",
                where=IMPORT,
            ),
            Line(
                "the same without bytecode", "import without bytecode, s", 0.25, "s", where=IMPORT
            ),
            Line(
                "supervisor's private memory",
                "supervisor's private memory, MB",
                18.75,
                "MB",
                where=MEMORY,
            ),
            Line("wheeld start to serving", "start, s", 0.55, "s", where=START),
        ),
        rounds=3,
        notes=("Redis: redis-py's import, and the server",),
    ),
    Row(
        "few",
        "500 timers per second, tick 1 ms",
        FEW,
        (
            Line(
                *("late, p50", "p50, us", 100, "us"),
                where="two wake-ups, of the clock and then of the worker: each waits for a core",
            ),
            Line("late, p99", "p99, us", None, "us"),
            Line("CPU of all processes for 100,000", "CPU of all, s", None, "s", where=SPARSE_CPU),
        ),
        rounds=3,
        warm=False,
    ),
)
"""In the order of the table."""
