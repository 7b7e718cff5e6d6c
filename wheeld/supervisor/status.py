"""The status of a daemon, read from its shared memory."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import Any, Final, NamedTuple

from wheeld.clock.guard import ClockGuard
from wheeld.config.settings import OPTIONS
from wheeld.metrics.series import Departed
from wheeld.processes.identity import stat_fields
from wheeld.resources import maps
from wheeld.resources.owned import Resources
from wheeld.resources.remains import own_pid_namespace
from wheeld.supervisor import health
from wheeld.supervisor.workers import Workers
from wheeld.tables.registry import Tenant
from wheeld.tables.sharing import Sharing
from wheeld_core import _native, histograms, segments
from wheeld_core.histograms import Histogram
from wheeld_core.runtime import worker_segment
from wheeld_core.units import KIB
from wheeld_core.views import dtype_of, record, records
from wheeld_core.views.wheel import Census


def collect(
    resources: Resources,
    workers: Workers,
    clock: ClockGuard,
    *,
    started: float,
    restarts: int,
    trace: dict[str, Any] | None,
    exporter: dict[str, dict[str, Any] | None],
    counted: Departed,
) -> dict[str, Any]:
    config = resources.config
    wheel = resources.wheel
    shared_bytes, most_bytes = resources.shared_bytes()
    trouble = clock.trouble or _clock_trouble(clock)
    counts = resources.slots.census(wheel, config.slots)
    return {
        "name": config.name,
        "pid": os.getpid(),
        "pid_namespace": own_pid_namespace(),
        "clock": {"pid": clock.pid, "ok": trouble is None, "trouble": trouble},
        "clock_pid": clock.pid,
        "uptime_s": round(time.time() - started, 3),
        "directory": str(resources.directory),
        "group": config.group,
        "admin_group": config.admin_group,
        "clock_ok": trouble is None,
        "clock_trouble": trouble,
        "capacity": config.slots,
        "pending": counts.pending,
        "max_per_worker": config.most_per_worker,
        "free": counts.unowned,
        "tick_ns": config.tick_ns,
        "wheel_size": 1 << config.wheel_bits,
        "payload_bytes": config.payload_room,
        "max_payload": config.max_payload_bytes,
        "payload_heap": resources.payload_heap(),
        "virtual_now_ns": int(wheel.header["virtual_now"]) if config.virtual_clock else None,
        "shared_bytes": shared_bytes,
        "shared_bytes_at_most": most_bytes,
        "huge_bytes": maps.shared_huge_kib(Path("/proc", str(clock.pid))) * KIB,
        "slots_with_memory": int(wheel.header["backed"]) * _native.SLAB_SLOTS,
        "segments": dict(resources.names),
        "counters": wheel.counters(),
        "histograms": {
            name: found.whole() for name, found in histograms.of_clock(wheel.histograms).items()
        },
        "clock_restarts": clock.restarts,
        "taken_over": resources.taken_over,
        "restarts": restarts,
        **clock.handed_over,
        "workers": _workers(resources, workers, counts),
        "departed": counted.entries(),
        "purgatories": _purgatories(resources.sharing, workers),
        "pools": _pools(resources.sharing),
        **_directory(resources.sharing),
        "pool_bytes_returned": resources.sharing.returned,
        "trace": trace,
        **exporter,
        "config": {key: getattr(config, key) for key in OPTIONS},
    }


def _directory(sharing: Sharing) -> dict[str, dict[str, int]]:
    """The use of the directory of keys by shared words, timers, limits and leases, including ended
    ones whose places nobody needs yet. A worker that was killed while it made a place may not have
    counted it."""
    used, possible = sharing.places()
    return {
        "words": {"used": used[0], "possible": possible},
        "keys": {"used": used[1], "possible": possible},
        "limits": {"used": used[2], "possible": possible},
        "leases": {"used": used[3], "possible": possible},
    }


def _clock_trouble(clock: ClockGuard) -> str | None:
    pid, state = clock.pid, ""
    if pid is not None:
        with contextlib.suppress(OSError, IndexError):
            state = stat_fields(Path(f"/proc/{pid}"))[0]
    return health.clock_trouble(pid, state, clock.is_well(2.0))


def _workers(resources: Resources, workers: Workers, counts: Census) -> list[dict[str, Any]]:
    registry, wheel, sharing = workers.registry, resources.wheel, resources.sharing
    groups = registry.group_names().items()
    watched, out, pools = sharing.watch.watched(), sharing.pools.out(), sharing.pools.names()
    return [
        {
            "row": row,
            "name": tenant.name,
            "pid": tenant.pid,
            "uid": tenant.uid,
            "state": _state(workers, tenant),
            "on_death": tenant.on_death.name.lower(),
            "groups": [name for group, name in groups if tenant.groups >> group & 1],
            "pending": counts.detached if tenant.is_keeper else int(counts.armed[row]),
            "held": int(counts.held[row]),
            "fired": int(wheel.ports["fired"][row]),
            "backlog": bool(wheel.ports["backlog"][row]),
            "offences": int(wheel.ports["offences"][row]),
            "watched_buckets": int(watched[row]),
            "purgatories": {
                name: size._asdict() for name, size in sorted(sharing.sizes.of(row).items())
            },
            "pool_bytes": {name: int(out[i, row]) for i, name in enumerate(pools)},
            **_figures(resources, row),
        }
        for row, tenant in registry.tenants.items()
    ]


def departed(resources: Resources, workers: Workers, tenant: Tenant) -> dict[str, Any]:
    """A worker's entry for its last count: its counters, without the slots that it holds."""
    names = workers.registry.group_names().items()
    return {
        "name": tenant.name,
        "pid": tenant.pid,
        "state": "gone",
        "groups": [name for group, name in names if tenant.groups >> group & 1],
        "backlog": False,
        "offences": int(resources.wheel.ports["offences"][tenant.row]),
        **_figures(resources, tenant.row),
    }


