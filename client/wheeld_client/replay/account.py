"""The fate of each request, and whether that was right.

A request is a timer. It ends once: a cancel said True and it is never delivered, or it is delivered
once and no cancel said True. `event_faults` has the rules for each delivery; the torture driver,
which keeps its timers in a ledger, applies the same rules.

`Account` keeps what one worker has in flight: exact, in bounded memory. `Outcome` is the account of
all workers. Nothing here trusts a counter of the daemon; the workers' own counters are compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from wheeld_client.replay.histogram import LatenessHistogram

Ints = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]

WORDS: Final = {
    "unscheduled": "never scheduled",
    "lost": "neither cancelled nor delivered",
    "doubled": "ended more than once",
    "strangers": "delivered to a worker that had not scheduled it",
    "early": "fired before the deadline",
    "deadline_wrong": "delivered with a later deadline than was asked for",
    "payload_wrong": "delivered with other bytes than were scheduled",
    "id_wrong": "delivered with another timer id",
    "left_pending": "still counted as pending at the end",
    "miscounted": "differ between the account and the workers' own counters",
}
"""The broken promises of the daemon."""
EVENT_FAULTS: Final = ("early", "deadline_wrong", "payload_wrong", "id_wrong")
TIMER: Final = [("id", "u8"), ("size", "i4"), ("earliest", "i8"), ("latest", "i8")]
"""The facts of a timer that the rules use: its id (0: nobody noted it), the size of its payload,
and the earliest and latest deadline, ns."""


def event_faults(
    timers: npt.NDArray[Any],
    *,
    id: npt.NDArray[Any],
    deadline: Ints,
    fired: Ints,
    received: Ints,
    size: npt.NDArray[Any],
    once: Flags | bool = True,
) -> dict[str, Flags]:
    """The faults of each delivery, by the names of `EVENT_FAULTS`; all arrays have shape (n,).

    Parameters
    ----------
    timers : numpy.ndarray
        The timer of each delivery, with the fields of `TIMER`.
    id, deadline, fired, received : numpy.ndarray
        As they were delivered; times in ns, `received` when the call that received it returned.
    size : numpy.ndarray
        Bytes of the payload; -1 if they differ from the scheduled ones.
    once : numpy.ndarray of bool
        Which timers are one-shot: each tick of a periodic one has its own deadline.
    """
    early = (fired < deadline) | (received < fired)
    return {
        "early": early | (once & (deadline < timers["earliest"])),
        "deadline_wrong": once & (deadline > timers["latest"]),
        "payload_wrong": size != timers["size"],
        "id_wrong": (timers["id"] != 0) & (timers["id"] != id),
    }


FREE, WAITING, SCHEDULED, ENDED = range(4)
_LOOK: Final = 1 << 16


class Account:
    """One worker's requests, numbered 0, 1, 2 ... in their order of arrival.

    It reaches from the oldest request that has not ended to the newest that has arrived, and grows
    with what is in flight, not with the workload. A delivery for an earlier number is for a request
    that has ended.

    Attributes
    ----------
    scheduled, cancelled, expired, peak : int
        How many were ever scheduled, were cancelled in time, were delivered; and were in flight at
        the same time, at most.
    doubled : int
        Delivered a second time, or though `cancel` had won.
    strangers : int
        Delivered although this worker never scheduled it.
    faults : dict of str to int
        Wrong deliveries, by `EVENT_FAULTS`.
    """

    def __init__(self, room: int = _LOOK) -> None:
        self._room = room
        self._rows = np.zeros(room, [*TIMER, ("state", "u1"), ("mark", "i4")])
        self.base = self.end = 0
        self.scheduled = self.cancelled = self.expired = self.peak = 0
        self.doubled = self.strangers = 0
        self.faults = dict.fromkeys(EVENT_FAULTS, 0)

    def __len__(self) -> int:
        """How many requests are scheduled and have not ended."""
        return self.scheduled - self.cancelled - self.expired

    def arrive(self, sizes: npt.NDArray[Any]) -> Ints:
        """Number new requests; they wait to be scheduled. Shape (n,)."""
        while self.end + len(sizes) - self.base > self._room:
            self._grow()
        numbers = np.arange(self.end, self.end + len(sizes))
        at = self._at(numbers)
        self._rows["size"][at], self._rows["state"][at] = sizes, WAITING
        self.end += len(sizes)
        return numbers

    def schedule(
        self, numbers: Ints, ids: npt.NDArray[np.uint64], earliest: Ints, latest: Ints
    ) -> None:
        """Note that these were scheduled, each with a deadline from `earliest` to `latest`, ns."""
        at, rows = self._at(numbers), self._rows
        rows["id"][at], rows["state"][at] = ids, SCHEDULED
        rows["earliest"][at], rows["latest"][at] = earliest, latest
        self.scheduled += len(numbers)
        self.peak = max(self.peak, len(self))

    def in_flight(self, numbers: Ints) -> tuple[Ints, npt.NDArray[np.uint64]]:
        """The numbers of requests whose timers have not ended, and their ids."""
        numbers = numbers[numbers >= self.base]
        numbers = numbers[self._rows["state"][self._at(numbers)] == SCHEDULED]
        return numbers, self._rows["id"][self._at(numbers)]

    def cancel(self, numbers: Ints, won: Flags) -> None:
        """Note the answers of `cancel_many` for numbers that were in flight."""
        self._rows["state"][self._at(numbers[won])] = ENDED
        self.cancelled += int(won.sum())

    def sizes_of(self, numbers: Ints) -> Ints:
        """Bytes of their payloads; arbitrary for numbers outside of the window."""
        sizes: Ints = self._rows["size"][self._at(numbers)].astype(np.int64)
        return sizes

    def deliver(self, numbers: Ints, **events: npt.NDArray[Any]) -> None:
        """Note a delivery for each of these numbers; `events` as for `event_faults`."""
        in_window = (numbers >= self.base) & (numbers < self.end)
        known = int(((numbers >= 0) & (numbers < self.end)).sum())
        at = self._at(numbers[in_window])
        states = self._rows["state"][at]
        never = int((states == WAITING).sum())
        asked = states != WAITING
        picked = {name: column[in_window][asked] for name, column in events.items()}
        for name, wrong in event_faults(self._rows[at[asked]], **picked).items():
            self.faults[name] += int(wrong.sum())
        # twice in one batch: the later one overwrites the mark of the earlier one
        at = at[states == SCHEDULED]
        marks = np.arange(len(at), dtype=np.int32)
        self._rows["mark"][at] = marks
        distinct = int((self._rows["mark"][at] == marks).sum())
        self._rows["state"][at] = ENDED
        self.expired += distinct
        self.doubled += known - never - distinct
        self.strangers += len(numbers) - known + never

    def slide(self) -> None:
        """Forget the oldest requests up to the first that has not ended."""
        while self.base < self.end:
            start = self.base & (self._room - 1)
            length = min(self.end - self.base, _LOOK, self._room - start)
            ended = self._rows["state"][start : start + length] == ENDED
            stop = length if ended.all() else int(np.argmin(ended))
            self._rows["state"][start : start + stop] = FREE
            self.base += stop
            if stop < length:
                return

    def _at(self, numbers: Ints) -> Ints:
        return numbers & (self._room - 1)

    def _grow(self) -> None:
        numbers = np.arange(self.base, self.end)
        rows = np.zeros(2 * self._room, self._rows.dtype)
        rows[numbers & (2 * self._room - 1)] = self._rows[self._at(numbers)]
        self._rows, self._room = rows, 2 * self._room


# -- all workers -----------------------------------------------------------------------------------

KEPT_UP_SHARE: Final = 0.95
"""A replay kept up if it reached at least this share of the requested rate."""
KEPT_UP_MS: Final = 1000.0
"""A replay that ever fell behind by more than this did not keep up, either."""


@dataclass(frozen=True)
class Outcome:
    """The result of a replay; every count is exact.

    Attributes
    ----------
    requests, scheduled : int
        In the workload, and of those scheduled.
    cancelled, expired : int
        Done in time, and timed out; each request counts as one of the two.
    late : int
        Done before the timeout by the workload, but the timer had fired first; they expired.
    unscheduled, lost, doubled, strangers, early, deadline_wrong, payload_wrong, id_wrong : int
        Must be 0; see `WORDS`.
    left_pending : int
        What the workers' `pending` said at the end.
    miscounted : int
        Difference between the workers' own counters (`stats`) and this account.
    peak_pending : int
        How many timers were pending at the same time, at most.
    wheel_full : int
        How often a call found the wheel full, and tried again later.
    wheel_full_s : float
        Total seconds in which workers could not schedule for that reason.
    seconds : float
        From the start to the last scheduled request.
    asked_per_s : float or None
        The rate that workload and speed ask for; None: as fast as possible.
    reached_per_s : float
    behind : LatenessHistogram
        How much later than planned requests were scheduled; empty at speed max.
    lateness, receipt : LatenessHistogram
        For expired requests: fired - deadline, and time of return from `poll` - deadline.
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
    deadline_wrong: int
    payload_wrong: int
    id_wrong: int
    left_pending: int
    miscounted: int
    peak_pending: int
    wheel_full: int
    wheel_full_s: float
    workers: int
    seconds: float
    asked_per_s: float | None
    reached_per_s: float
    behind: LatenessHistogram
    lateness: LatenessHistogram
    receipt: LatenessHistogram
    counters: dict[str, int]
    cpu_s: float

    @property
    def faults(self) -> dict[str, int]:
        """The broken promises of the daemon; empty when all is well."""
        return {name: count for name in WORDS if (count := getattr(self, name))}

    @property
    def exactly_once(self) -> int:
        """How many requests were cancelled or delivered exactly once."""
        return max(0, self.cancelled + self.expired - self.doubled)

    @property
    def kept_up(self) -> bool:
        if self.asked_per_s is None:
            return True
        reached = self.reached_per_s >= KEPT_UP_SHARE * self.asked_per_s
        return reached and self.behind.most / 1e6 <= KEPT_UP_MS

    @property
    def behind_ms(self) -> dict[str, float] | None:
        """Percentiles of `behind`; None at speed max."""
        return self.behind.percentiles_ms()

    @property
    def lateness_ms(self) -> dict[str, float] | None:
        """Percentiles of `lateness`; None when nothing expired."""
        return self.lateness.percentiles_ms()

    def as_json(self) -> dict[str, Any]:
        plain = {name: value for name, value in vars(self).items() if name not in HISTOGRAMS}
        spread = {f"{name}_ms": getattr(self, name).percentiles_ms() for name in HISTOGRAMS}
        return {**plain, **spread, "faults": self.faults, "kept_up": self.kept_up}

    def text(self) -> str:
        asked = "all at once" if self.asked_per_s is None else f"{self.asked_per_s:,.0f}/s"
        lines = [
            f"scheduled   {self.scheduled:>13,}  of {self.requests:,} requests",
            f"cancelled   {self.cancelled:>13,}  done before their timeout",
            f"expired     {self.expired:>13,}  delivered ({self.late:,} of them done too late)",
            f"rate        asked {asked}, reached {self.reached_per_s:,.0f}/s in "
            f"{self.seconds:.1f} s with {self.workers} workers ({self.cpu_s:.1f} s of CPU)",
            percentile_row("behind", self.behind, "scheduled - planned", 11),
            percentile_row("lateness", self.lateness, "fired - deadline", 11),
        ]
        if self.wheel_full:
            lines.append(
                f"WHEEL FULL  {self.wheel_full:,} times; workers waited {self.wheel_full_s:.1f} s "
                "in all: give the daemon a larger --capacity"
            )
        if not self.kept_up:
            lines.append("NOT KEPT UP: the requests came later than the workload specifies")
        return "\n".join([*lines, *verdict_lines(self.faults)])


