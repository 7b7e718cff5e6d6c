"""The counters in a worker's own segment, read by the supervisor.

The worker writes there, and may truncate the segment: it is read, not mapped, so that nothing it
does ends the reader.
"""

from __future__ import annotations

import os
from typing import Any, Final, NamedTuple

from wheeld_core import _native, histograms, segments
from wheeld_core.histograms import Histogram
from wheeld_core.views import dtype_of, record, records

COUNTERS: Final = (
    "scheduled", "cancelled", "rescheduled", "received", "bells", "fulls", "disbelieved",
)  # fmt: skip


class Figures(NamedTuple):
    """Figures of one worker, since its segment was made."""

    counters: dict[str, int]
    histograms: dict[str, Histogram]
    comp_head: int
    """Completions that it has consumed."""


def read(name: str | None, owner_uid: int | None = None) -> Figures | None:
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
    return _figures(found, head)


def nothing() -> Figures:
    """The figures of a worker without a segment: zeros."""
    head, count = dtype_of("worker").itemsize, _native.COUNTS_OF_WORKER
    return _figures(bytes(head + count * dtype_of("histogram").itemsize), head)


def _figures(found: bytes, head: int) -> Figures:
    fields: Any = record(found, "worker")
    own = records(found, "histogram", head, _native.COUNTS_OF_WORKER)
    counters = {counter: int(fields[counter]) for counter in COUNTERS}
    return Figures(counters, histograms.of_worker(own), int(fields["comp_head"]))
