"""Policies: what happens to late and repeated events of a timer, decided where they are received.

The wheel knows nothing of them: a slot has no room for fields that few timers use. They belong to
the process that scheduled the timer, and end with it.
"""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

from wheeld_client.connection.options import MOST_SECONDS
from wheeld_core import _native
from wheeld_core.arguments import Seconds, epoch_ns, float_of, shown, whole_of
from wheeld_core.errors import InvalidDelay, RingFull, WheelError
from wheeld_core.views import widened, wider

if TYPE_CHECKING:
    from wheeld_client.timers.timers import Timers

T = TypeVar("T")
Events = npt.NDArray[np.void]
NAMES: Final = frozenset({"jitter", "grace", "grace_drop", "coalesce", "missed", "times", "until"})
MOST_TIMES: Final = 2**64 - 1
MOST_MISSED: Final = 2**32 - 1
"""An event counts no more; the ticks behind it come in another one."""
FIRST_PRUNE: Final = 1024
"""Number of entries from which on the table is searched for cancelled timers."""


def span_of(name: str, given: Seconds) -> float:
    """Seconds given as an option, finite and not negative; else InvalidDelay."""
    seconds = float_of(given, name)
    if not 0 <= seconds < math.inf:
        raise InvalidDelay(
            f"{name} must be a finite number of seconds, 0 or more: got {shown(given)}"
        )
    return seconds


def span_ns(seconds: float) -> int:
    return int(min(seconds, MOST_SECONDS) * 1e9)


def drawn(jitter: Seconds, count: int = 1) -> npt.NDArray[np.float64]:
    """Random delays from 0 to `jitter` seconds, uniformly distributed; forked children draw their
    own."""
    seconds = span_of("jitter", jitter)
    return np.frombuffer(os.urandom(8 * count), np.uint64) / 2.0**64 * seconds


