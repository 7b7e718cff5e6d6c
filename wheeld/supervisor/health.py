"""Judges the health of a daemon, for status, health, top, list, doctor and the metrics."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from wheeld_core.units import duration


@dataclass(frozen=True)
class Health:
    ok: bool
    why: tuple[str, ...]
    """The faults; empty if it is healthy."""
    late: int
    """Lateness of the latest timer that fired between the readings, ns; at most an eighth too
    high."""
    fired: int
    """How many did."""

    def as_dict(self) -> dict[str, Any]:
        found = asdict(self)
        found["lateness_ns"] = found.pop("late")
        return {**found, "why": list(self.why)}


_STOPPED = {"T": "is stopped: `kill -CONT {pid}`", "t": "is stopped by a debugger: resume it"}


def clock_trouble(pid: int | None, state: str, progresses: bool) -> str | None:
    """Describes the fault of a clock process, and the remedy; None: nothing. `state` is as in
    /proc/PID/stat, empty: it has ended; `progresses`: its last pass is recent, or it still sleeps
    as planned."""
    if pid is None or state in ("", "Z", "X"):
        return "no clock is running: the daemon starts another; its log says why that takes long"
    if state in _STOPPED:
        return f"the clock (pid {pid}) {_STOPPED[state].format(pid=pid)}"
    if not progresses:
        return (
            f"the clock (pid {pid}) makes no progress: the daemon replaces one that hangs; if it "
            "does not, `wheeld restart`"
        )
    return None


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
        why.append(second["clock_trouble"])
    if late > limit:
        why.append(
            f"a timer was {duration(late)} late, expected {duration(limit)} at most; "
            "`wheeld doctor` says what keeps the clock from being on time"
        )
    fired = sum(count for count in new.values() if count > 0)
    return Health(not why, tuple(why), late, fired)
