"""The account: what became of each request, from the logs of all workers.

Nothing here trusts a counter of the daemon or of a worker: the verdict is computed per request from
the answers of `cancel` and from the expirations that were received.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from wheeld_client.replay import faults_of

Ints = npt.NDArray[np.int64]

RECEIPT: Final = np.dtype(
    [
        ("number", "u8"),
        ("deadline", "i8"),
        ("fired", "i8"),
        ("received", "i8"),
        ("intact", "?"),
    ]
)
"""One delivered expiration: request number, times in ns, and whether its payload was right."""


@dataclass
class Log:
    """What one worker wrote down, as the journal of its player.

    `numbers`, `before`, `after` (when its schedule call began and ended, ns; 0: never), `won` (1:
    `cancel` said True; 0: the timer had fired before; -1: it was not done in time) and
    `cancelled_at` have one entry per request of the worker; `receipts` one per expiration.
    """

    numbers: npt.NDArray[np.uint64]
    before: npt.NDArray[np.int64]
    after: npt.NDArray[np.int64]
    won: npt.NDArray[np.int8]
    cancelled_at: npt.NDArray[np.int64]
    receipts: npt.NDArray[Any]
    facts: dict[str, Any] = field(default_factory=dict)
    _batches: list[npt.NDArray[Any]] = field(default_factory=list)

    @classmethod
    def empty(cls, numbers: npt.NDArray[np.uint64]) -> Log:
        before, after, cancelled_at = np.zeros((3, len(numbers)), np.int64)
        won = np.full(len(numbers), -1, np.int8)
        return cls(numbers, before, after, won, cancelled_at, np.empty(0, RECEIPT))

    def scheduled(self, numbers: Ints, before_ns: int, after_ns: int) -> None:
        self.before[numbers], self.after[numbers] = before_ns, after_ns

    def completed(self, numbers: Ints, won: npt.NDArray[np.bool_], at_ns: int) -> None:
        self.won[numbers], self.cancelled_at[numbers] = won, at_ns

    def received(self, events: npt.NDArray[Any], intact: npt.NDArray[np.bool_], at_ns: int) -> None:
        """See `Journal`."""
        receipts = np.empty(len(events), RECEIPT)
        receipts["number"], receipts["deadline"] = events["cookie"], events["deadline"]
        receipts["fired"], receipts["received"] = events["fired"], at_ns
        receipts["intact"] = intact
        self._batches.append(receipts)

    def save(self, path: Path) -> None:
        """Write it, whole or not at all."""
        arrays = {name: getattr(self, name) for name in ARRAYS}
        arrays["receipts"] = np.concatenate([self.receipts, *self._batches])
        fresh = path.with_suffix(".new.npz")
        np.savez(fresh, facts=json.dumps(self.facts), **arrays)
        fresh.rename(path)


ARRAYS: Final = ["numbers", "before", "after", "won", "cancelled_at", "receipts"]


@dataclass
class CaseAccount:
    """All requests of a case, by number, shape (n,), and all receipts, shape (m,)."""

    requests: npt.NDArray[Any]
    before: npt.NDArray[np.int64]
    after: npt.NDArray[np.int64]
    won: npt.NDArray[np.int8]
    cancelled_at: npt.NDArray[np.int64]
    deliveries: npt.NDArray[np.int64]
    receipts: npt.NDArray[Any]
    strangers: int
    """Expirations that the receiving worker had not scheduled."""
    facts: list[dict[str, Any]]


@dataclass(frozen=True)
class Verdict:
    """Counts; see `faults` for those that must be 0."""

    requests: int
    scheduled: int
    completed: int
    timed_out: int
    late_completions: int
    """`cancel` said False: the request timed out first."""
    exactly_once: int
    lost: int
    doubled: int
    unscheduled: int
    strangers: int
    fired_early: int
    deadline_wrong: int
    payload_wrong: int
    left_pending: int

    def faults(self) -> dict[str, int]:
        return faults_of(self)


def load(path: Path) -> Log:
    """Read a worker's log."""
    with np.load(path) as file:
        arrays: dict[str, Any] = {name: file[name] for name in ARRAYS}
        return Log(**arrays, facts=json.loads(str(file["facts"])))


def merge(requests: npt.NDArray[Any], logs: Sequence[Log]) -> CaseAccount:
    """Put the workers' logs together.

    Parameters
    ----------
    requests : numpy.ndarray of REQUEST, shape (n,)
        All requests; the index is the request's number.
    logs : sequence of Log
        One per worker; together they have each number once.
    """
    count = len(requests)
    merged: dict[str, Any] = {
        name: np.zeros(count, np.int64) for name in ("before", "after", "cancelled_at")
    }
    merged["won"] = np.full(count, -1, np.int8)
    deliveries = np.zeros(count, np.int64)
    receipts, strangers = [np.empty(0, RECEIPT)], 0
    for log in logs:
        numbers = log.numbers.astype(np.int64)
        for name, column in merged.items():
            column[numbers] = getattr(log, name)
        own = np.isin(log.receipts["number"], log.numbers)
        strangers += int((~own).sum())
        receipts.append(log.receipts[own])
        deliveries += np.bincount(receipts[-1]["number"].astype(np.int64), minlength=count)
    return CaseAccount(
        requests=requests,
        deliveries=deliveries,
        receipts=np.concatenate(receipts),
        strangers=strangers,
        facts=[log.facts for log in logs],
        **merged,
    )


def check(account: CaseAccount) -> Verdict:
    """Check every request and every receipt.

    A request ends once when either `cancel` said True and nothing was delivered, or it was
    delivered once and `cancel` did not say True. A receipt is early when it was fired before its
    deadline (or received before it was fired); its deadline is wrong when the schedule call, which
    began and ended at known times, cannot have meant it.
    """
    ends = (account.won == 1) + account.deliveries
    scheduled = account.after > 0
    receipts = account.receipts
    number = receipts["number"].astype(np.int64)
    # the wheel takes seconds and cuts to whole ns, as this does
    timeout = (account.requests["timeout_ns"] / 1e9 * 1e9).astype(np.int64)[number]
    earliest, latest = account.before[number] + timeout, account.after[number] + timeout
    deadline = receipts["deadline"]
    early = (receipts["fired"] < deadline) | (receipts["received"] < receipts["fired"])
    return Verdict(
        requests=len(ends),
        scheduled=int(scheduled.sum()),
        completed=int((account.won == 1).sum()),
        timed_out=int((account.deliveries > 0).sum()),
        late_completions=int((account.won == 0).sum()),
        exactly_once=int((ends == 1).sum()),
        lost=int((scheduled & (ends == 0)).sum()),
        doubled=int((ends > 1).sum()),
        unscheduled=int((~scheduled).sum()),
        strangers=account.strangers,
        fired_early=int(early.sum()),
        deadline_wrong=int(((deadline < earliest) | (deadline > latest)).sum()),
        payload_wrong=int((~receipts["intact"]).sum()),
        left_pending=sum(int(facts.get("pending_left", 0)) for facts in account.facts),
    )
