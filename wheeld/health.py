"""Is a daemon healthy? A verdict from two readings of its status."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from wheeld.listing import duration


@dataclass(frozen=True)
class Health:
    """The verdict."""

    ok: bool
    why: tuple[str, ...]
    """What is wrong; empty if it is healthy."""
    late: int
    """Lateness of the latest timer that fired between the readings, ns; at most an eighth too
    high."""
    fired: int
    """How many did."""

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        found = asdict(self)
        found["lateness_ns"] = found.pop("late")
        return {**found, "why": list(self.why)}


def examine(first: dict[str, Any], second: dict[str, Any], limit: int) -> Health:
    """Compare two statuses of one daemon; `limit` is the latest that a timer may be, ns."""
    before = dict(first["histograms"]["lateness_ns"]["buckets"])
    if first["segments"] != second["segments"]:
        before = {}  # another wheel: everything it has counted is new
    now = second["histograms"]["lateness_ns"]["buckets"]
    new = {upper: count - before.get(upper, 0) for upper, count in now}
    late = max((upper for upper, count in new.items() if count > 0), default=0)
    late = min(late, second["histograms"]["lateness_ns"]["max"])
    why = []
    if not second["clock_ok"]:
        why.append(second["clock_trouble"] or "its clock makes no progress; see `wheeld doctor`")
    if late > limit:
        why.append(
            f"a timer was {duration(late)} late, expected {duration(limit)} at most; "
            "`wheeld doctor` says what keeps the clock from being on time"
        )
    fired = sum(count for count in new.values() if count > 0)
    return Health(not why, tuple(why), late, fired)