@dataclass(slots=True)
class Policy:
    """The options of one timer. It may tick at `until`, ns of its clock. Its period is in its slot,
    since any worker may change it."""

    clock: int = _native.CLOCK_BASE
    grace: int | None = None
    drops: bool = False
    one: bool = False
    delays: bool = False
    left: int | None = None
    """Remaining ticks, including missed ones."""
    until: int | None = None
    ticked: int | None = None
    """The deadline of the tick whose acknowledgement starts the next period."""
    over: bool = False
    held: bool = False
    """Its event was in this worker's hands, which may give it back."""

    @classmethod
    def of(cls, timers: Timers, options: dict[str, Any], clock: int, first: int) -> Policy | None:
        """Take the policy out of the options of a call; None: there is none. `first`: the first
        deadline, ns."""
        grace, drops = options.pop("grace", None), bool(options.pop("grace_drop", False))
        coalesce, missed = options.pop("coalesce", "all"), options.pop("missed", "grid")
        times, until = options.pop("times", None), options.pop("until", None)
        _one_of("coalesce", coalesce, ("all", "one"))
        _one_of("missed", missed, ("grid", "delay"))
        if drops and grace is None:
            raise ValueError("grace_drop=True needs grace=: how late is too late")
        policy = cls(clock=clock, drops=drops, one=coalesce == "one", delays=missed == "delay")
        if grace is not None:
            policy.grace = span_ns(span_of("grace", grace))
        if times is not None:
            policy.left = whole_of("times", times, MOST_TIMES)
        if until is not None:
            policy.until = _until_ns(timers, until, clock)
            if policy.until < first:
                raise ValueError(f"until={shown(until)}: that is before the first tick")
        periodic = policy.one or policy.delays or times is not None or until is not None
        if periodic and options.get("interval") is None:
            raise ValueError(
                "coalesce, missed, times and until are for periodic timers: give interval="
            )
        if not periodic and grace is None:
            return None
        if options.get("to") not in (None, timers.worker):
            raise ValueError(
                "grace, coalesce, missed, times and until are kept by the worker that schedules: "
                f"not with to={shown(options['to'])}"
            )
        return policy

    def take(self, deadline: int, missed: int, period: int) -> int:
        """How many of a tick and its missed ticks count; 0: none. Sets `over` if it was the
        last."""
        ticks = 1 + missed
        if self.until is not None and period:
            ticks = min(ticks, (self.until - deadline) // period + 1)
            self.over = deadline + ticks * period > self.until
        if self.left is not None:
            ticks = min(ticks, self.left)
            self.left -= max(ticks, 0)
            self.over |= self.left == 0
        return ticks


class Policies:
    """The policies of one worker's timers; they filter the events that it receives."""

    def __init__(self, timers: Timers) -> None:
        self._timers = timers
        self._lock = threading.RLock()  # an event may come before its timer is in the table
        self._table: dict[int, Policy] = {}
        self._prune_at = FIRST_PRUNE
        self._again: set[int] = set()
        """Timers to move or cancel once there is room."""
        self.dropped = 0
        """Ticks and timers that were dropped because they came too late."""
        self._narrow = timers.expiration_dtype
        self._wide: np.dtype[np.void] | None = None

    def arm(self, schedule: Callable[[], tuple[int, bool]], policy: Policy) -> int:
        """Schedule a timer under a policy, and return its id. A timer that had the key and stays
        keeps the policy that it had."""
        with self._lock:
            if policy.grace is not None and self._wide is None:
                self._widen_events()
            id, is_new = schedule()
            if is_new:
                self._table[id] = policy
            if len(self._table) >= self._prune_at:
                self._prune()
            return id

    def _prune(self) -> None:
        for id in [id for id in self._table if self._timers._is_gone(id)]:
            del self._table[id]
            self._again.discard(id)
        self._prune_at = max(FIRST_PRUNE, 2 * len(self._table))

    def forget(self) -> None:
        """Forget all: the timers have ended with the wheel."""
        with self._lock:
            self._table.clear()
            self._again.clear()

    # -- events ---------------------------------------------------------------------------------

    def _widen_events(self) -> None:
        self._wide = wider(self._narrow, "late", "?")
        self._timers.expiration_dtype = self._wide
        self._timers._empty_events = np.empty(0, self._wide)

    def widened(self, events: Events) -> Events:
        """Events with the field `late`, once a timer with `grace` was scheduled."""
        if self._wide is None or events.dtype == self._wide:
            return events
        return widened(events, self._wide)

    def acknowledged(self, ids: list[int] | None) -> None:
        """Called with the acknowledged events; None: all held ones."""
        with self._lock:
            for id in list(self._again.union(self._table if ids is None else ids)):
                policy = self._table.get(id)
                if policy is not None and policy.held:
                    policy.over = self._asked(self._timers._is_gone, id, True)
                if id in self._again or (
                    policy is not None and (policy.over or policy.ticked is not None)
                ):
                    self._settle(id)

    def __call__(
        self, events: Events, held: bool = False, ticks: dict[int, int] | None = None
    ) -> Events:
        """Called with what was received.

        `ticks`: ticks that a cancel or a move drops before they are delivered; ticks of timers that
        are cancelled or moved here leave it.
        """
        with self._lock:
            for id in list(self._again):
                self._settle(id)
            events = self.widened(events)
            ids: list[int] = events["timer_id"].tolist()
            if self._table.keys().isdisjoint(ids):
                return events
            kept = self._sift(events, ids, held)
            for id in set(ids) & self._table.keys():
                policy = self._table[id]
                if policy.over or (policy.ticked is not None and not held):
                    self._settle(id)
                    if ticks is not None:
                        ticks.pop(id, None)
            return events if kept.all() else events[kept]

    def _sift(self, events: Events, ids: list[int], held: bool) -> npt.NDArray[np.bool_]:
        """Which events are delivered; changes their `missed` and `late`."""
        kept = np.ones(len(ids), np.bool_)
        firsts: dict[int, int] = {}
        now: dict[int, int] = {}
        period: dict[int, int] = {}
        for i, id in enumerate(ids):
            policy = self._table.get(id)
            if policy is None:
                continue
            deadline = int(events["deadline"][i])
            if policy.ticked is not None:
                policy.ticked = deadline
            ticks = 0
            if not policy.over and policy.ticked is None:
                if id not in period:
                    period[id] = self._asked(self._timers._period, id, 0)
                ticks = policy.take(deadline, int(events["missed"][i]), period[id])
                policy.held = held and self._asked(self._timers._in_hand, id, False)
                policy.over |= not period[id] and not policy.held
            if ticks <= 0:
                kept[i] = False
                continue
            late = False
            if policy.grace is not None:
                if policy.clock not in now:
                    fired = int(events["fired"][i])
                    now[policy.clock] = self._asked(self._timers._clock_ns, policy.clock, fired)
                late = now[policy.clock] - deadline > policy.grace
            if late and policy.drops:
                kept[i] = False
                self.dropped += ticks
                if held and not period[id]:  # else it would keep its key: nobody else can do it
                    self._timers.acknowledge([id])
                continue
            policy.ticked = deadline if policy.delays else None
            first = firsts.setdefault(id, i) if policy.one else i
            if first != i and int(events["missed"][first]) + ticks > MOST_MISSED:
                first = firsts[id] = i
            if first == i:
                events["missed"][i] = ticks - 1
            else:  # the first one tells of all
                kept[i] = False
                events["missed"][first] += ticks
                events["fired"][first] = events["fired"][i]
            if late or policy.grace is not None:
                events["late"][first] |= late  # of a merged event: whether its first tick was
        return kept

    def _asked(self, question: Callable[[int], T], of: int, otherwise: T) -> T:
        """Ask the wheel; if it has ended, the answer is `otherwise`."""
        try:
            return question(of)
        except WheelError:
            return otherwise

    def _leads_beyond(self, id: int, policy: Policy) -> bool:
        """Whether a tick that comes a period from now would be too late for `until`."""
        now = self._timers._clock_ns(policy.clock)
        return policy.until is not None and now + self._timers._period(id) > policy.until

    def _settle(self, id: int) -> None:
        """End a timer that is over, or move one to a period after its last tick, unless somebody
        has moved or paused it since."""
        policy = self._table.get(id)
        if policy is None:
            self._again.discard(id)
            return
        try:
            if policy.ticked is not None and not policy.over:
                followed = self._timers._follow(id, policy.ticked, False)
                policy.over = followed and self._leads_beyond(id, policy)
            if policy.over and self._timers._period(id):
                self._timers.cancel(id, block=False)
        except RingFull:
            self._again.add(id)
            return
        except WheelError:  # it has ended with the wheel; what was received is not lost
            policy.over = True
        self._again.discard(id)
        policy.ticked = None
        if policy.over:
            del self._table[id]


def _one_of(option: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{option}={shown(value)}: expected one of {', '.join(allowed)}")


def _until_ns(timers: Timers, until: Any, clock: int) -> int:
    """The end on the timer's clock, ns, from a time or from a span that begins now."""
    now = timers._clock_ns(clock)
    if isinstance(until, datetime):
        return now + epoch_ns(until) - timers._clock_ns(_native.CLOCK_REALTIME)
    if isinstance(until, timedelta):
        return now + span_ns(span_of("until", until))
    seconds = float_of(until, "until")
    if not 0 <= seconds < math.inf:
        raise InvalidDelay(f"until={shown(until)}: expected a time, 0 or more")
    return span_ns(seconds)
