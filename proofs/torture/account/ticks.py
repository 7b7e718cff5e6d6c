"""Periodic timers: every tick of the grid is received once, or reported as missed.

Consecutive ticks of a timer are (missed + 1) intervals apart. A smaller step is a tick twice or off
the grid; a larger one is a lost tick, unless a worker that could have received it was dead or died
before anybody knew, or had not looked when the timer was cancelled: then it is passed over. (Where
several receive, ticks come out of order.) No tick is received by a poll that began after a cancel
had said True.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from proofs.torture.account.history import Death, History
from proofs.torture.workers.ledger import Kind

EMPTIED: Final = 8
"""Ticks of cancelled timers make a poll return less, too; not so many at once."""

Add = Callable[[str, str, Iterable[int]], None]
MayReceive = Callable[[npt.NDArray[Any]], npt.NDArray[np.bool_]]


def judge(history: History, may_receive: MayReceive, add: Add) -> None:
    """Check all ticks of a round; errors are reported by `add(counter, reason, cookies)`."""
    events = history.of(Kind.EVENT)
    at, known = history.find(events["cookie"])
    periodic = known.copy()
    periodic[known] = history.timers["interval"][at[known]] > 0
    events, at = events[periodic], at[periodic]
    order = np.lexsort((events["a"], events["cookie"]))
    events, at = events[order], at[order]
    if not len(events):
        return
    timers = history.timers[at]
    first = np.ones(len(events), bool)
    first[1:] = events["cookie"][1:] != events["cookie"][:-1]
    _judge_steps(history, events, timers, first, may_receive, add)
    _judge_ends(history, events, at, add)


def _judge_steps(
    history: History,
    events: npt.NDArray[Any],
    timers: npt.NDArray[Any],
    first: npt.NDArray[np.bool_],
    may_receive: MayReceive,
    add: Add,
) -> None:
    cookies = events["cookie"]
    expected = np.zeros(len(events), np.int64)
    expected[1:] = events["a"][:-1] + (events["c"][:-1] + 1) * timers["interval"][1:]
    lowest = np.where(first, timers["earliest"], expected)
    highest = np.where(first, timers["latest"], expected)
    same = np.zeros(len(events), bool)
    same[1:] = ~first[1:] & (events["a"][1:] == events["a"][:-1])
    add("doubled", "a tick was received twice", cookies[same])
    soon = ~same & (events["a"] < lowest)
    add("early", "a tick was before its time", cookies[first & soon])
    add("unexpected", "a tick that was reported as missed, or off the grid", cookies[~first & soon])
    gaps = np.flatnonzero(events["a"] > highest)
    if not len(gaps):
        return
    ended = _ended(history)
    for row, seats in zip(gaps.tolist(), may_receive(timers[gaps]), strict=True):
        due = int(lowest[row])
        if any(seats[death.seat] and _there(death) >= due for death in history.deaths):
            continue
        end = ended.get(int(cookies[row]))
        if end is None or not _unread(history, seats, int(events["b"][row]), end):
            add("lost", "a tick was neither received nor reported as missed", [cookies[row]])


def _there(death: Death) -> float:
    """Until when ticks can have gone into a dead worker's ring: until its name was free again."""
    return max(death.ended, death.reborn) if death.reborn else math.inf


def _ended(history: History) -> dict[int, int]:
    """When the cancel that won began, by cookie."""
    answers = history.of(Kind.CANCELLED)
    answers = answers[answers["a"] == 1]
    return dict(zip(answers["cookie"].tolist(), answers["began"].tolist(), strict=True))


def _unread(history: History, seats: npt.NDArray[np.bool_], since: int, until: int) -> bool:
    """May a tick that was there at `since` have waited in somebody's ring until its timer was
    cancelled, at `until`, and then been passed over?

    Not if there is only one reader, who had a later tick; nor in the ring of a worker who meanwhile
    got clearly fewer events than it asked for, and so emptied it.
    """
    if seats.sum() < 2:
        return False
    polls = history.of(Kind.POLLED)
    emptied = (polls["c"] - polls["a"] >= EMPTIED) & (polls["began"] >= since)
    emptied &= polls["time"] <= until
    return not set(np.flatnonzero(seats)) <= set(history.seats_of(Kind.POLLED)[emptied].tolist())


def _judge_ends(
    history: History, events: npt.NDArray[Any], at: npt.NDArray[np.intp], add: Add
) -> None:
    answers = history.of(Kind.CANCELLED)
    answers = answers[answers["a"] == 1]
    ended, known = history.find(answers["cookie"])
    over = np.full(len(history.timers), np.iinfo(np.int64).max)
    over[ended[known]] = answers["time"][known]
    after = events["began"] > over[at]
    add("unexpected", "a tick after its timer was cancelled", events["cookie"][after])


def silent(history: History, cookies: npt.NDArray[Any], since: int) -> npt.NDArray[np.bool_]:
    """Of each periodic timer: has it had no tick that fired after `since`?"""
    events = history.of(Kind.EVENT)
    heard = events["cookie"][events["b"] >= since]
    quiet: npt.NDArray[np.bool_] = ~np.isin(cookies, heard)
    return quiet
