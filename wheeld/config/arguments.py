"""The options of a daemon as keyword arguments, for type checkers.

They are the fields of `wheeld.config.settings.Config`, which checks the values; a test holds both
together.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import timedelta
from typing import Literal, TypedDict

Number = int | str
Size = int | str
Duration = str | timedelta
Place = str | os.PathLike[str]


class DaemonOptions(TypedDict, total=False):
    """Options of `wheeld.embedded`: those of `wheeld start` (docs/options.md), by their keys."""

    name: str
    runtime_dir: Place | None
    capacity: Number
    max_workers: Number
    max_per_worker: Number | None
    tick: Duration
    wheel_size: Number
    payload_bytes: Number
    max_payload: Size
    payload_heap: Size
    reserve: bool
    pin_cpu: Number | None
    hang_after: Duration
    virtual_clock: bool
    virtual_start: Number
    state_dir: Place | None
    snapshot_every: Duration
    restore: Literal["remaining", "wall"]
    misfire: Literal["fire", "skip"]
    keep_for: Duration
    detached_capacity: Number | None
    idle_exit: Duration | None
    evict_after: Number | None
    group: str | None
    admin_group: str | None
    pools: Sequence[str]
    trace: Place | None
    trace_ring: Number
    trace_every: Duration
    trace_keep: Duration | None
    trace_bytes: Size | None
    metrics: str | None
    web: str | None
    web_token: Place | None
    web_admin: Place | None
    log_level: Literal["debug", "info", "warning", "error"]
    log_format: Literal["text", "json", "journald"]
    fresh: bool