HISTOGRAMS: Final = ("behind", "lateness", "receipt")
SUMS: Final = (
    *("scheduled", "cancelled", "expired", "late", "lost", "doubled", "strangers", *EVENT_FAULTS),
    *("left_pending", "peak_pending", "wheel_full", "wheel_full_s", "cpu_s"),
)
"""The counts that each worker reports, which are added up."""
_COUNTED: Final = {"scheduled": "scheduled", "cancelled": "cancelled", "expired": "received"}
"""Counts of the account, and the workers' own counters for the same."""


def add_up(reports: Sequence[dict[str, Any]], requests: int, asked_per_s: float | None) -> Outcome:
    """The account of all workers together, from each worker's `Player.report`."""
    found: dict[str, Any] = {name: sum(report[name] for report in reports) for name in SUMS}
    counters: dict[str, int] = {}
    spread: dict[str, Any] = {name: LatenessHistogram() for name in HISTOGRAMS}
    for report in reports:
        for name, histogram in spread.items():
            histogram.merge(LatenessHistogram.from_json(report[name]))
        for name, count in report["counters"].items():
            counters[name] = counters.get(name, 0) + count
    seconds = max(report["lasted_ns"] for report in reports) / 1e9
    return Outcome(
        requests=requests,
        **found,
        **spread,
        unscheduled=requests - found["scheduled"],
        miscounted=sum(abs(found[mine] - counters[theirs]) for mine, theirs in _COUNTED.items()),
        workers=len(reports),
        seconds=seconds,
        asked_per_s=asked_per_s,
        reached_per_s=found["scheduled"] / max(seconds, 1e-9),
        counters=counters,
    )


def verdict_lines(faults: Mapping[str, int]) -> list[str]:
    """One line for each fault, or one line that says there are none."""
    if not faults:
        return ["OK: every request ended exactly once, none early, every payload intact"]
    return [f"FAILED: {count:,} {WORDS[name]} ({name})" for name, count in faults.items()]


def percentile_row(name: str, histogram: LatenessHistogram, meaning: str, width: int) -> str:
    values = histogram.percentiles_ms()
    if values is None:
        return f"{name:<{width}} no samples"
    text = "  ".join(f"{point} {value:.3f}" for point, value in values.items())
    return f"{name:<{width}} {text} ms  ({meaning})"
