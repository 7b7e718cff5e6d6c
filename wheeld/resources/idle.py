"""Whether the memory that a daemon left may be discarded."""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Mapping
from typing import Any

from wheeld.snapshot.collect import collect, comp_head
from wheeld.snapshot.contents import Clocks
from wheeld.tables.registry import Registry, RowState
from wheeld_core import _native, runtime, segments
from wheeld_core.errors import WheelError
from wheeld_core.views import RegistryView, SlotsView, WheelView


def is_idle(prefix: str, memories: Mapping[str, mmap.mmap]) -> bool:
    """Whether nothing is pending, nothing is unread for a successor, and no worker is alive.

    Parameters
    ----------
    prefix : str
        Of the segments, which no supervisor and no clock uses.
    memories : mapping
        The maps of the base segments.
    """
    wheel = WheelView(memories["wheel"])
    slots = SlotsView(memories["slots"], wheel.capacity, int(wheel.header["payload_bytes"]))
    if len(slots.armed()) or _lives_one(memories["registry"]):
        return False
    registry = RegistryView(memories["registry"])
    left = collect(wheel, slots, registry, Clocks.read(), heads=_heads(prefix, registry))
    return not len(left.timers)


def _lives_one(memory: mmap.mmap) -> bool:
    registry = Registry(memory)
    for tenant in registry.tenants.values():
        if registry.state(tenant) == RowState.KEPT:
            continue
        if (pidfd := registry.open_process(tenant)) is not None:
            os.close(pidfd)
            return True
    return False


def _heads(prefix: str, registry: RegistryView) -> dict[int, Any]:
    """How far each worker has read its ring."""
    there, heads = segments.of_daemon(prefix, os.getuid()), {}
    for row in range(len(registry.rows)):
        with contextlib.suppress(KeyError, WheelError, OSError):
            name = there[runtime.worker_segment(row)]
            heads[row] = comp_head(segments.attach(name, _native.KIND_WORKER, writable=False))
    return heads
