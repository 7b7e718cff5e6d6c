"""The account of a replay: what became of all requests, and whether the daemon kept up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from wheeld_client.replay import LatenessHistogram, faults_of, percentile_row, verdict_lines

KEPT_UP_SHARE: Final = 0.95
"""The least share of the requested rate for a replay that kept up."""
KEPT_UP_MS: Final = 1000.0
"""A replay that was behind by more than this at any time did not keep up, either."""


@dataclass(frozen=True)
class Outcome:
    """The result of a replay; every count is exact.

    Attributes
    ----------
    requests, scheduled : int
        In the workload, and of those scheduled.
    cancelled, expired : int
        Done in time, and timed out; each request is one of the two.
    late : int
        Done before the timeout by the workload, but the timer had fired first; they expired.
    unscheduled, lost, doubled, strangers, early, payload_wrong : int
        What must be 0.
    miscounted : int
        By how much the workers' own counters (`stats`) differ from this account.
    wheel_full : int
        How often a call met a full wheel, and tried again later.
    wheel_full_s : float
        Seconds in which workers could not schedule for that reason, added up.
    seconds : float
        From the start to the last scheduled request.
    asked_per_s : float or None
        The rate that the workload and the speed ask for; None: as fast as it goes.
    reached_per_s : float
    behind_ms : dict or None
        Percentiles of how much later than planned requests were scheduled; None at speed max.
    lateness_ms : dict or None
        Percentiles of fired - deadline of what expired.
    counters : dict
        The workers' own counters, added up.
    cpu_s : float
        CPU time of the workers.
    """

    requests: int
    scheduled: int
    cancelled: int
    expired: int
    late: int
    unscheduled: int
    lost: int
    doubled: int
    strangers: int
    early: int
    payload_wrong: int
    miscounted: int
    wheel_full: int
    wheel_full_s: float
    workers: int
    seconds: float
    asked_per_s: float | None
    reached_per_s: float
    behind_ms: dict[str, float] | None
    lateness_ms: dict[str, float] | None
    counters: dict[str, int]
    cpu_s: float

    @property
    def faults(self) -> dict[str, int]:
        return faults_of(self)

    @property
    def kept_up(self) -> bool:
        """Did it reach the requested rate?"""
        if self.asked_per_s is None:
            return True
        behind = self.behind_ms["max"] if self.behind_ms else 0.0
        return self.reached_per_s >= KEPT_UP_SHARE * self.asked_per_s and behind <= KEPT_UP_MS

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "faults": self.faults, "kept_up": self.kept_up}

    def text(self) -> str:
        """For people."""
        asked = "all at once" if self.asked_per_s is None else f"{self.asked_per_s:,.0f}/s"
        lines = [
            f"scheduled   {self.scheduled:>13,}  of {self.requests:,} requests",
            f"cancelled   {self.cancelled:>13,}  done before their timeout",
            f"expired     {self.expired:>13,}  delivered ({self.late:,} of them done too late)",
            f"rate        asked {asked}, reached {self.reached_per_s:,.0f}/s in "
            f"{self.seconds:.1f} s with {self.workers} workers ({self.cpu_s:.1f} s of CPU)",
            _row("behind", self.behind_ms, "scheduled - planned"),
            _row("lateness", self.lateness_ms, "fired - deadline"),
        ]
        if self.wheel_full:
            lines.append(
                f"WHEEL FULL  {self.wheel_full:,} times; workers waited {self.wheel_full_s:.1f} s "
                "in all: give the daemon a larger --capacity"
            )
        if not self.kept_up:
            lines.append("NOT KEPT UP: the requests came later than the workload has them")
        return "\n".join([*lines, *verdict_lines(self.faults)])


def _row(name: str, values: dict[str, float] | None, meaning: str) -> str:
    return percentile_row(name, values, meaning, 11, "no samples")


def add_up(accounts: Sequence[dict[str, Any]], requests: int, asked_per_s: float | None) -> Outcome:
    """The account of all workers together."""

    def total(name: str) -> Any:
        return sum(account[name] for account in accounts)

    behind, lateness = LatenessHistogram(), LatenessHistogram()
    counters: dict[str, int] = {}
    for account in accounts:
        behind.merge(LatenessHistogram.from_json(account["behind"]))
        lateness.merge(LatenessHistogram.from_json(account["lateness"]))
        for name, count in account["counters"].items():
            counters[name] = counters.get(name, 0) + count
    names = {"scheduled": "scheduled", "cancelled": "cancelled", "expired": "received"}
    seconds = max(account["lasted_ns"] for account in accounts) / 1e9
    found = {name: total(name) for name in ("scheduled", "cancelled", "expired", "late", "lost")}
    return Outcome(
        requests=requests,
        **found,
        unscheduled=requests - found["scheduled"],
        doubled=total("doubled"),
        strangers=total("strangers"),
        early=total("early"),
        payload_wrong=total("payload_wrong"),
        miscounted=sum(abs(found[mine] - counters[theirs]) for mine, theirs in names.items()),
        wheel_full=total("fulls"),
        wheel_full_s=total("full_seconds"),
        workers=len(accounts),
        seconds=seconds,
        asked_per_s=asked_per_s,
        reached_per_s=found["scheduled"] / max(seconds, 1e-9),
        behind_ms=behind.percentiles_ms(),
        lateness_ms=lateness.percentiles_ms(),
        counters=counters,
        cpu_s=total("cpu_s"),
    )
