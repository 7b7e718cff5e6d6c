"""What a billion timers take, from the figures of one shard.

python -m bench.pipeline.scale RESULT.json     prints the tables of docs/scale.md
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

TIMERS = 1_000_000_000
LIVES = {"an hour": 3_600, "a day": 86_400, "a week": 604_800, "30 days": 2_592_000}
ROWS_PER_TIMER = 2.5
"""Command and the wheel's word, with the hand-out between them; half a row for being forgotten."""
BUSY = 0.5
HORIZON_S = 30
SLOT_BYTES = 78 + 24
SHARDS_PER_HOST = 12


def shards(life_s: float, rate: float) -> int:
    """How many are busy half of the time."""
    return math.ceil(TIMERS / life_s * ROWS_PER_TIMER / rate / BUSY)


def tables(found: dict[str, Any]) -> Iterator[str]:
    """Lines of Markdown."""
    yield "| figure | |"
    yield "| --- | ---: |"
    for name, value in found.items():
        yield f"| {name} | {value:,.4g} |" if isinstance(value, float) else f"| {name} | {value} |"
    rate = found["rows per s and shard, moving and expiring"]
    yield ""
    for name, life_s in LIVES.items():
        per_s = TIMERS / life_s
        rows = per_s * ROWS_PER_TIMER
        yield f"| {name} | {per_s:,.0f} | {rows:,.0f} | {shards(life_s, rate):,} |"
    yield ""
    for name, life_s in LIVES.items():
        near = TIMERS / life_s * HORIZON_S
        size = f"{near * SLOT_BYTES / 1e6:,.0f} MB"
        yield f"| {name} | {TIMERS / life_s:,.0f} | {near:,.0f} | {size} |"
    yield ""
    hosts = math.ceil(shards(LIVES["a day"], rate) / SHARDS_PER_HOST)
    state = found["checkpoint bytes per key"] * TIMERS
    yield f"state: {state / 1e9:,.0f} GB; a day: {hosts} hosts, {state / hosts / 1e9:,.1f} GB each"


if __name__ == "__main__":
    print("\n".join(tables(json.loads(Path(sys.argv[1]).read_text()))))