def _figures(resources: Resources, row: int) -> dict[str, Any]:
    wheel, name = resources.wheel, resources.names.get(worker_segment(row))
    figures = read_figures(name, os.getuid()) or no_figures()
    late = histograms.lateness_of(wheel.histograms, row)
    unread = int(wheel.ports["comp_tail"][row]) - figures.comp_head if name else 0
    return {
        "ring": 1 << int(wheel.header["comp_bits"]),
        "unread": max(0, min(unread, 1 << int(wheel.header["comp_bits"]))),
        **figures.counters,
        "histograms": {
            name: found.whole()
            for name, found in {"lateness_ns": late, **figures.histograms}.items()
        },
    }


def _purgatories(sharing: Sharing, workers: Workers) -> list[dict[str, Any]]:
    sizes, sums = sharing.sizes, dict[str, list[int]]()
    for row in list(workers.registry.tenants):
        for name, (delayed, watched) in sizes.of(row).items():
            known = sums.setdefault(name, [0, 0, 0])
            known[:] = known[0] + delayed, known[1] + watched, known[2] + 1
    return [
        {"name": name, "delayed": delayed, "watched": watched, "workers": workers}
        for name, (delayed, watched, workers) in sorted(sums.items())
    ]


def _state(workers: Workers, tenant: Tenant) -> str:
    if workers.fenced.holds(tenant):
        return "fenced"
    return workers.registry.state(tenant).name.lower()


def _pools(sharing: Sharing) -> list[dict[str, Any]]:
    view = sharing.pools
    used, waiters = view.used(), view.waiting().sum(axis=1)
    depleted = view.depleted_percent(_native.read_clock())
    return [
        {
            "name": name,
            "size": int(fields["size"]),
            "largest": int(fields["largest"]),
            "strict": bool(fields["strict"]),
            "used": int(used[i]),
            "available": int(fields["size"]) - int(used[i]),
            "depleted_percent": round(float(depleted[i]), 3),
            "waiters": int(waiters[i]),
        }
        for i, (name, fields) in enumerate(zip(view.names(), view.pools, strict=True))
    ]


COUNTERS: Final = (
    "scheduled", "cancelled", "rescheduled", "received", "bells", "fulls", "disbelieved",
)  # fmt: skip


class Figures(NamedTuple):
    """Figures of one worker, since its segment was made."""

    counters: dict[str, int]
    histograms: dict[str, Histogram]
    comp_head: int
    """Completions that it has consumed."""


def read_figures(name: str | None, owner_uid: int | None = None) -> Figures | None:
    """The figures in the segment called `name`; None if it is gone or too short."""
    if name is None:
        return None
    each, head = dtype_of("histogram").itemsize, dtype_of("worker").itemsize
    size = head + each * _native.COUNTS_OF_WORKER
    try:
        with segments.opened(name, False, owner_uid) as (fd, _):
            found = os.pread(fd, size, 0)
    except (OSError, segments.SegmentError):
        return None
    if len(found) < size:
        return None
    return _parsed(found, head)


def no_figures() -> Figures:
    head, count = dtype_of("worker").itemsize, _native.COUNTS_OF_WORKER
    return _parsed(bytes(head + count * dtype_of("histogram").itemsize), head)


def _parsed(found: bytes, head: int) -> Figures:
    fields: Any = record(found, "worker")
    own = records(found, "histogram", head, _native.COUNTS_OF_WORKER)
    counters = {counter: int(fields[counter]) for counter in COUNTERS}
    return Figures(counters, histograms.of_worker(own), int(fields["comp_head"]))
