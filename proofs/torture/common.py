"""Calls about timers that are everybody's: any worker arms, finds, moves, pauses and cancels them,
by key or by id. Their events are held, acknowledged and given back by the members of one group.

A timer's key follows from its cookie, so that even one whose owner died before it noted an id is
found: it is one of a few keys that all share, or the timer's own.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from proofs.torture.ledger import (
    BATCH,
    COMMON,
    CONFLICTS,
    DETACHED,
    GROUPS,
    HOLDERS,
    KEEP,
    KEYS,
    SEATING,
    SEATS,
    TICKS,
    TO_GROUP,
    TO_JOINED,
    TO_SEAT,
    UNTIL_ACKNOWLEDGED,
    Kind,
    Ledger,
    Memory,
    Outcome,
    Seat,
    key_cookie,
    key_of,
)
from wheeld_client import KeyInUse, Timers, payload_of

SIZES: Final = (0, 8, 24, 100, 1000, 5000, 60_000)
"""Bytes of payloads: up to 24 there is room beside the slot; the last one is a chain of chunks."""
JOINED: Final = "@torture"
"""A group that the holders join as they run."""
VISIBILITY: Final = 0.3
SHORT_SECONDS: Final = 0.8
LONG_SECONDS: Final = 3600.0
PAUSE_SECONDS: Final = 0.3
"""Longest pause, unless who paused the timer dies."""
SHORTEST, LONGEST = 0.03, 0.3
"""Periods, seconds."""
MOST_AT_ONCE: Final = 8
"""Timers of a batch."""
OTHERS: Final = 300
"""Records of another seat among which a worker looks for a timer to change."""

Noting = Callable[..., AbstractContextManager[None]]


def payload_for(cookie: int, size: int) -> bytes:
    return (cookie.to_bytes(8, "little") * -(-size // 8))[:size]


def _named(numbers: list[int]) -> tuple[list[tuple[str, int]], npt.NDArray[np.uint64]]:
    """Shared keys, and their cookies in records."""
    cookies = [COMMON | number for number in numbers]
    return [key_of(cookie) for cookie in cookies], np.array(cookies, np.uint64)


def _options(to: str, flags: int, detached: bool) -> dict[str, Any]:
    return {
        "on_conflict": CONFLICTS[flags & 15],
        "to": to,
        "detached": detached,
        "keep": bool(flags & KEEP),
        "key_until": "acknowledged" if flags & UNTIL_ACKNOWLEDGED else "fired",
    }


class Common:
    """Of one life in a seat; `noting` notes what a call raises. `timers` is set once connected."""

    timers: Timers

    def __init__(
        self,
        memory: Memory,
        seat: Seat,
        ledger: Ledger,
        random: random.Random,
        noting: Noting,
    ) -> None:
        self._memory, self._seat, self._ledger = memory, seat, ledger
        self._random, self._noting = random, noting
        self._serial = 0
        self._paused: list[tuple[float, int, int]] = []
        self.holds = seat.number in HOLDERS
        self.mix: list[tuple[int, Callable[[], None]]] = [
            (3, self._claim),
            (1, self._cancel),
            (1, self._cancel_key),
            (1, self._move),
            (1, self._move_key),
            (1, self._pause),
            (1, self._claim_many),
            (1, self._cancel_keys),
            (1, self._move_many),
            (1, self._find_keys),
        ]

    def begin(self, timers: Timers) -> None:
        self.timers = timers
        if self.holds:
            timers._join(JOINED)

    # -- calls ----------------------------------------------------------------------------------

    def _delay(self) -> float:
        if self._random.random() < 0.05:
            return LONG_SECONDS
        return min(self._random.expovariate(8.0), SHORT_SECONDS)

    def _target(self, detached: bool) -> tuple[int, str, int]:
        """Target and flags: what is not detached goes to a group that mostly has a member."""
        if not detached:
            return TO_GROUP, f"group:{GROUPS[0]}", 0
        flags = KEEP * (self._random.random() < 0.7)
        chance = self._random.random()
        if chance < 0.5:
            return TO_GROUP, f"group:{GROUPS[0]}", flags
        if chance < 0.8:
            return TO_JOINED, f"group:{JOINED}", flags
        number = self._random.choice(HOLDERS)
        return TO_SEAT + number, SEATING[number].name, KEEP

    def _plan(self) -> tuple[Any, ...]:
        """Target, flags, and whether it is detached, of one timer or a batch."""
        detached = self._random.random() < 0.7
        conflict = self._random.randrange(len(CONFLICTS))
        flags = conflict | UNTIL_ACKNOWLEDGED * (self._random.random() < 0.3)
        target, to, keep = self._target(detached)
        return target, to, flags | keep, detached

    def _cookie(self, low: int, detached: bool, ticks: bool) -> int:
        self._serial += 1
        mark = COMMON | DETACHED * detached | TICKS * ticks
        return self._ledger.life << 32 | mark | self._serial << 5 | low

    def _size(self) -> int:
        return self._random.choices(range(len(SIZES)), (6, 6, 6, 6, 4, 2, 1))[0]

    def _claim(self) -> None:
        shared = self._random.random() < 0.6
        low = self._random.randrange(KEYS) if shared else KEYS
        delay, (target, to, flags, detached) = self._delay(), self._plan()
        ticks = shared and self._random.random() < 0.15
        interval = self._random.uniform(SHORTEST, LONGEST) if ticks else None
        flags &= ~UNTIL_ACKNOWLEDGED if ticks else ~0
        cookie, size = self._cookie(low, detached, ticks), self._size()
        period = int((interval or 0.0) * 1e9)
        self._ledger.note(
            Kind.CLAIM, cookie, period, a=int(delay * 1e9), b=flags, c=target, code=size
        )
        with self._noting(Kind.CLAIMED, np.array([cookie], np.uint64), c=target):
            began = time.monotonic_ns()
            try:
                id = self.timers.schedule(
                    delay,
                    cookie,
                    key=key_of(cookie),
                    payload=payload_for(cookie, SIZES[size]),
                    interval=interval,
                    **_options(to, flags, detached),
                )
            except KeyInUse as refused:
                self._ledger.note(
                    Kind.CLAIMED, cookie, refused.id, began=began, a=Outcome.REFUSED, c=target
                )
                return
            outcome, other = Outcome.NEW, 0
            if CONFLICTS[flags & 15] not in ("raise", "replace"):
                outcome, other = self._whose(cookie, id)
            self._ledger.note(Kind.CLAIMED, cookie, id, began=began, a=outcome, b=other, c=target)

    def _claim_many(self) -> None:
        """Some shared keys and some own ones, in one call. If it raises, nobody knows which of them
        it has armed and cancelled again, or has replaced."""
        target, to, flags, detached = self._plan()
        lows = self._some_keys() + [KEYS] * self._random.randrange(3)
        numbers = [self._cookie(low, detached, False) for low in lows]
        cookies = np.array(numbers, np.uint64)
        delays = np.array([self._delay() for _ in numbers])
        sizes = [self._size() for _ in numbers]
        waits = (delays * 1e9).astype(np.int64)
        codes = np.array(sizes) + BATCH
        self._ledger.note_all(Kind.CLAIM, cookies, a=waits, b=flags, c=target, code=codes)
        with self._noting(Kind.CLAIMED, cookies, c=target):
            began = time.monotonic_ns()
            try:
                ids = self.timers.schedule_many(
                    delays,
                    cookies,
                    keys=[key_of(number) for number in numbers],
                    payloads=[
                        payload_for(number, SIZES[size])
                        for number, size in zip(numbers, sizes, strict=True)
                    ],
                    **_options(to, flags, detached),
                )
            except KeyInUse:
                self._ledger.note_all(
                    Kind.CLAIMED, cookies, began=began, a=Outcome.UNKNOWN, c=target
                )
                return
            found: list[tuple[Outcome, int]] = [(Outcome.NEW, 0)] * len(numbers)
            if CONFLICTS[flags & 15] not in ("raise", "replace"):
                found = [self._whose(*pair) for pair in zip(numbers, ids.tolist(), strict=True)]
            outcomes, others = zip(*found, strict=True)
            self._ledger.note_all(
                Kind.CLAIMED,
                cookies,
                id=ids,
                began=began,
                a=np.array(outcomes),
                b=np.array(others, np.uint64).astype(np.int64),
                c=target,
            )

    def _some_keys(self) -> list[int]:
        return self._random.sample(range(KEYS), self._random.randint(1, MOST_AT_ONCE))

    def _whose(self, cookie: int, id: int) -> tuple[Outcome, int]:
        """Is the timer with this id the one that was just asked for, or another one?"""
        record = self.timers.find(key_of(cookie))
        if record is None or record.id != id:
            return Outcome.UNKNOWN, 0
        return (Outcome.NEW if record.cookie == cookie else Outcome.OTHER), record.cookie

    def _some(self) -> tuple[int, int] | None:
        """Cookie and id of a timer that was armed not long ago, by any seat."""
        records = self._memory.records(self._random.randrange(SEATS))[-OTHERS:]
        records = records[(records["kind"] == Kind.CLAIMED) & (records["code"] == 0)]
        records = records[records["a"] == Outcome.NEW]
        if not len(records):
            return None
        record = records[self._random.randrange(len(records))]
        return int(record["cookie"]), int(record["id"])

    def _call(
        self,
        kinds: tuple[Kind, Kind],
        cookie: int,
        id: int,
        call: Callable[[], int | bool],
        wait: int = 0,
    ) -> int:
        """Note the intent and the answer of a call about one timer; 0 if it failed."""
        intent, answer = kinds
        began = self._ledger.note(intent, cookie, id, a=wait)
        with self._noting(answer, np.array([cookie], np.uint64), b=wait, c=began):
            said = int(call())
            self._ledger.note(answer, cookie, id, began=began, a=said, b=wait, c=began)
            return said
        return 0

    def _cancel(self) -> None:
        if (timer := self._some()) is not None:
            self.cancel(*timer)

    def cancel(self, cookie: int, id: int) -> None:
        """By its id, or by its key if nobody knows that."""
        kinds = Kind.CANCEL, Kind.CANCELLED
        if id:
            self._call(kinds, cookie, id, lambda: self.timers.cancel(id))
        else:
            key = key_of(cookie)
            self._call(kinds, key_cookie(cookie), 0, lambda: self.timers.cancel(key=key))

    def end(self, cookie: int, id: int) -> None:
        """By its key, which must find it; and by its id, as another timer may have had the key."""
        self.cancel(cookie, 0)
        if id:
            self.cancel(cookie, id)

    def _cancel_key(self) -> None:
        self.cancel(COMMON | self._random.randrange(KEYS), 0)

    def _many(
        self,
        kinds: tuple[Kind, Kind],
        cookies: npt.NDArray[np.uint64],
        call: Callable[[], tuple[Any, Any]],
        ids: Any = 0,
        waits: Any = 0,
    ) -> None:
        """Note the intents and the answers, ids and what was said, of a call about several."""
        intent, answer = kinds
        began = self._ledger.note_all(intent, cookies, id=ids, a=waits, code=BATCH)
        with self._noting(answer, cookies, b=waits, c=began):
            found, said = call()
            self._ledger.note_all(answer, cookies, id=found, began=began, a=said, b=waits, c=began)

    def _cancel_keys(self) -> None:
        keys, cookies = _named(self._some_keys())
        call = self.timers.cancel_many
        self._many((Kind.CANCEL, Kind.CANCELLED), cookies, lambda: (0, call(keys=keys)))

    def _find_keys(self) -> None:
        keys, cookies = _named(self._some_keys())

        def find() -> tuple[Any, Any]:
            found = self.timers.find_many(keys)
            for key, record in zip(keys, found, strict=True):
                assert record is None or record.key == key, (key, record)
            ids = [0 if record is None else record.id for record in found]
            return np.array(ids, np.uint64), [record is not None for record in found]

        self._many((Kind.FIND, Kind.FOUND), cookies, find)

    def _move_many(self) -> None:
        """By their ids, whoever's they are."""
        chosen = [self._some() for _ in range(MOST_AT_ONCE)]
        timers = dict(timer for timer in chosen if timer is not None)
        if not timers:
            return
        cookies, ids = (np.array([*part], np.uint64) for part in (timers, timers.values()))
        delays = np.array([self._delay() for _ in timers])
        call, waits = self.timers.reschedule_many, (delays * 1e9).astype(np.int64)
        kinds = Kind.MOVE, Kind.MOVED
        self._many(kinds, cookies, lambda: (ids, call(ids, delays)), ids, waits)

    def _move(self) -> None:
        if (timer := self._some()) is None:
            return
        delay = self._delay()
        call = self.timers.reschedule
        self._call((Kind.MOVE, Kind.MOVED), *timer, lambda: call(timer[1], delay), int(delay * 1e9))

    def _move_key(self) -> None:
        cookie, delay = COMMON | self._random.randrange(KEYS), self._delay()
        key, call = key_of(cookie), self.timers.reschedule
        kinds = Kind.MOVE, Kind.MOVED
        self._call(kinds, cookie, 0, lambda: call(key=key, delay=delay), int(delay * 1e9))

    def _pause(self) -> None:
        if (timer := self._some()) is None:
            return
        cookie, id = timer
        if self._call((Kind.PAUSE, Kind.PAUSED), cookie, id, lambda: self.timers.pause(id)):
            until = time.monotonic() + self._random.random() * PAUSE_SECONDS
            self._paused.append((until, cookie, id))

    def resume(self, every: bool) -> None:
        """Resume what this worker has paused for long enough, or all of it."""
        now = time.monotonic()
        for entry in [entry for entry in self._paused if every or entry[0] <= now]:
            self._paused.remove(entry)
            _, cookie, id = entry
            kinds = Kind.RESUME, Kind.RESUMED
            self._call(kinds, cookie, id, lambda id=id: self.timers.resume(id))  # type: ignore[misc]

    # -- events ---------------------------------------------------------------------------------

    def receive(self, events: npt.NDArray[Any], began: int, running: bool) -> npt.NDArray[np.void]:
        """Note the common ones, and finish or give back what is held. Returns the plain ones that
        are this worker's: a held event that was acknowledged too late is another's."""
        common = events["cookie"] & np.uint64(COMMON) != 0
        ticks = common & (events["cookie"] & np.uint64(TICKS) != 0)
        once = common & ~ticks
        self._note_taken(events[once], began)
        plain = events[~common]
        if not self.holds:
            self._note_taken(events[ticks], began)
            return plain  # type: ignore[no-any-return]
        ours = np.array([self._is_ours(event, began) for event in plain], bool)
        for event in events[once]:
            self._finish(event, running)
        self.timers.acknowledge()
        self._note_taken(events[ticks], began)  # now a successor does not see them again
        return plain[ours]  # type: ignore[no-any-return]

    def _is_ours(self, event: np.void, began: int) -> bool:
        """Acknowledge a plain event. Others are released later, with all;
        nobody else gets them meanwhile."""
        if self.timers.acknowledge(event):
            return True
        if time.monotonic_ns() - began < VISIBILITY * 1e9:
            return True
        records = np.concatenate([self._memory.records(seat) for seat in range(SEATS)])
        asked = records[(records["cookie"] == event["cookie"]) & (records["kind"] == Kind.SCHEDULE)]
        return not ((asked["c"] >= TO_GROUP) & (asked["b"] == 0)).any()

    def _note_taken(self, events: npt.NDArray[Any], began: int) -> None:
        for event in events:
            cookie, payload = int(event["cookie"]), payload_of(event)
            sizes = len(payload) if payload == payload_for(cookie, len(payload)) else -1
            code = SIZES.index(sizes) if sizes in SIZES else -1
            ticks = bool(cookie & TICKS)
            attempts = int(event["attempts"]) if self.holds else 0
            if self.timers.key_of(event) not in (key_of(cookie), None):
                code = -2
            self._ledger.note(
                Kind.TICK if ticks else Kind.TAKEN,
                cookie,
                int(event["timer_id"]),
                began=began,
                a=int(event["deadline"]),
                b=int(event["fired"]),
                c=int(event["missed"]) if ticks else attempts,
                code=code,
            )

    def _finish(self, event: np.void, running: bool) -> None:
        """Mostly acknowledge it; else give it back, or sit on it, perhaps for too long."""
        cookie, id = int(event["cookie"]), int(event["timer_id"])
        chance = self._random.random() if running else 1.0
        if chance < 0.15 and cookie & DETACHED:
            delay = self._random.random() * VISIBILITY
            kinds = Kind.NACK, Kind.NACKED
            self._call(kinds, cookie, id, lambda: self.timers.nack(event, delay), int(delay * 1e9))
            return
        if chance < 0.16:
            time.sleep(self._random.random() * 2 * VISIBILITY)
        self._call((Kind.ACK, Kind.ACKED), cookie, id, lambda: self.timers.acknowledge(event) or 0)
