"""Several processes that schedule at once, timers an hour away: ns for each timer of all."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack
from multiprocessing.connection import Connection

import numpy as np

import wheeld as daemons
import wheeld_client
from bench import processes
from bench.cases import Sample, daemon

HOUR = 3600.0
BATCH = 10_000
MOST = {"one": 1, "two": 2, "three": 3}
AHEAD_SECONDS = 0.01
REST_SECONDS = 0.1


def _adder(name: str, count: int, pipe: Connection) -> None:
    """On a message, add `count` timers, in batches or not; report the times of begin and end."""
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


def wheeld(quick: bool) -> Iterator[Sample]:
    """One, two and three processes, beside the clock."""
    count = 20_000 if quick else 200_000
    with ExitStack() as stack:
        name = stack.enter_context(daemons.embedded(capacity=8 * count + 65_536))
        clock, _ = daemon.pids(name)
        adders = [processes.Background(_adder, name, count) for _ in MOST]
        for one in adders:
            stack.callback(one.stop)
            one.receive()
            one.go()
        while True:
            sample: Sample = {}
            for text, many in MOST.items():
                for batches, way in ((False, "one by one"), (True, "in batches")):
                    time.sleep(REST_SECONDS)
                    begin = time.monotonic() + AHEAD_SECONDS
                    busy = processes.cpu_ns(clock)
                    for one in adders[:many]:
                        one.pipe.send((batches, begin))
                    ends = [one.receive() for one in adders[:many]]
                    time.sleep(REST_SECONDS)  # the clock takes up the rest
                    busy = processes.cpu_ns(clock) - busy
                    for one in adders[:many]:
                        one.go()
                    what, timers = f"{text} {way}", many * count
                    sample[f"{what}, ns"] = 1e9 * max(took for took, _ in ends) / timers
                    sample[f"{what}, CPU of an adder, ns"] = sum(cpu for _, cpu in ends) / timers
                    sample[f"{what}, CPU of the clock, ns"] = busy / timers
            yield sample
