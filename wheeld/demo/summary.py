"""The figures of a case, from its checked account: plain values that go to JSON as they are."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from wheeld.demo import workload
from wheeld.demo.account import CaseAccount, Verdict

SATURATED_SHARE: Final = 0.95
"""A run that reached less of the rate that it was offered for is called saturated."""
SATURATED_LAG_S: Final = 1.0
"""So is one that was behind its open loop by more than this at any time."""


@dataclass(frozen=True)
class Usage:
    """What a daemon took: CPU seconds of its processes, bytes of shared memory."""

    clock_s: float
    supervisor_s: float
    shared_bytes: int


def summarise(
    name: str, account: CaseAccount, verdict: Verdict, usage: Usage, start_ns: int
) -> dict[str, Any]:
    """All figures of a case.

    Parameters
    ----------
    name : str
        Of the case.
    account, verdict
        From `merge` and `check`.
    usage : Usage
        Measured by the parent.
    start_ns : int
        Monotonic time that arrivals count from.
    """
    receipts = account.receipts
    scheduled = account.after > 0
    lag = (account.after - start_ns - account.requests["arrival_ns"])[scheduled]
    offered = workload.offered_rate(account.requests)
    last = int(account.after.max(initial=start_ns + 1)) - start_ns
    reached = verdict.scheduled / last * 1e9
    lag_max = float(lag.max(initial=0)) / 1e9
    busy = reached < SATURATED_SHARE * offered or lag_max > SATURATED_LAG_S
    return {
        "case": name,
        **asdict(verdict),
        "faults": verdict.faults(),
        "offered_per_s": offered if np.isfinite(offered) else None,
        "reached_per_s": reached,
        "saturated": bool(busy),
        "scheduling_lag_ms": percentiles(lag),
        "lateness_ms": percentiles(receipts["fired"] - receipts["deadline"]),
        "receive_lateness_ms": percentiles(receipts["received"] - receipts["deadline"]),
        "peak_pending": int(pending_over_time(account, start_ns)[1].max(initial=0)),
        "wheel_full": sum(int(facts.get("fulls", 0)) for facts in account.facts),
        "run_s": last / 1e9,
        "cpu_s": {
            "workers": sum(float(facts["cpu_s"]) for facts in account.facts),
            "clock": usage.clock_s,
            "supervisor": usage.supervisor_s,
        },
        "shared_bytes": usage.shared_bytes,
    }


def percentiles(values_ns: npt.NDArray[Any]) -> dict[str, float] | None:
    """p50, p99, p99.9 and max in ms; None when there are no values."""
    if not len(values_ns):
        return None
    points = np.percentile(values_ns, (50, 99, 99.9, 100)) / 1e6
    return dict(zip(("p50", "p99", "p99.9", "max"), points.tolist(), strict=True))


def pending_over_time(
    account: CaseAccount, start_ns: int, points: int = 800
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.int64]]:
    """How many timers were pending, at `points` times: seconds since the start, and counts."""
    came = np.sort(account.after[account.after > 0])
    gone = [account.cancelled_at[account.won == 1], account.receipts["fired"]]
    ended = np.sort(np.concatenate(gone))
    if not len(came):
        return np.zeros(0), np.zeros(0, np.int64)
    times = np.linspace(start_ns, max(came[-1], ended[-1] if len(ended) else 0), points)
    counts = np.searchsorted(came, times, "right") - np.searchsorted(ended, times, "right")
    return (times - start_ns) / 1e9, counts
