"""The account of what is shared: leases, limits and jobs. From the ledgers alone.

*Leases.* A holder has it from the answer until it gives it back, until `seconds` after the call
that took or renewed it began, or until it is killed, whichever is first. Never have more than its
seats a lease at a time. An acquisition that began when another one had been answered has a larger
token. Until its time is over it can be renewed and given back. When nobody keeps it, it is free.

*Limits.* Something is taken at a moment between the call and its answer. Calls that took long are
left out: that makes the sum smaller. Any stretch of calls has taken no more than the limit gives
from the begin of the first to the answer of the last: of GCRA `burst` and what comes meanwhile, of
a moving window its limit, of fixed ones that of as many windows as this time can touch.

*Jobs.* Each occurrence between two readings of what is due next was run to its end, and once more
only for a worker that was killed in its last run; one `at_most_once` no more than once, and is lost
only with a worker. A task that was scheduled, likewise. None begins early, and no two runs of a job
with a schedule overlap.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import pairwise
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from proofs.torture.account import Verdict
from proofs.torture.history import NEVER, History
from proofs.torture.ledger import SEATING, Kind
from proofs.torture.sharing import EVERY, JOBS, LEASES, LIMITS, ONCE, PERIOD, TASK, Limit, Shared

PERIOD_NS: Final = int(PERIOD * 1e9)
QUICK: Final = 0.1
"""Of a limit's `per`: calls that took longer are left out."""


def judge(history: History, begin: npt.NDArray[Any], end: npt.NDArray[Any]) -> Verdict:
    """`begin`, `end`: when each job with a schedule was due next, before and after the round."""
    verdict = Verdict()
    killed = {
        death.life: death.killed
        for death in history.deaths
        if death.killed and SEATING[death.seat].shares
    }
    for number, lease in enumerate(LEASES):
        _judge_lease(history, number, lease, killed, verdict)
    _judge_tokens(history, verdict)
    for number, limit in enumerate(LIMITS):
        _judge_limit(history, number, limit, verdict)
    runs = runs_of(history, killed)
    verdict.runs = len(runs)
    for job in (EVERY, ONCE):
        own = sorted((run for run in runs if run.job == job), key=lambda run: run.began)
        _judge_job(job, own, int(begin[job]), int(end[job]), len(killed), verdict)
    _judge_tasks(history, [run for run in runs if run.job == TASK], verdict)
    return verdict


# -- leases --------------------------------------------------------------------------------------


@dataclass
class Hold:
    """`until`: how long it was surely held, ns; `over`: until when it was to be."""

    since: int
    until: int
    over: int


def _judge_lease(
    history: History, number: int, lease: Shared, killed: dict[int, int], verdict: Verdict
) -> None:
    span = NEVER // 2 if lease.seconds is None else int(lease.seconds * 1e9)
    kinds = [Kind.LEASED, Kind.GIVE, Kind.GIVEN, Kind.RENEWED]
    records = history.records
    mine = np.isin(records["kind"], kinds) & (records["cookie"] == number) & (records["code"] == 0)
    holds: list[Hold] = []
    held: dict[int, Hold] = {}
    for kind, life, began, at, yes, sure in records[mine][
        ["kind", "life", "began", "time", "a", "c"]
    ].tolist():
        if kind == Kind.LEASED:
            if yes:
                held[life] = Hold(at, min(began + span, killed.get(life, NEVER)), began + span)
                holds.append(held[life])
            elif sure:
                verdict.add("lost", f"lease {number}: nobody keeps it, and it is not free")
        elif (hold := held.get(life)) is None:
            continue
        elif kind == Kind.GIVE:
            hold.until = min(hold.until, at)
        elif not yes:
            if at < hold.over:
                verdict.add("lost", f"lease {number}: it was over before its time")
        elif kind == Kind.GIVEN:
            hold.until = max(hold.until, began)
        else:
            hold.over = began + span
            hold.until = max(hold.until, min(hold.over, killed.get(life, NEVER)))
    verdict.holds += len(holds)
    present: list[int] = []
    for hold in sorted(holds, key=lambda hold: hold.since):
        while present and present[0] <= hold.since:
            heappop(present)
        heappush(present, hold.until)
        if len(present) > lease.seats:
            verdict.add("doubled", f"lease {number}: held by more than {lease.seats} at once")


def _judge_tokens(history: History, verdict: Verdict) -> None:
    taken = np.sort(history.of(Kind.LEASED), order="time")
    taken = taken[taken["a"] == 1]
    if len(np.unique(taken["id"])) != len(taken):
        verdict.add("doubled", "two acquisitions have the same token")
    largest = np.concatenate([[0], np.maximum.accumulate(taken["id"])])
    before = largest[np.searchsorted(taken["time"], taken["began"])]
    for _ in range(int((before >= taken["id"]).sum())):
        verdict.add("unexpected", "a later acquisition has a smaller token")


