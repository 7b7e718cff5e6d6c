"""The cost of a billion timers, from the figures of one machine.

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
    return TIMERS / life_s * core_us / 1e6 / BUSY


def per_timer(found: dict[str, Any]) -> float:
    """Microseconds of a core: a command, a hand-out with its expiration."""
    command = found["schedule"]["per s and core"]
    return 1e6 / command + 1e6 / found["hand-out and expiration"]["per s and core"]


def measured(found: dict[str, Any]) -> Iterator[str]:
    columns, late = found["columns"], found["lateness ms"]
    idle = found["empty batch"]
    visit_ms = found["empty batch, wheels visited"]["triggerExecution"]
    rates = {
        "commands per second and core, new keys": "schedule",
        "commands per second and core, known keys": "reschedule",
        "hand-outs with their expiration, per second and core": "hand-out and expiration",
    }
    for text, name in rates.items():
        one = found[name]
        yield f"| {text} | {round(one['per s and core'], -3):,.0f} | {one['wall s']:.1f} s |"
    others = {
        "an empty batch, nothing due and nothing in a wheel": f"{idle['triggerExecution']:.0f} ms",
        "CPU time of it": f"{idle['cpu']:.0f} ms",
        "an empty batch that visits the wheels of all shards": f"{visit_ms:.0f} ms",
        "the longest batch": f"{found['batch max ms'] / 1000:.1f} s",
        "lateness of the wheel (`lateness_us` in the sink): p50, p99, max": (
            f"{late['p50']:.1f}, {late['p99']:.1f}, {late['max']:.1f} ms"
        ),
        "memory of a pending key": f"{columns['bytes per key']:.0f} bytes",
        "log in the checkpoint, per key": f"{columns['log bytes per key']:.0f} bytes",
        "a scan for what is due, per 10 million keys": f"{columns['due scan ms per 10 M']:.0f} ms",
        "rebuild of 2 million keys from the log": f"{columns['rebuild s per 2 M']:.1f} s",
    }
    for text, value in others.items():
        yield f"| {text} | {value} | |"
    given = found["hand-out and expiration"]
    yield ""
    spent = ", ".join(f"{name} {s:.1f} s" for name, s in sorted(given["cpu s of"].items()))
    yield f"CPU time of the hand-outs, in {given['batches']} batches: {spent}"
    yield f"load at the end: {found['machine']['load']:.1f}"
    yield ""


def tables(found: dict[str, Any]) -> Iterator[str]:
    yield from measured(found)
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
