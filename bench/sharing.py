"""Rows of what workers share: timers by key, payloads, limits, leases, jobs."""

from __future__ import annotations

from bench.cases.sharing import jobs, keys, leases, limits
from bench.row import Below, Line, Row

KEYS = (
    "the cache lines of a key's set, of its slot's room and of a slot that lies anywhere, and the "
    "call with arguments by name"
)
RECORD = f"the record, a tuple of nine objects; {KEYS}"
LIMITS = "Flask and flask-limiter: a request asks the storage for its hit and for its headers"
LINES = "the cache lines of the key's two sets, and two calls from Python"


def _keys(text: str, what: str, reach: float | None = None, where: str = KEYS) -> Line:
    return Line(text, f"{what}, ns", reach, where=where if reach else "")


ROWS = (
    Row(
        "keys",
        "by key, 100,000 pending; found, moved and replaced by another worker",
        keys.CONTENDERS,
        (
            _keys("schedule(key=)", "schedule with key", 300),
            _keys("find", "find", 150, RECORD),
            _keys("reschedule(key=), to later", "reschedule by key, to later", 200),
            _keys("reschedule(id)", "reschedule by id", 250),
            _keys("schedule_many(keys=) of 100,000, each", "schedule_many", 150),
            _keys("schedule(key=), which replaces one", "replace"),
            _keys("Deadlines.extend", "extend"),
        ),
        notes=("Redis: one client over a Unix socket; a dict and a heap: in one process",),
    ),
    Row(
        "keys-million",
        "the same among a million keys",
        keys.MANY_CONTENDERS,
        (_keys("schedule(key=)", "schedule with key", 450), _keys("find", "find")),
        rounds=3,
    ),
    Row(
        "debounce",
        "one key, replaced by four processes at once",
        keys.DEBOUNCE_CONTENDERS,
        (
            Line(
                "replacements of all together",
                "together, ns",
                1.0,
                "M/s",
                rate=1e3,
                where="the line of one word and of one state, which goes from core to core; each "
                "replacement gives the clock two timers to look at",
            ),
        ),
        rounds=3,
    ),
    Row(
        "payloads",
        "schedule with a payload, 100,000 pending",
        keys.BODIES_CONTENDERS,
        tuple(
            _keys(what, what, reach, "a block of the heap, and the cache lines of its bytes")
            for what, reach in zip(keys.BODIES, (250, 900), strict=True)
        ),
        notes=("Redis: SET with PX; a dict and a heap: with a copy of the bytes",),
    ),
    Row(
        "keys-memory",
        "memory of a timer with a key of 16 bytes, a million in a full wheel",
        keys.MEMORY_CONTENDERS,
        (
            Line("each", "each, bytes", None, "bytes"),
            Line(
                *("beyond one without a key", "beyond a plain one, bytes", 64, "bytes"),
                where="40 bytes of its slot's room, and 24 of each place of the directory, which "
                "has one and a half for each slot, rounded up to a power of two",
            ),
        ),
        rounds=1,
        warm=False,
        notes=("rivals: 100,000 keys; Redis: SET with PX alone",),
    ),
    Row(
        "rate-limit",
        "RateLimit.try_acquire, beside FixedWindowRateLimiter.hit of limits",
        limits.HITS,
        (
            Line("one key", "one key, ns", 150, where=LINES),
            Line("100,000 keys", "many keys, ns", 300, where=LINES),
        ),
        notes=("limits memory: in one process",),
    ),
    Row(
        "limits",
        "an application of Flask with flask-limiter, requests of one process",
        limits.CONTENDERS,
        tuple(
            Line(
                f"requests per second, {strategy}",
                f"{strategy}, ns",
                Below("memory://"),
                "k/s",
                rate=1e6,
                where=LIMITS,
            )
            for strategy in ("fixed-window", "moving-window")
        ),
        notes=("called without a server; memory:// counts in one process only",),
    ),
    Row(
        "lease",
        "try_acquire and release, which nobody waits for",
        leases.PAIRS,
        (
            Line(
                "Lease",
                *("pair, ns", 250),
                where="five locked instructions: a touch, a compare-and-swap and a let-go of the "
                "word by each call, and the token",
            ),
            Line("Semaphore of 4", "pair of seats, ns"),
        ),
        notes=("multiprocessing.Semaphore: not freed by its holder's death",),
    ),
    Row(
        "hand-over",
        "from release to the return of acquire in another process, which sleeps in it",
        leases.HAND_OVER,
        (
            Line(
                *("p50", "p50, us", 20, "us"),
                where="a futex wakes a process that sleeps, and a core with it",
            ),
            Line("worst of the round", "worst, us", None, "us"),
        ),
        rounds=3,
        warm=False,
        notes=("Redis, filelock, portalocker: ask again each 100, 50, 250 ms, as by default",),
    ),
    Row(
        "jobs",
        "1,000 jobs of 1 s period over 4 workers; APScheduler: in one process",
        jobs.CONTENDERS,
        (
            Line(
                *("late, p99", "p99, ms", 2.0, "ms"),
                where="a run is two wake-ups and some 20 calls, by five processes on two cores",
            ),
            Line("late, p50", "p50, ms", None, "ms"),
            Line(
                *("CPU of all processes for each run", "CPU, us", Below("APScheduler"), "us"),
                where="an occurrence is received, locked, noted twice, armed again and "
                "acknowledged in shared memory, where APScheduler looks into a list",
            ),
            Line("not run, or a second late", "not run, %", None, "%"),
        ),
        rounds=3,
        warm=False,
        notes=("each job has its own moment of the second, by one trigger of APScheduler's",),
    ),
)
