"""CPU time per firing in steady traffic: a million pending timers, random deadlines over 2 s.

The daemon stays for all rounds, so that from the second one on the slots of a bucket are scattered
over all of memory, as those of a server are that has run for long.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np

from bench.cases import Sample, daemon

LEAD_SECONDS = 0.7
"""Before the first deadline: time to arm all, and for the clock to link them."""
SPREAD_SECONDS = 2.0
GIVE_UP_SECONDS = 20.0


def wheeld(quick: bool) -> Iterator[Sample]:
    """One worker; clock and worker by themselves, and how late the clock fired."""
    count = 50_000 if quick else 1_000_000
    spread = SPREAD_SECONDS / 4 if quick else SPREAD_SECONDS
    rng = np.random.default_rng(1)
    with daemon.worker(capacity=count + count // 8 + 4096) as (timers, spent):
        while True:
            begin = time.monotonic() + LEAD_SECONDS
            deadlines = int(begin * 1e9) + rng.integers(0, int(spread * 1e9), count)
            timers.schedule_at_many(deadlines)
            time.sleep(max(0.0, begin - 0.05 - time.monotonic()))
            spent.start()
            seen, late = 0, []
            while seen < count:
                events = timers.poll(0.1)
                seen += len(events)
                late.append(events["fired"] - events["deadline"])
                if time.monotonic() > begin + spread + GIVE_UP_SECONDS:
                    raise RuntimeError(f"{count - seen} timers did not come")
            ours, clock, _ = spent.each()
            p50, p99 = np.percentile(np.concatenate(late), (50, 99))
            yield {
                "together, ns": (ours + clock) / count,
                "clock, ns": clock / count,
                "worker, ns": ours / count,
                "late p50, us": float(p50) / 1e3,
                "late p99, us": float(p99) / 1e3,
            }
