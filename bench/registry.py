"""The registry of cases, contenders and targets, in the order of the table."""

from __future__ import annotations

from functools import partial
from typing import Any

from bench import sharing
from bench.cases import (
    calls,
    daemons,
    intake,
    native,
    purgatory,
    rivals,
    testing,
    waits,
)
from bench.row import Below, Line, Row

LOOPS = {
    "wheeld on asyncio": partial(waits.loop_shared, "asyncio"),
    "wheeld on uvloop": partial(waits.loop_shared, "uvloop"),
    "asyncio": partial(waits.loop_own, "asyncio"),
    "uvloop": partial(waits.loop_own, "uvloop"),
}
SPARSE = {
    "wheeld, tick 1 ms": partial(waits.sparse, "1ms", waits.RATE),
    "wheeld, tick 0.1 ms": partial(waits.sparse, "100us", waits.RATE),
    "heapq": partial(waits.sparse_heap, waits.RATE),
    "asyncio": partial(waits.sparse_loop, "asyncio", waits.RATE),
    "uvloop": partial(waits.sparse_loop, "uvloop", waits.RATE),
    "Redis": rivals.redis,
    "beanstalkd": rivals.beanstalk,
}
FEW = {
    "wheeld": partial(waits.sparse, "1ms", 500),
    "heapq": partial(waits.sparse_heap, 500),
    "asyncio": partial(waits.sparse_loop, "asyncio", 500),
    "uvloop": partial(waits.sparse_loop, "uvloop", 500),
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
    """Compares both loops; without a target number, the loop's own timers are the limit."""
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
    metric = f"{what}, ns"
    return (
        Line(f"{what}, scattered slots", metric, reach, ours="wheeld, scattered", where=ONE_CALL),
        Line(f"{what}, fresh slots", metric, reach, ours="wheeld, fresh", where=ONE_CALL),
    )


TABLE = (
    Row(
        "fire",
        "CPU per firing: 1 M timers, random deadlines over 2 s, one worker",
        {
            "wheeld": partial(waits.firing, True),
            "wheeld, small pages": partial(waits.firing, False),
            "Netty": rivals.netty_fires,
            "plain sleep": waits.plain_sleep,
        },
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
            "wheeld, scattered": partial(calls.single, "wheeld", True),
            "wheeld, fresh": partial(calls.single, "wheeld", False),
            "heapq": partial(calls.single, "heapq", True),
            "asyncio": partial(calls.single, "asyncio", True),
            "uvloop": partial(calls.single, "uvloop", True),
        },
        (
            *_one_call("reschedule", 440),
            *_one_call("schedule", 259),
            *_one_call("cancel", 186),
        ),
        rounds=7,
        notes=("rivals: scattered, too; to reschedule, they cancel and schedule again",),
    ),
    *sharing.ROWS,
    Row(
        "callbacks",
        "call_later and dispatch, sustained",
        {
            "wheeld": waits.callbacks,
            "heapq": waits.callbacks_heap,
            "asyncio": partial(waits.callbacks_loop, "asyncio"),
            "uvloop": partial(waits.callbacks_loop, "uvloop"),
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
        {"wheeld": daemons.adders, "Netty": rivals.netty_adds},
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
        {
            "wheeld": partial(purgatory.pairs, "wheeld"),
            "lazy heap": partial(purgatory.pairs, "lazy heap"),
            "old design": partial(purgatory.pairs, "old design"),
        },
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
        {"wheeld": daemons.pool, "multiprocessing.Semaphore": daemons.semaphore},
        (
            Line("with pool.allocate(n)", "allocate(), ns", 180, where=POOL),
            Line("try_allocate(n).release()", "try_allocate().release(), ns", 115, where=POOL),
        ),
        rounds=9,
    ),
    Row(
        "start",
        "before the first timer",
        {"wheeld": daemons.start, "Redis": daemons.start_redis},
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
                "private memory, MB",
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

PENDING = Row(
    "pending",
    "one call, by the number pending",
    {
        "wheeld": partial(calls.by_pending, "wheeld", 10_000_000),
        "heapq": partial(calls.by_pending, "heapq", 10_000_000),
        "asyncio": partial(calls.by_pending, "asyncio", 1_000_000),
        "uvloop": partial(calls.by_pending, "uvloop", 1_000_000),
    },
    tuple(
        Line(f"{what} among {size:,}", f"{what} among {size:,}, ns")
        for what in calls.ONE_CALL
        for size in calls.SIZES
    ),
    rounds=2,
    warm=False,
)


def _detail(name: str, title: str, contenders: Any, *lines: Line, **more: Any) -> Row:
    return Row(name, title, contenders, lines, detail=True, **more)


def _purgatories(case: Any) -> dict[str, Any]:
    return {who: partial(case, who) for who in ("wheeld", *purgatory.RIVALS)}


DETAILS = (
    _detail(
        "buckets",
        "a cascade and a cancel, CPU per timer of a million in random order",
        {
            "links": partial(native.program, "buckets", 0, 0),
            "wheeld: links and hints": partial(native.program, "buckets", 1, 1),
            "blocks": partial(native.program, "buckets", 2, 2),
        },
        Line("cascade", "cascade, ns", ours="wheeld: links and hints"),
        Line("cancel", "cancel, ns", ours="wheeld: links and hints"),
    ),
    _detail(
        "recording",
        "a trace, per timer that is scheduled and received",
        {
            "wheeld, recording": partial(daemons.recording, True),
            "not recording": partial(daemons.recording, False),
        },
        *(
            Line(what, f"{what}, ns", Below("not recording", 0, 1 / 0.9), ours="wheeld, recording")
            for what in daemons.LOADS
        ),
        Line(
            *(f"events lost at {daemons.MODERATE:,} timers/s", "moderate, lost", 0, "events"),
            ours="wheeld, recording",
        ),
        warm=False,
    ),
    _detail(
        "neighbours",
        "the worst of timers 1 ms apart beside a crowd of another worker, least of the rounds",
        {case: partial(daemons.neighbour, case) for case in ("idle", *daemons.CROWDS)},
        *(Line(case, "fired, ms", Below("idle", 2), "ms", case) for case in daemons.CROWDS),
        floors=("idle", *daemons.CROWDS),
        warm=False,
        middle=min,
    ),
    _detail(
        "one-clock",
        "the clock's CPU for a timer that is armed in a batch, linked and fired",
        {f"wheeld, {many} workers": partial(daemons.one_clock, many) for many in (1, 2, 4, 8)},
        *(
            Line(f"{many} workers", "clock, ns", ours=f"wheeld, {many} workers")
            for many in (1, 2, 4, 8)
        ),
        rounds=3,
    ),
    _detail(
        "histograms",
        "the live histograms, for each firing",
        {"wheeld": partial(native.program, "histograms", 4, 256)},
        Line("the clock: lateness, schedule to fire", "clock, ns"),
        Line("the worker: fire to poll", "worker, ns"),
        Line("both", "both, ns", 15.0),
    ),
    _detail(
        "idle",
        "context switches in 10 s while a million timers are not due",
        {"wheeld": daemons.idle},
        Line("all processes", "all", 0, "switches"),
        rounds=1,
        warm=False,
    ),
    _detail(
        "wakes",
        "a wake-up, CPU of a process",
        {"wheeld": partial(native.program, "wakes", 50, 2000)},
        Line("wakes at its own deadline", "deadline, us", None, "us"),
        Line("then rings another one", "ring, us", None, "us"),
        Line("is rung", "rung, us", None, "us"),
    ),
    _detail(
        "memory",
        "memory per timer; of wheeld per slot, with two workers",
        {who: partial(calls.memory, who) for who in ("wheeld", "heapq", "asyncio")},
        Line("each", "each, bytes", 112, "bytes"),
        rounds=1,
        warm=False,
    ),
    _detail(
        "purgatory",
        "Kafka's experiment: few timeouts (low), and many (high)",
        _purgatories(purgatory.experiment),
        *(
            Line(f"{case}, {what}", f"{case}, {metric}", reach, unit, rate=rate)
            for case in purgatory.CASES
            for what, metric, reach, unit, rate in (
                ("saturation", "saturation, ns", Below("old design", 0, 3), "/s", 1e9),
                ("all at once", "all at once, ns", None, "/s", 1e9),
                ("CPU for each request, all at once", "CPU, ns", None, "ns", None),
                ("memory above the start, all at once", "peak, MB", None, "MB", None),
            )
        ),
        rounds=3,
        warm=False,
        floors=("nothing",),
        notes=("nothing: the harness's own share",),
    ),
    _detail(
        "purgatory-waiting",
        "one operation under three keys, while many others wait",
        _purgatories(purgatory.waiting),
        *(
            Line(f"{what} among {size:,}", f"{what} among {size:,}, ns")
            for what in ("watch", "oldest", "random")
            for size in purgatory.WAITING
        ),
        warm=False,
        floors=("nothing",),
        notes=("oldest, random: completed in this order; the old design pays in its purges",),
    ),
    _detail(
        "purgatory-latency",
        "a check here to on_complete in another process; and what a check costs its caller",
        {
            "wheeld, a dispatching thread": partial(purgatory.latency, False, "thread"),
            "wheeld on asyncio": partial(purgatory.latency, False, "asyncio"),
            "wheeld on uvloop": partial(purgatory.latency, False, "uvloop"),
            "a pipe": partial(purgatory.latency, True, "thread"),
            "a pipe on asyncio": partial(purgatory.latency, True, "asyncio"),
            "a pipe on uvloop": partial(purgatory.latency, True, "uvloop"),
        },
        Line("p50, a dispatching thread", "p50, us", 40, "us", "wheeld, a dispatching thread"),
        Line("p50, asyncio", "p50, us", 40, "us", "wheeld on asyncio"),
        Line("p50, uvloop", "p50, us", 40, "us", "wheeld on uvloop"),
        Line("p99, a dispatching thread", "p99, us", 1000, "us", "wheeld, a dispatching thread"),
        *(
            Line(f"a check, {what}", f"{what}, ns", 1000, "ns", "wheeld, a dispatching thread")
            for what in purgatory.CHECKED
        ),
    ),
    _detail(
        "purgatory-collections",
        "a full collection of the cycle collector, half a million operations wait",
        {
            "wheeld": partial(purgatory.collection, True),
            "plain objects": partial(purgatory.collection, False),
        },
        Line("a full collection", "a full collection, ms", None, "ms"),
    ),
    _detail(
        "intake",
        "CPU time of a server for each request of 100 bytes",
        {
            f"{who} on {loop}": partial(intake.case, bare, loop)
            for who, bare in (("wheeld", False), ("bare", True))
            for loop in ("asyncio", "uvloop")
        },
        *(
            Line(
                *(f"{load}, {loop}", f"{load}, us", Below(f"bare on {loop}", 0, most), "us"),
                ours=f"wheeld on {loop}",
            )
            for loop in ("asyncio", "uvloop")
            for load, (_, most) in intake.LOADS.items()
        ),
        rounds=7,
    ),
    _detail(
        "testing",
        "a test's wheel, by a fork server or alone",
        {
            "wheeld": partial(testing.case, True),
            "alone": partial(testing.case, False),
        },
        Line("a wheel, start and stop", "a wheel, ms", None, "ms"),
        Line("wheeld start until it serves, and stop", "wheeld start, ms", None, "ms"),
        Line("advance past a timer", "advance, ms", None, "ms"),
    ),
    _detail(
        "looks",
        "operations asked in vain by a check of 10,000, each of which waits under its own key",
        {"wheeld": purgatory.looks},
        *(
            Line(
                f"{at_once:,} at once, {size:,} wait", f"{at_once} at once, {size:,} wait", unit=""
            )
            for size in purgatory.LOOKS
            for at_once in (1, 1000, purgatory.CHECKS)
        ),
        rounds=1,
        warm=False,
    ),
)
ROWS = {row.name: row for row in (*TABLE, PENDING, *DETAILS)}
