"""The trace segment as numpy arrays, and the numbers in its records."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wheeld_core import _native
from wheeld_core.views.structs import record, records

if TYPE_CHECKING:
    from collections.abc import Buffer

TRACE_KINDS = {
    _native.TRACE_SCHEDULED: "scheduled",
    _native.TRACE_RESCHEDULED: "rescheduled",
    _native.TRACE_CANCELLED: "cancelled",
    _native.TRACE_EXPIRED: "expired",
    _native.TRACE_DROPPED: "dropped",
}
"""Kinds of a trace record that are events, and indices of the accounts of a trace segment."""
TRACE_LOST = _native.TRACE_LOST
"""The kind of a record that says how many events are missing; `id` is their kind."""
TRACE_PERIODIC, TRACE_FOUND = 4, 8
"""Bits in `flags` of a trace record, above those of the timer's clock (see `CLOCKS`)."""
NO_ROW = _native.NO_ROW
"""The value of `worker` or `receiver` in a trace record that means no row."""


class TraceView:
    """A trace segment: its counts by kind of event, its knowledge of each slot, and its ring."""

    def __init__(self, memory: Buffer) -> None:
        self.header = record(memory, "trace")
        self.capacity = int(self.header["capacity"])
        self.size = 1 << int(self.header["ring_bits"])
        self.traced = records(memory, "traced", int(self.header["traced_off"]), self.capacity)
        self.ring = records(memory, "trace_record", int(self.header["records_off"]), self.size)

    @property
    def head(self) -> int:
        """Position up to which the recorder has stored records."""
        return int(self.header["rec_head"])

    @property
    def tail(self) -> int:
        """Position up to which the clock has published records."""
        return int(self.header["rec_tail"])

    @property
    def waiting(self) -> int:
        """Records published and not stored yet."""
        return self.tail - self.head & 0xFFFFFFFFFFFFFFFF

    @property
    def pending(self) -> int:
        """Timers whose beginning is recorded and whose end is not."""
        return int(self.header["pending"])

    def counts(self) -> dict[str, int]:
        """All events by kind, including those that found the ring full."""
        return self._account("counts")

    def lost(self) -> dict[str, int]:
        """Events by kind that found the ring full."""
        return self._account("lost")

    def untold(self) -> dict[str, int]:
        """Lost events by kind that no record of kind "lost" reports yet."""
        told = self._account("told")
        return {name: count - told[name] for name, count in self.lost().items()}

    def _account(self, name: str) -> dict[str, int]:
        counts = self.header[name]
        return {kind: int(counts[index]) for index, kind in TRACE_KINDS.items()}
