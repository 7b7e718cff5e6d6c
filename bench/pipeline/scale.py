"""What a billion timers take, from the figures of one machine.

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
BUSY = 0.5
HORIZON_S = 30
SLOT_BYTES = 78 + 24


def cores(life_s: float, core_us: float) -> float:
    """How many are busy half of the time."""
    return TIMERS / life_s * core_us / 1e6 / BUSY


def per_timer(found: dict[str, Any]) -> float:
    """Microseconds of a core: a command, a hand-out with its expiration."""
    command = found["schedule"]["per s and core"]
    return 1e6 / command + 1e6 / found["hand-out and expiration"]["per s and core"]


def tables(found: dict[str, Any]) -> Iterator[str]:
    """Lines of Markdown."""
    core_us = per_timer(found)
    yield f"a timer takes {core_us:.1f} us of a core"
    yield ""
    for name, life_s in LIVES.items():
        yield f"| {name} | {TIMERS / life_s:,.0f} | {math.ceil(cores(life_s, core_us)):,} |"
    yield ""
    for name, life_s in LIVES.items():
        near = TIMERS / life_s * HORIZON_S
        size = f"{near * SLOT_BYTES / 1e6:,.0f} MB"
        yield f"| {name} | {TIMERS / life_s:,.0f} | {near:,.0f} | {size} |"
    yield ""
    columns = found["columns"]
    held, log = (columns[name] for name in ("bytes per key", "log bytes per key"))
    yield f"columns {held * TIMERS / 1e9:,.0f} GB, log {log * TIMERS / 1e9:,.0f} GB"
    yield f"a rebuild of 10 M keys: {columns['rebuild s per 2 M'] * 5:.0f} s"


if __name__ == "__main__":
    print("\n".join(tables(json.loads(Path(sys.argv[1]).read_text()))))
