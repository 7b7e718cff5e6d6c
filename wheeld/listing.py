"""Text, tables, JSON and CSV for the commands `status` and `inspect`."""

from __future__ import annotations

import csv
import json
import sys
import time
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from wheeld_core import _native, segments
from wheeld_core.views import CLOCKS, RegistryView, SlotsView

FORMATS = ("table", "json", "csv")
COLUMNS = ("id", "worker", "due_in_s", "clock", "interval_s", "cookie", "to")


def status_text(status: dict[str, Any]) -> str:
    """A daemon's status, for people."""
    counters = status["counters"]
    lines = [
        f"{status['name']}  pid {status['pid']}, clock pid {status['clock_pid']}"
        f"{'' if status['clock_ok'] else '  CLOCK DOES NOT ANSWER'}",
        f"  in          {status['directory']}",
        f"  up          {status['uptime_s']:.0f} s",
        f"  pending     {status['pending']:,} of {status['capacity']:,} timers",
        f"  wheel       tick {status['tick_ns'] / 1e6:g} ms, {status['wheel_size']} buckets a"
        f" level, payload {status['payload_bytes']} bytes",
        f"  memory      {status['shared_bytes'] / 2**20:.1f} MiB shared",
        f"  fired       {counters['fired']:,}   returned {counters['returned']:,}"
        f"   dropped {counters['dropped']:,}",
        f"  clock       {counters['wakes']:,} wake-ups, latest by"
        f" {counters['wake_late_ns'] / 1e6:.3f} ms; replaced {status['clock_restarts']} times",
    ]
    if status["virtual_now_ns"] is not None:
        lines.append(f"  virtual now {status['virtual_now_ns']} ns")
    if status["pools"]:
        lines.append(f"  pools       {len(status['pools'])}")
        lines += [f"    {_pool_text(pool)}" for pool in status["pools"]]
    if status["trace"] is not None:
        lines += _trace_lines(status["trace"])
    lines.append(f"  workers     {len(status['workers'])}")
    lines += [
        f"    {worker['row']:>3}  {worker['name']:<24} pid {worker['pid']:<8} {worker['state']:<10}"
        f" {worker['on_death']:<8} pending {worker['pending']:,}  fired {worker['fired']:,}"
        + (f"  in {', '.join(worker['groups'])}" if worker["groups"] else "")
        + (f"  watches {count:,} buckets" if (count := worker["watched_buckets"]) else "")
        + (
            f"  has {size_text(out)} of pools"
            if (out := sum(worker["pool_bytes"].values()))
            else ""
        )
        for worker in status["workers"]
    ]
    return "\n".join(lines)


def size_text(size: int) -> str:
    """Bytes, for people."""
    for unit, shift in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if abs(size) >= 1 << shift:
            return f"{size / (1 << shift):,.1f} {unit}"
    return f"{size} bytes"


def _trace_lines(trace: dict[str, Any]) -> list[str]:
    """What is recorded, in two lines or three."""
    recorder = f"recorder pid {trace['recorder_pid']}" if trace["recorder_pid"] else "NO RECORDER"
    lines = [
        f"  trace       {trace['directory']}",
        f"    {trace['recorded']:,} events recorded, {trace['lost']:,} lost; {trace['behind']:,} of"
        f" {trace['ring']:,} in the ring; {recorder}, replaced {trace['restarts']} times",
    ]
    return lines + ([f"    CANNOT WRITE: {trace['trouble']}"] if trace["trouble"] else [])


def _pool_text(pool: dict[str, Any]) -> str:
    """One pool in one line."""
    text = f"{pool['name']:<28} {size_text(pool['used'])} of {size_text(pool['size'])}"
    text += " strictly" if pool["strict"] else ""
    text += f"  depleted {pool['depleted_percent']:.1f} %"
    return text + (f"  {pool['waiters']} workers wait" if pool["waiters"] else "")


def pending_timers(
    status: dict[str, Any], worker: str | None = None, limit: int = 0
) -> list[dict[str, Any]]:
    """The pending timers of a running daemon, soonest first, one dict of `COLUMNS` each.

    Reads the slots through read-only views while others write them: a timer that is armed,
    moved or fired in this moment may be listed as it was just before.
    """
    names = status["segments"]
    memory = segments.attach(names["slots"], _native.KIND_SLOTS, writable=False)
    registry = segments.attach(names["registry"], _native.KIND_REGISTRY, writable=False)
    view = SlotsView(memory, status["capacity"], status["payload_bytes"])
    table = RegistryView(registry)
    workers = table.names()
    targets = {f"w{row}": name for row, name in workers.items()}
    targets |= {f"g{group}": f"group:{name}" for group, name in table.group_names().items()}
    rows = view.owner_rows()
    armed = view.armed()
    if worker is not None:
        wanted = [row for row, name in workers.items() if name == worker]
        if not wanted:
            raise ValueError(f"no worker {worker!r} is connected: {sorted(workers.values())}")
        armed = armed[rows[armed] == wanted[0]]
    now = _clocks(status)
    slots = view.slots[armed]
    due = slots["deadline"] - now[slots["flags"] & 3]
    order = np.argsort(due, kind="stable")
    order = order[:limit] if limit else order
    ids = view.states[armed] >> np.uint64(32) << np.uint64(32) | armed.astype(np.uint64)
    return [
        _describe(int(ids[i]), slots[i], int(due[i]), workers.get(int(rows[armed[i]])), targets)
        for i in order
    ]


def _clocks(status: dict[str, Any]) -> np.ndarray[Any, np.dtype[np.int64]]:
    if status["virtual_now_ns"] is not None:
        return np.full(4, status["virtual_now_ns"], np.int64)
    ids = (time.CLOCK_MONOTONIC, time.CLOCK_REALTIME, time.CLOCK_BOOTTIME, time.CLOCK_MONOTONIC)
    return np.array([time.clock_gettime_ns(id) for id in ids])


def _describe(
    id: int, slot: np.void, due: int, worker: str | None, targets: dict[str, str]
) -> dict[str, Any]:
    target, low = int(slot["target"]), int(slot["target"]) & 0xFFF
    to = f"g{target >> 12}" if low == 0xFFF else f"w{low - 1}"
    return {
        "id": id,
        "worker": worker or "gone",
        "due_in_s": round(due / 1e9, 6),
        "clock": CLOCKS.get(int(slot["flags"]) & 3, "?"),
        "interval_s": int(slot["interval"]) / 1e9 or None,
        "cookie": int(slot["cookie"]),
        "to": targets.get(to, "gone") if target else None,
    }


def print_timers(timers: list[dict[str, Any]], format: str) -> None:
    """Print what `pending_timers` returned."""
    if format == "json":
        print(json.dumps(timers, indent=1))
    elif format == "csv":
        writer = csv.DictWriter(sys.stdout, COLUMNS)
        writer.writeheader()
        writer.writerows(timers)
    else:
        table = Table(*COLUMNS, title=f"{len(timers)} pending timers, soonest first")
        for timer in timers:
            values = (timer[column] for column in COLUMNS)
            table.add_row(*("" if value is None else str(value) for value in values))
        Console().print(table)