# -- limits --------------------------------------------------------------------------------------


def _judge_limit(history: History, number: int, limit: Limit, verdict: Verdict) -> None:
    per = int(limit.per * 1e9)
    drawn = np.sort(history.of(Kind.DRAWN), order="time")
    drawn = drawn[(drawn["cookie"] == number) & (drawn["a"] > 0)]
    verdict.draws += int(drawn["a"].sum())
    drawn = drawn[drawn["time"] - drawn["began"] < QUICK * per]
    if not len(drawn):
        return
    since = np.minimum.accumulate(drawn["began"][::-1])[::-1]
    until, sums = drawn["time"], np.cumsum(drawn["a"])
    before = sums - drawn["a"]
    if limit.window == "moving":
        last = np.searchsorted(until, since + per) - 1
        excess = sums[last] - before - limit.limit
    else:
        at_once = 2 * limit.limit if limit.window == "fixed" else limit.burst or limit.limit
        rate = limit.limit / per
        least = np.minimum.accumulate(before - (since - since[0]) * rate)
        excess = sums - (until - since[0]) * rate - least - at_once - 1e-6
    if (most := float(excess.max())) > 0:
        verdict.add("unexpected", f"{most:.2f} more than the {limit.window} limit gives")


# -- jobs ----------------------------------------------------------------------------------------


@dataclass
class Run:
    """`last`: its worker was killed in it, or behind it before another run began."""

    job: int
    number: int
    began: int
    ended: int
    whole: bool
    last: bool = False


def runs_of(history: History, killed: dict[int, int]) -> list[Run]:
    records = history.records[np.isin(history.records["kind"], [Kind.RUN, Kind.RAN])]
    runs: list[Run] = []
    latest: dict[int, Run] = {}
    for kind, life, number, at, job in records[["kind", "life", "cookie", "time", "a"]].tolist():
        if kind == Kind.RUN:
            latest[life] = Run(job, number, at, killed.get(life, NEVER), False)
            runs.append(latest[life])
        else:
            latest[life].ended, latest[life].whole = at, True
    for life, run in latest.items():
        run.last = life in killed
    return runs


def _judge_job(
    job: int, runs: list[Run], begin: int, end: int, deaths: int, verdict: Verdict
) -> None:
    name = f"job {JOBS[job]!r}"
    if not begin or not end:
        verdict.add("lost", f"{name} has no next occurrence")
        return
    expected = (end - begin) // PERIOD_NS
    again = sum(run.last for run in runs) if job == EVERY else 0
    whole = sum(run.whole for run in runs) if job == EVERY else len(runs) + deaths
    for _ in range(expected - whole):
        verdict.add("lost", f"{name}: an occurrence was not run")
    for _ in range(len(runs) - expected - again):
        verdict.add("doubled", f"{name}: an occurrence was run twice")
    for position, run in enumerate(runs):
        if run.began < begin + (position - again) * PERIOD_NS:
            verdict.add("early", f"{name}: a run began before it was due")
    for one, two in pairwise(runs):
        if two.began < one.ended:
            verdict.add("doubled", f"{name}: two of its runs overlap")


def _judge_tasks(history: History, runs: list[Run], verdict: Verdict) -> None:
    asked, answers = history.of(Kind.ASK), history.of(Kind.ASKED)
    due = dict(zip(asked["cookie"].tolist(), (asked["time"] + asked["a"]).tolist(), strict=True))
    refused = set(answers["cookie"][answers["code"] != 0].tolist())
    whole = {run.number for run in runs if run.whole}
    missing = set(answers["cookie"][answers["code"] == 0].tolist()) - whole
    verdict.add("lost", "a task was not run", missing)
    alive = Counter(run.number for run in runs if not run.last)
    verdict.add("doubled", "a task was run twice", [n for n, count in alive.items() if count > 1])
    strange = {run.number for run in runs if run.number not in due or run.number in refused}
    verdict.add("unexpected", "a task that nobody has scheduled", strange)
    early = {run.number for run in runs if run.began < due.get(run.number, 0)}
    verdict.add("early", "a task began before it was due", early)


def open_tasks(history: History) -> int:
    """How many tasks were scheduled and have not been run to their end."""
    answers, ran = history.of(Kind.ASKED), history.of(Kind.RAN)
    return int((~np.isin(answers["cookie"][answers["code"] == 0], ran["cookie"])).sum())
