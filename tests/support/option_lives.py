"""Random lives of timers with all their options at once, held against lists."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any, Final

import pytest

from local_wheel import DROP, KEEP, MS, LocalTimers, LocalWheel
from wheeld_client import KeyInUse, payload_of

ROWS: Final = 3
MEMBERS: Final = 2
"""Rows below this number are members of the group."""
ROOM: Final = 16
KEYS: Final[list[Any]] = ["a", b"a", 1, ("a", 1), "x" * 100]
FOREVER: Final = float("inf")
Tick = tuple[int, int, int, bool]
"""cookie, deadline, missed, late."""


@dataclass(eq=False)
class Timer:
    """Times in ms; `due`: of the next tick that has not fired."""

    id: int
    cookie: int
    row: int
    due: int
    period: int
    key: Any
    size: int
    to: str = "self"
    """Or 'own', its own address, or 'group'; events for these are held one by one."""
    until_acknowledged: bool = False
    phase: str = "armed"
    """Or 'fired', 'held' or 'over'."""
    left: int | None = None
    """The rest of a one-shot when it was paused; of a periodic one any number."""
    unread: list[int] = field(default_factory=list)
    """Deadlines of ticks, in its ring."""
    fired: int = 0
    takes: int = 0
    holder: int | None = None
    held_until: float = 0
    times: int | None = None
    until: int | None = None
    grace: int | None = None
    drops: bool = False
    one: bool = False
    delays: bool = False
    ticked: int | None = None
    moves: int = 0
    moves_when_ticked: int = 0

    def end(self) -> None:
        self.phase = "over"
        self.unread.clear()

    def move(self, due: int) -> None:
        self.due, self.left = due, None
        self.unread.clear()
        self.moves += 1

    def next(self, now: int) -> int:
        skipped = (now - self.due) // self.period + 1 if self.period and self.due <= now else 0
        return self.due + skipped * self.period

    def remaining(self, now: int) -> float:
        if self.phase != "armed":
            return (
                self.held_until - now if self.phase == "held" and self.held_until < FOREVER else 0
            )
        return self.left if self.left is not None and not self.period else self.next(now) - now

    def late(self, deadline: int, now: int) -> bool:
        return self.grace is not None and now - deadline > self.grace

    def lose_policy(self) -> None:
        """Its process has ended, and its successor knows nothing of it."""
        self.times = self.until = self.grace = self.ticked = None
        self.drops = self.one = self.delays = False


def payload(timer: Timer) -> bytes:
    return bytes([timer.cookie % 256]) * timer.size


class OptionLives:
    """Plays random calls of three workers that read late, deaths and restarts of the clock: keys,
    moves, pauses, policies, held events, payloads."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.wheel = LocalWheel(1024, ROWS + 1, payload_bytes=ROOM, heap_chunks=64)
        self.workers: list[LocalTimers] = [self.worker(row) for row in range(ROWS)]
        self.timers: dict[int, Timer] = {}
        self.named: dict[Any, int] = {}
        self.now = self.serial = 0
        self.holds: list[list[tuple[Timer, list[int]]]] = [[] for _ in range(ROWS)]
        """Events of its own timers that each worker holds."""
        self.holding: set[int] = set()
        """Rows that have polled with hold, perhaps for ticks that are dropped."""
        self.perhaps: set[tuple[int, int]] = set()

    def worker(self, row: int) -> LocalTimers:
        timers = self.wheel.worker(row, group="g" if row < MEMBERS else None)
        self.wheel.set_member(row, f"=w{row}", joins=True)
        return timers

    def live(self) -> list[Timer]:
        return [timer for timer in self.timers.values() if timer.phase != "over"]

    def in_hand(self, row: int) -> list[Timer]:
        return [one for one in self.live() if one.phase == "held" and one.holder == row]

    def of_key(self, key: Any) -> Timer | None:
        timer = self.timers.get(self.named.get(key, 0))
        if timer is None or timer.phase == "over":
            return None
        return timer if timer.phase == "armed" or timer.until_acknowledged else None

    # -- calls ------------------------------------------------------------------------------------

    def schedule(self) -> None:
        rng, row = self.rng, self.rng.randrange(ROWS)
        self.serial += 1
        key = rng.choice([*KEYS, None])
        delay, period = rng.choice([1, 2, 5, 10, 20, 40]), rng.choice([0, 0, 0, 3, 7, 20])
        size = rng.choice([0, 0, ROOM, 100, 3000, 60_000])
        new = Timer(0, self.serial, row, self.now + delay, period, key, size)
        options: dict[str, Any] = {"payload": payload(new)}
        if period:
            options["interval"] = period / 1000
        elif rng.random() < 0.2:
            new.to = "group"
            options |= {"to": "group:g", "detached": True, "keep": True}
        if key is not None and not period and rng.random() < 0.6:
            new.until_acknowledged, options["key_until"] = True, "acknowledged"
            new.to = "own" if new.to == "self" else new.to
        if new.to != "group":
            options |= self.policy(new)
        conflict = rng.choice(["raise", "keep", "replace", "later", "earlier"])
        if key is not None:
            options |= {"key": key, "on_conflict": conflict}
        old = None if key is None else self.of_key(key)
        call = self.workers[row].schedule
        if old and (conflict == "raise" or (old.phase != "armed" and conflict != "keep")):
            with pytest.raises(KeyInUse) as refused:
                call(delay / 1000, new.cookie, **options)
            assert refused.value.id == old.id
            return
        new.id = call(delay / 1000, new.cookie, **options)
        if old is None or conflict == "replace":
            if old:
                old.end()
            self.timers[new.id] = new
            self.named[key] = new.id
            return
        assert new.id == old.id
        before = FOREVER if old.left is not None else old.next(self.now)
        if (conflict == "later" and new.due > before) or (
            conflict == "earlier" and new.due < before
        ):
            old.move(new.due)

    def policy(self, new: Timer) -> dict[str, Any]:
        rng, options = self.rng, dict[str, Any]()
        if rng.random() < 0.5:
            new.grace, new.drops = rng.choice([0, 2, 10]), rng.random() < 0.4
            options |= {"grace": new.grace / 1000, "grace_drop": new.drops}
        if new.period and rng.random() < 0.3:
            new.times = options["times"] = rng.choice([1, 2, 5])
        if new.period and rng.random() < 0.2:
            new.until = new.due + rng.choice([0, 5, 30])
            options["until"] = new.until / 1000 + 1e-7
        if new.period and rng.random() < 0.3:
            new.one, options["coalesce"] = True, "one"
        if new.period and rng.random() < 0.3:
            new.delays, options["missed"] = True, "delay"
        return options

    def pick(self) -> tuple[dict[str, Any], Timer | None]:
        """Choose an id or a key; return it, and its timer if that is armed."""
        if self.rng.random() < 0.6 or not self.timers:
            key = self.rng.choice(KEYS)
            by, timer = {"key": key}, self.of_key(key)
        else:
            timer = self.rng.choice(self.live() or list(self.timers.values()))
            by = {"id": timer.id}
        return by, timer if timer and timer.phase == "armed" else None

    def cancel(self) -> None:
        by, timer = self.pick()
        assert self.rng.choice(self.workers).cancel(**by) == (timer is not None)
        if timer:
            timer.end()

    def reschedule(self) -> None:
        by, timer = self.pick()
        delay, period = self.rng.choice([1, 5, 20, 50]), self.rng.choice([0, 0, 3, 11])
        if period and (timer is None or timer.to == "self"):
            by["interval"] = period / 1000
        moved = self.rng.choice(self.workers).reschedule(delay=delay / 1000, **by)
        assert moved == (timer is not None)
        if timer:
            timer.move(self.now + delay)
            timer.period = period if "interval" in by else timer.period

    def pause(self) -> None:
        by, timer = self.pick()
        assert self.rng.choice(self.workers).pause(**by) == (timer is not None)
        if timer and timer.left is None:
            timer.moves += 1
            timer.left = timer.due - self.now
            timer.unread.clear()

    def resume(self) -> None:
        by, timer = self.pick()
        assert self.rng.choice(self.workers).resume(**by) == (timer is not None)
        if timer and timer.left is not None:
            timer.due = timer.next(self.now) if timer.period else self.now + timer.left
            timer.left = None

    # -- time and deaths --------------------------------------------------------------------------

    def advance(self) -> None:
        for _ in range(self.rng.choice([1, 1, 2, 5, 13, 40])):
            self.pass_by(1)

    def pass_by(self, ms: int) -> None:
        self.wheel.advance(ms * MS)
        self.now += ms
        for timer in self.live():
            if timer.phase == "held" and timer.held_until <= self.now:
                timer.phase, timer.holder = "fired", None
            while timer.phase == "armed" and timer.left is None and timer.due <= self.now:
                timer.fired = timer.due
                if timer.to == "self":
                    timer.unread.append(timer.due)
                timer.due += timer.period
                timer.phase = "armed" if timer.period else "fired"

    def die(self) -> None:
        row, keep = self.rng.randrange(ROWS), self.rng.random() < 0.5
        self.pass_by(0)
        self.wheel.depart(row, KEEP if keep else DROP)
        self.wheel.settle()
        for timer in self.in_hand(row):
            timer.phase, timer.holder = "fired", None
        for timer, ticks in self.holds[row] if keep else []:
            if timer.period:
                self.perhaps |= {(timer.cookie, tick) for tick in ticks}
            else:
                timer.phase, timer.unread = "fired", ticks + timer.unread
        for timer in self.live():
            if timer.row == row and timer.to != "group":
                timer.lose_policy()
                if not keep:
                    timer.end()
        self.workers[row] = self.wheel.successor(row) if keep else self.worker(row)
        self.holds[row] = []
        self.holding.discard(row)

    def restart_clock(self) -> None:
        self.wheel.restart_clock()

    # -- events -----------------------------------------------------------------------------------

    def poll(self, row: int | None = None) -> None:
        row = self.rng.randrange(ROWS) if row is None else row
        hold = self.rng.random() < 0.5 or row in self.holding
        self.holding |= {row} if hold else set()
        bound = self.rng.choice([None, 5, 20]) if hold else None
        self.pass_by(0)
        timers, got = self.workers[row], []
        events = timers.poll(0.0, hold=hold, visibility=None if bound is None else bound / 1000)
        for event in events:
            timer = self.timers[int(event["timer_id"])]
            late = bool(event["late"]) if "late" in (event.dtype.names or ()) else False
            assert int(event["cookie"]) == timer.cookie
            assert payload_of(event) == payload(timer)
            if timer.to == "self":
                assert timers.key_of(event) == timer.key
                got.append((timer.cookie, int(event["deadline"]) // MS, int(event["missed"]), late))
                continue
            assert row == timer.row if timer.to == "own" else row < MEMBERS
            assert timer.phase == "fired"
            assert event["deadline"] == timer.fired * MS
            assert late == timer.late(timer.fired, self.now)
            assert not (late and timer.drops)
            if hold:
                timer.takes += 1
                assert event["attempts"] == timer.takes
                timer.phase, timer.holder = "held", row
                timer.held_until = FOREVER if bound is None else self.now + bound
            else:
                timer.end()
        for timer in self.live():  # it was taken, and dropped
            if (timer.to, timer.row, timer.phase) == ("own", row, "fired"):
                assert timer.drops
                assert timer.late(timer.fired, self.now)
                timer.end()
        expected = [tick for timer in self.live() for tick in self.received(timer, row, hold)]
        assert self.sure(got) == self.sure(expected)

    def sure(self, ticks: list[Tick]) -> list[Tick]:
        return sorted(tick for tick in ticks if tick[:2] not in self.perhaps)

    def received(self, timer: Timer, row: int, hold: bool) -> list[Tick]:
        """Make events of a timer's ticks, as a poll does; the timer is then over, or follows."""
        if timer.to != "self" or timer.row != row or not timer.unread:
            return []
        ticks, timer.unread = timer.unread, []
        if hold:
            self.holds[row].append((timer, ticks))
        came: list[Tick] = []
        over = timer.phase == "fired"
        for tick in ticks:
            if timer.ticked is not None:
                timer.ticked = tick
                continue
            beyond = bool(timer.until and timer.period and tick > timer.until)
            if timer.times == 0 or beyond:
                over = True
                break
            over |= bool(timer.until and timer.period and tick + timer.period > timer.until)
            if timer.times is not None:
                timer.times -= 1
            late = timer.late(tick, self.now)
            if late and timer.drops:
                continue
            if timer.delays and timer.period:
                timer.ticked, timer.moves_when_ticked = tick, timer.moves
            if timer.one and came:
                cookie, first, missed, first_late = came[-1]
                came[-1] = (cookie, first, missed + 1, first_late)
            else:
                came.append((timer.cookie, tick, 0, late))
        if over or timer.times == 0:
            timer.end()
        elif not hold:
            self.follow(timer)
        return came

    def follow(self, timer: Timer) -> None:
        stands = timer.phase == "armed" and timer.moves == timer.moves_when_ticked
        if timer.ticked is not None and timer.period and stands:
            timer.move(self.now + timer.period)
            if timer.until is not None and timer.due > timer.until:
                timer.end()
        timer.ticked = None

    def acknowledge(self) -> None:
        row = self.rng.randrange(ROWS)
        self.pass_by(0)
        mine = self.in_hand(row)
        if mine and self.rng.random() < 0.5:
            timer = self.rng.choice(mine)
            assert self.workers[row].acknowledge(timer.id) == 1
            timer.end()
        else:
            self.acknowledge_all(row)

    def acknowledge_all(self, row: int) -> None:
        self.workers[row].acknowledge()
        for timer in self.in_hand(row):
            timer.end()
        self.holds[row] = []
        self.holding.discard(row)
        for timer in self.live():
            if timer.row == row:
                self.follow(timer)

    def nack(self) -> None:
        row, delay = self.rng.randrange(ROWS), self.rng.choice([0, 3, 20])
        self.pass_by(0)
        for timer in self.in_hand(row)[:1]:
            assert self.workers[row].nack(timer.id, delay / 1000)
            timer.phase, timer.holder, timer.due = "armed", None, self.now + delay

    # -- all the time, and in the end -------------------------------------------------------------

    def check(self) -> None:
        for key in KEYS:
            timer, found = self.of_key(key), self.rng.choice(self.workers).find(key)
            assert (found and found.id) == (timer and timer.id)
            if timer and found:
                assert (found.key, found.cookie, found.payload) == (
                    key,
                    timer.cookie,
                    payload(timer),
                )
                assert found.remaining == pytest.approx(timer.remaining(self.now) / 1000)
                assert found.interval == (timer.period / 1000 or None)
        used = sum(timer.size for timer in self.live() if timer.size > ROOM)
        held = {timer for held in self.holds for timer, _ in held if timer.phase == "over"}
        more = sum(timer.size for timer in held if timer.size > ROOM)
        assert used <= self.workers[0]._heap_bytes() <= used + more

    def play(self, steps: int) -> None:
        often = [self.advance, self.poll, self.reschedule, self.acknowledge, self.nack, self.resume]
        seldom = [self.cancel, self.pause, self.restart_clock, self.die]
        with self.wheel:
            for _ in range(steps):
                self.rng.choice([*[self.schedule] * 6, *often * 2, *seldom])()
                self.check()
            self.finish()

    def finish(self) -> None:
        for timer in self.live():
            if timer.phase == "armed":
                assert self.workers[0].cancel(timer.id)
                timer.end()
        for _ in range(6):
            for row in range(ROWS):
                self.poll(row)
                self.acknowledge_all(row)
            self.pass_by(1)
        assert not self.live()
        assert self.workers[0]._heap_bytes() == 0
        assert self.wheel.counter("detached") == 0
