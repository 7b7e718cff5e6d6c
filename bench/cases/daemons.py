"""A daemon and several processes: adders, a pool, the start, idling, neighbours, a recorder."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import psutil

import wheeld as daemons
import wheeld_client
from bench import processes
from bench.cases import servers
from bench.cases.calls import HOUR
from bench.processes import Background, Sample, Watch, cpu_ns, pids

MS = 1_000_000

# -- processes that schedule at once, timers an hour away: ns for each timer of all --------------

MOST = {"one": 1, "two": 2, "three": 3}
AHEAD_SECONDS, REST_SECONDS = 0.01, 0.1
BATCH = 10_000


def _adder(name: str, count: int, pipe: Connection) -> None:
    """For each message, add `count` timers, in batches or not; answer with the time taken."""
    delays = np.random.default_rng(1).uniform(HOUR, 2 * HOUR, count)
    one_by_one = delays.tolist()
    with wheeld_client.connect(name) as timers:
        processes.ready(pipe)
        schedule, many = timers.schedule, timers.schedule_many
        while True:
            batches, begin = pipe.recv()
            while time.monotonic() < begin:
                pass
            cpu = time.process_time_ns()
            if batches:
                ids = [many(delays[at : at + BATCH]) for at in range(0, count, BATCH)]
            else:
                ids = [np.array([schedule(delay) for delay in one_by_one], np.uint64)]
            pipe.send((True, (time.monotonic() - begin, time.process_time_ns() - cpu)))
            pipe.recv()  # the others have ended, too
            for some in ids:
                timers.cancel_many(some)


def adders(quick: bool) -> Iterator[Sample]:
    """One, two and three processes, beside the clock."""
    count = 20_000 if quick else 200_000
    with ExitStack() as stack:
        name = stack.enter_context(daemons.embedded(capacity=8 * count + 65_536))
        clock, _ = pids(name)
        started = [Background(_adder, name, count) for _ in MOST]
        for one in started:
            stack.callback(one.stop)
            one.receive()
            one.go()
        while True:
            sample: Sample = {}
            for text, many in MOST.items():
                for batches, way in ((False, "one by one"), (True, "in batches")):
                    time.sleep(REST_SECONDS)
                    begin = time.monotonic() + AHEAD_SECONDS
                    busy = cpu_ns(clock)
                    for one in started[:many]:
                        one.pipe.send((batches, begin))
                    ends = [one.receive() for one in started[:many]]
                    time.sleep(REST_SECONDS)  # the clock takes up the rest
                    busy = cpu_ns(clock) - busy
                    for one in started[:many]:
                        one.go()
                    what, timers = f"{text} {way}", many * count
                    sample[f"{what}, ns"] = 1e9 * max(took for took, _ in ends) / timers
                    sample[f"{what}, CPU of an adder, ns"] = sum(cpu for _, cpu in ends) / timers
                    sample[f"{what}, CPU of the clock, ns"] = busy / timers
            yield sample


# -- what one clock takes for a timer: several processes arm, and receive -----------------------

FLOWING, FLOW_STEPS = 400_000, 10


def _flow(name: str, count: int, seed: int, pipe: Connection) -> None:
    """For each message arm `count` timers in ten steps, and receive all; answer with p99 of how
    late they were, us."""
    draw = np.random.default_rng(seed).uniform
    with wheeld_client.connect(name) as timers:
        processes.ready(pipe)
        while True:
            late: list[Any] = []
            for _ in range(FLOW_STEPS):
                timers.schedule_many(draw(0.3, 0.8, count // FLOW_STEPS))
                late.append(_lateness(timers.poll(0.05)))
            while sum(map(len, late)) < count // FLOW_STEPS * FLOW_STEPS:
                late.append(_lateness(timers.poll(1.0)))
            pipe.send((True, float(np.percentile(np.concatenate(late), 99)) / 1e3))
            pipe.recv()


def _lateness(events: Any) -> Any:
    return events["fired"] - events["deadline"]


def one_clock(workers: int, quick: bool) -> Iterator[Sample]:
    """CPU time of the clock for a timer that is armed, linked and fired."""
    count = (8_000 if quick else FLOWING) // workers
    with ExitStack() as stack:
        name = stack.enter_context(daemons.embedded(capacity=1 << 20))
        clock, _ = pids(name)
        started = [Background(_flow, name, count, seed) for seed in range(workers)]
        for one in started:
            stack.callback(one.stop)
            one.receive()
        while True:
            busy = cpu_ns(clock)
            for one in started:
                one.go()
            late = max(one.receive() for one in started)
            each = (cpu_ns(clock) - busy) / (count * workers)
            yield {"clock, ns": each, "late p99, us": late}


# -- memory of a pool, uncontended; and a semaphore of processes --------------------------------


def pool(quick: bool) -> Iterator[Sample]:
    count, watch = 1_000 if quick else 50_000, Watch()
    with processes.worker(pools=["bench=64M"]) as (timers, _):
        memory = wheeld_client.MemoryPool(timers, "bench")
        allocate, try_allocate = memory.allocate, memory.try_allocate
        while True:
            watch.start()
            for _ in range(count):
                with allocate(1000):
                    pass
            blocks = watch.ns_each(count)
            watch.start()
            for _ in range(count):
                try_allocate(1000).release()  # type: ignore[union-attr]  # nobody else is there
            yield {"allocate(), ns": blocks, "try_allocate().release(), ns": watch.ns_each(count)}


def semaphore(quick: bool) -> Iterator[Sample]:
    """`multiprocessing.Semaphore`, which counts to one budget, too."""
    count, watch = 1_000 if quick else 50_000, Watch()
    lock = multiprocessing.get_context("spawn").Semaphore(1000)
    acquire, release = lock.acquire, lock.release
    while True:
        watch.start()
        for _ in range(count):
            with lock:
                pass
        blocks = watch.ns_each(count)
        watch.start()
        for _ in range(count):
            acquire()
            release()
        yield {"allocate(), ns": blocks, "try_allocate().release(), ns": watch.ns_each(count)}


# -- before the first timer: the import, the start, private memory ------------------------------

PROGRAM = """
import sys, time, {base}
sys.pycache_prefix = {prefix!r} or sys.pycache_prefix
began, cpu = time.perf_counter(), time.process_time()
{what}
print(time.perf_counter() - began, time.process_time() - cpu)
"""


@contextmanager
def compiled() -> Iterator[dict[str, str]]:
    """The environment of programs that find their bytecode, as after an installation."""
    with tempfile.TemporaryDirectory(prefix="bench-bytecode-") as directory:
        own = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
        yield {**own, "PYTHONPYCACHEPREFIX": directory}


def _beyond(what: str, base: str, environment: dict[str, str]) -> Sample:
    """Seconds of an import in a program that has imported something else already.

    Without cached bytecode, Python's own modules have none either.
    """
    sample: Sample = {}
    with tempfile.TemporaryDirectory(prefix="bench-nothing-") as nothing:
        for how, prefix in (("", ""), (" without bytecode", nothing)):
            program = PROGRAM.format(what=what, base=base, prefix=prefix)
            command = [sys.executable, "-c", program]
            took, cpu = map(float, subprocess.check_output(command, env=environment).split())
            sample |= {f"import{how}, s": took, f"import{how}, CPU s": cpu}
    return sample


def _serves(directory: Path) -> tuple[int, int] | None:
    try:
        return pids(str(directory / "bench"))
    except (OSError, ValueError, KeyError):
        return None


def start(quick: bool) -> Iterator[Sample]:
    """The import beyond numpy's; `wheeld start` until it serves; its supervisor's memory."""
    with compiled() as environment, tempfile.TemporaryDirectory(prefix="bench-start-") as place:
        command = [sys.executable, "-m", "wheeld", "start", "--name", "bench"]
        command += ["--runtime-dir", place]
        while True:
            sample = _beyond("from wheeld_client import connect", "numpy", environment)
            begin = time.perf_counter()
            with servers.started(*command, env=environment) as process:
                while (found := _serves(Path(place))) is None:
                    if process.poll() is not None:
                        raise RuntimeError(f"{' '.join(command)} did not start")
                    time.sleep(0.001)
                sample |= _started(begin, *found)
            yield sample


def _started(begin: float, *pids: int) -> Sample:
    took = time.perf_counter() - begin
    return {
        "start, s": took,
        "start, CPU s": sum(map(cpu_ns, pids)) / 1e9,
        "private memory, MB": psutil.Process(pids[-1]).memory_full_info().uss / 1e6,
    }


def start_redis(quick: bool) -> Iterator[Sample]:
    """redis-py's import beyond Python's own; redis-server until it serves; its memory."""
    with compiled() as environment:
        if find_spec("redis") is None:
            raise servers.Missing("Redis: the package redis is not installed")
        while True:
            sample = _beyond("import redis", "os", environment)
            begin = time.perf_counter()
            with servers.redis() as (pid, _):
                sample |= _started(begin, pid)
            yield sample


# -- idling -------------------------------------------------------------------------------------


def _switches(pid: int) -> int:
    """How often the threads of a process were switched, voluntarily or not."""
    files = Path(f"/proc/{pid}/task").glob("*/status")
    lines = (line for file in files for line in file.read_text().splitlines())
    return sum(int(line.split()[1]) for line in lines if "ctxt_switches" in line)


def _hold(name: str, count: int, pipe: Connection) -> None:
    timers = wheeld_client.connect(name)
    timers.schedule_many(np.random.default_rng(1).uniform(HOUR, 2 * HOUR, count))
    processes.ready(pipe)
    timers.poll(None)


def idle(quick: bool) -> Iterator[Sample]:
    """Context switches of all while a million timers are not due for an hour."""
    count, seconds = (2_000, 0.5) if quick else (1_000_000, 10.0)
    with ExitStack() as stack:
        name = stack.enter_context(daemons.embedded(capacity=max(count, 4096)))
        worker = Background(_hold, name, count)
        stack.callback(worker.stop)
        worker.receive()
        worker.go()
        clock, supervisor = pids(name)
        all_of = {"supervisor": supervisor, "clock": clock, "worker": worker.process.pid}
        while True:
            time.sleep(1.0)  # whatever they did is done
            before = {who: _switches(pid) for who, pid in all_of.items()}
            time.sleep(seconds)
            found = {who: float(_switches(pid) - before[who]) for who, pid in all_of.items()}
            yield {"all": sum(found.values()), **found}


# -- a crowd of one worker, and how late another worker's timers are, 1 ms apart -----------------

BUCKET_NS = 64 * 64 * MS
"""How long a bucket of level 2 lasts, with the daemon's tick and wheel size."""
LADDER_NS, AHEAD_NS = 3_000 * MS, 500 * MS
CROWD_BATCH = 100_000
MEMBERS = 56
CROWDS = ("burst", "cascade", "cancel", "backlog", "group")
"""A million timers that fall due in one tick; that move down when a bucket of an upper level
begins; that are cancelled and scheduled again; that wait for a worker that never polls, and then
dies; that fall due in one tick for a group that does not wait for events."""


