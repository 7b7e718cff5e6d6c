"""The cost of idling: wake-ups while a million timers are not due for an hour."""

from __future__ import annotations

import time
from collections.abc import Callable
from multiprocessing.connection import Connection

import numpy as np

import wheeld
import wheeld_client
from bench import daemon, processes
from bench.result import Options, Result, Row, Target


def hold(name: str, count: int, pipe: Connection) -> None:
    """A worker that arms `count` timers and waits for one of them."""
    timers = wheeld_client.connect(name)
    timers.schedule_many(np.random.default_rng(1).uniform(3600, 7200, count))
    processes.ready(pipe)
    timers.poll(None)


def run(options: Options, say: Callable[[str], None]) -> Result:
    """The whole measurement."""
    count, seconds = (2_000, 0.5) if options.quick else (1_000_000, 10.0)
    say(f"idle: {count:,} timers, {seconds:g} s")
    with wheeld.embedded(capacity=max(count, 4096)) as name:
        worker = processes.Background(hold, name, count)
        try:
            worker.receive()
            worker.go()
            facts, view = daemon.facts(name), daemon.wheel_view(name)
            pids = {"supervisor": facts["pid"], "clock": facts["clock_pid"], "worker": worker.pid}
            time.sleep(1.0)
            linked = int(view.header["linked"])
            before = {who: processes.switches(pid) for who, pid in pids.items()}
            wakes, cpu = int(view.header["wakes"]), processes.cpu_seconds(facts["clock_pid"])
            time.sleep(seconds)
            rows: list[Row] = [
                {"process": who, "switches": processes.switches(pid) - before[who]}
                for who, pid in pids.items()
            ]
            wakes = int(view.header["wakes"]) - wakes
            cpu = processes.cpu_seconds(facts["clock_pid"]) - cpu
        finally:
            worker.stop()
    result = Result(f"idle for {seconds:g} s with {linked:,} timers linked", rows)
    result.targets.append(Target("context switches of all", sum(r["switches"] for r in rows), 0))
    result.targets.append(Target("the clock's own count of wake-ups", wakes, 0))
    result.notes.append(f"CPU time of the clock meanwhile: {cpu:g} s")
    return result
