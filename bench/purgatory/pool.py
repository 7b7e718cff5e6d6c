"""What a pool's buffer costs its process, ns: allocate and release, nobody else at the pool."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

import wheeld
import wheeld_client
from bench.result import Options, Result, Row, Target
from bench.timing import Watch

SIZES = (100, 4096, 1 << 16)


def run(options: Options, say: Callable[[str], None]) -> Result:
    """The whole measurement; `bytearray` is what one does without a bound."""
    count = 1_000 if options.quick else 100_000
    watch = Watch()
    costs: dict[tuple[str, int], list[float]] = {}
    pools = ["lenient=64M", "strict=64M,strict"]
    with wheeld.embedded(pools=pools) as name, wheeld_client.connect(name) as timers:
        both = {kind: wheeld_client.MemoryPool(timers, kind) for kind in ("lenient", "strict")}
        for turn in range(options.rounds):
            say(f"pool: round {turn + 1} of {options.rounds}")
            for size in SIZES:
                for kind, pool in both.items():
                    costs.setdefault((kind, size), []).append(_buffers(pool, size, count, watch))
                cost = _bytearrays(size, count, watch)
                costs.setdefault(("bytearray", size), []).append(cost)
    rows: list[Row] = [
        {"pool": kind, "bytes": size, "ns": median(values)}
        for (kind, size), values in costs.items()
    ]
    targets = [
        Target(f"pool ({row['pool']}): allocate and release {row['bytes']} bytes",
               row["ns"], 1000, unit="ns")
        for row in rows
        if row["bytes"] == SIZES[0] and row["pool"] != "bytearray"
    ]  # fmt: skip
    return Result("memory pool: allocate and release, ns (median)", rows, targets)


def _buffers(pool: wheeld_client.MemoryPool, size: int, count: int, watch: Watch) -> float:
    allocate, release = pool.try_allocate, pool.release
    watch.start()
    for _ in range(count):
        release(allocate(size))  # type: ignore[arg-type]  # nobody else is at the pool
    return watch.ns_each(count)


def _bytearrays(size: int, count: int, watch: Watch) -> float:
    watch.start()
    for _ in range(count):
        bytearray(size)
    return watch.ns_each(count)