def _ladder(name: str, count: int, pipe: Connection) -> list[float]:
    """How late the worst of `count` timers was fired and received, ms; the pipe says when the first
    is due."""
    worst = np.zeros(2)
    with wheeld_client.connect(name, worker="ladder") as timers:
        processes.ready(pipe)
        timers.schedule_at_many(pipe.recv() + np.arange(count) * MS)
        seen = 0
        while seen < count and len(events := timers.poll(10.0)):
            now, seen = time.monotonic_ns(), seen + len(events)
            fired = (events["fired"] - events["deadline"]).max()
            worst = np.maximum(worst, (fired, (now - events["deadline"]).max()))
    if seen < count:
        raise RuntimeError(f"{count - seen} timers did not come")
    found: list[float] = (worst / 1e6).tolist()
    return found


def _sink(name: str, pipe: Connection) -> None:
    with wheeld_client.connect(name, worker="sink"):
        processes.ready(pipe)
        time.sleep(HOUR)


def neighbour(case: str, quick: bool) -> Iterator[Sample]:
    """Measure the ladder with and without a crowd of other workers; each round has its own
    daemon."""
    count, length = (10_000, LADDER_NS // 10) if quick else (1_000_000, LADDER_NS)
    while True:
        with ExitStack() as stack:
            fired, received = _beside(case, count, length, stack)
        yield {"fired, ms": fired, "received, ms": received}


def _beside(case: str, count: int, length: int, stack: ExitStack) -> list[float]:
    capacity = 1 << (2 * count + 65_536).bit_length()
    name = stack.enter_context(daemons.embedded(capacity=capacity, max_workers=64))
    timers = stack.enter_context(wheeld_client.connect(name, worker="crowd"))
    ids: list[Any] = []

    def schedule(at_ns: int, to: str | None = None) -> None:
        for first in range(0, count, CROWD_BATCH):
            many = min(CROWD_BATCH, count - first)
            ids.append(timers.schedule_at_many(np.full(many, at_ns), to=to))

    if case == "backlog":
        sink = Background(_sink, name)
        stack.callback(sink.stop)
        sink.receive()
        schedule(time.monotonic_ns(), "sink")
    elif case == "cancel":
        schedule(time.monotonic_ns() + 10**13)
    elif case == "group":
        for _ in range(MEMBERS):
            stack.enter_context(wheeld_client.connect(name, group="members"))
    steps = Background(_ladder, name, length // MS)
    stack.callback(steps.stop)
    steps.receive()
    begin = time.monotonic_ns() + AHEAD_NS + count * 500
    if case == "cascade":  # a bucket of level 2 begins in the middle
        begin += -(begin + length // 2) % BUCKET_NS
    middle = begin + length // 2
    if case == "cascade":
        schedule(middle + 3 * 10**9)
    elif case in ("burst", "group"):
        schedule(middle, "group:members" if case == "group" else None)
    steps.go()
    steps.pipe.send(begin)
    time.sleep(max(0, middle - time.monotonic_ns()) / 1e9)
    if case == "backlog":
        sink.process.kill()
    elif case == "cancel":
        for some in ids.copy():
            timers.cancel_many(some)
        schedule(time.monotonic_ns() + 10**13)
    found: list[float] = steps.receive()
    return found


# -- what a recorder costs ----------------------------------------------------------------------

CAPACITY = 1 << 20
MODERATE, BEAT = 200_000, 0.005
LOADS = {"flat out, all fire": (None, 0), "flat out, 7 of 8 cancelled": (None, 7),
         "moderate": (MODERATE, 4)}  # fmt: skip
"""Timers per second, and how many of eight are cancelled at once."""


def _arm(name: str, seconds: float, rate: int | None, cancelled: int, pipe: Connection) -> float:
    """Schedule and receive, at a rate or flat out; ns for each timer."""
    count = BATCH if rate is None else round(rate * BEAT)
    delays = np.random.default_rng().uniform(0.001, 0.020, count)
    in_flight = armed = ids = turn = 0
    with wheeld_client.connect(name) as timers:

        def receive(timeout: float) -> None:
            nonlocal in_flight, ids
            events = timers.poll(timeout)
            in_flight -= len(events)
            ids -= int(events["timer_id"].sum())

        processes.ready(pipe)
        begin = time.monotonic()
        while time.monotonic() < begin + seconds:
            try:
                new = timers.schedule_many(delays)
            except wheeld_client.WheelFull:
                receive(0.001)
                continue
            victims = new[count * (8 - cancelled) // 8 :]
            won = timers.cancel_many(victims)
            armed += count
            in_flight += count - int(won.sum())
            ids += int(new.sum()) - int(victims[won].sum())
            turn += 1
            receive(0.0)
            while rate is None and in_flight > CAPACITY // 4:
                receive(0.002)
            while rate and (rest := begin + turn * BEAT - time.monotonic()) > 0:
                receive(rest)
        give_up = time.monotonic() + 10
        while in_flight > 0 and time.monotonic() < give_up:
            receive(0.01)
        took = time.monotonic() - begin
        receive(0.05)  # a timer that came twice would come now
    if in_flight or ids % 2**64:
        raise RuntimeError(f"not each timer came once: {in_flight} did not, by their number")
    return 1e9 * took / armed


def recording(traced: bool, quick: bool) -> Iterator[Sample]:
    """One worker and a clock; with a recorder if `traced`. A daemon for each load."""
    if find_spec("pyarrow") is None:
        raise servers.Missing("a recorder: pyarrow is not installed")
    while True:
        sample: Sample = {}
        for what, (rate, cancelled) in LOADS.items():
            with tempfile.TemporaryDirectory(prefix="wheeld-bench-") as place:
                trace = Path(place, "trace") if traced else None
                with daemons.embedded(capacity=CAPACITY, trace=trace) as name:
                    seconds = 0.3 if quick else 2.0
                    each = processes.alone(_arm, name, seconds, rate, cancelled)
                    facts = processes.status(name)["trace"] if traced else {"lost": 0}
            sample |= {f"{what}, ns": each, f"{what}, lost": float(facts["lost"])}
        yield sample
