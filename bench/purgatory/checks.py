"""The cost of a check to its caller, while another process of the same purgatory watches keys."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

import wheeld
import wheeld_client
from bench import processes
from bench.purgatory.wake import with_thread
from bench.result import Options, Result, Row, Target
from bench.timing import Watch

KEYS = {
    "nobody watches": "unwatched",
    "others watch": "other-1",
    "nobody watches, an int": 7,
    "nobody watches, a tuple": ("unwatched", 7),
}
"""What others watch has no operation that is ready: whoever it is looks, and sleeps again."""


def check_costs(count: int, rounds: int) -> list[Row]:
    """ns of a check of keys that nobody watches here, while another process watches others."""
    watch = Watch()
    costs: dict[str, list[float]] = {what: [] for what in KEYS}
    with wheeld.embedded() as name, wheeld_client.connect(name) as timers:
        purgatory = wheeld_client.Purgatory(timers, "bench")
        other = processes.Background(with_thread, name)
        try:
            other.receive()
            check = purgatory.check_and_complete
            for _ in range(rounds):
                for what, key in KEYS.items():
                    watch.start()
                    for _ in range(count):
                        check(key)
                    costs[what].append(watch.ns_each(count))
        finally:
            other.stop()
        purgatory.shutdown()
    return [{"key": key, "ns": median(values)} for key, values in costs.items()]


def run(options: Options, say: Callable[[str], None]) -> Result:
    """Cost of a check."""
    say("purgatory: checks across processes")
    rows = check_costs(1_000 if options.quick else 100_000, options.rounds)
    targets = [Target("check_and_complete of an unwatched key", rows[0]["ns"], 1000, unit="ns")]
    return Result("purgatory: a check across processes", rows, targets)
