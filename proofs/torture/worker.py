"""One worker: connects, then a random mix of all calls until the driver says otherwise.

Each call is noted before and after. No exception ends a worker: it is noted, with its class, as the
call's acknowledgement, and the account says whether it was allowed.
"""

from __future__ import annotations

import random
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from proofs.torture.common import LONG_SECONDS, SHORT_SECONDS, VISIBILITY, Common
from proofs.torture.daemon import CAPACITY
from proofs.torture.ledger import (
    BATCH,
    COMMON,
    ERRORS,
    GROUPS,
    PROBE,
    RESERVE,
    SEATING,
    SEATS,
    TO_GROUP,
    TO_SEAT,
    TO_SELF,
    Command,
    Kind,
    Ledger,
    Memory,
    Seat,
    error_code,
)
from wheeld_client import Timers, WheelError, connect

PAYLOAD_WORDS: Final = 3
"""A payload is the cookie, 0 to 3 times."""
MOST_EVENTS: Final = 64
MOST_PERIODIC: Final = 20
PERIODIC: Final = 1 << 31
"""This bit of a cookie says that its timer is periodic: whoever gets a tick of it knows."""
END_OF_FOREIGN: Final = 0.05
"""The chance that a worker cancels a timer of another life when it ticks. Otherwise timers of dead
group members, whose ids nobody knows, would accumulate."""
RETRY_SECONDS: Final = 0.01
BURST_NS: Final = 100_000_000
"""Bursts are due when CLOCK_MONOTONIC is a multiple of this."""
MOST_LIVE: Final = 1500
"""A worker with this many timers waits until some have ended."""
MOST_POLLS: Final = 1000
"""Seconds; endless ticks must not keep a worker from continuing."""
CONNECT_SECONDS: Final = 30.0


def cookie_words(cookies: npt.NDArray[np.uint64], sizes: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The payload of each timer, zeros behind it; shape (n, PAYLOAD_WORDS)."""
    used = np.arange(PAYLOAD_WORDS) * 8 < np.asarray(sizes)[:, None]
    return np.where(used, cookies[:, None], np.uint64(0))


class Calls:
    """Random calls of one life in a seat; see `Worker` for the parameters."""

    def __init__(self, memory: Memory, seat: Seat, life: int, seed: int) -> None:
        self._memory, self._seat, self._life = memory, seat, life
        self._random = random.Random(f"{seed}-{life}")
        self._numpy = np.random.default_rng([seed, life])
        self._ledger = Ledger(memory, seat.number, life)
        self._serial = 0
        self._ids: dict[int, int] = {}
        self._periodic: set[int] = set()
        self._timers: Timers
        self._common = Common(memory, seat, self._ledger, self._random, self._noting)
        mix: list[tuple[int, Callable[[], None]]] = [
            (30, self._schedule),
            (6, self._schedule_many),
            (1, self._schedule_burst),
            (10, self._cancel),
            (2, self._cancel_many),
            (6, self._cancel_of_another),
            (14, self._move),
            (3, self._move_many),
            (3, self._schedule_periodic),
            (3, self._cancel_periodic),
            *self._common.mix,
        ]
        self._weights = [weight for weight, _ in mix]
        self._mix = [call for _, call in mix]

    def some_calls(self) -> None:
        for call in self._random.choices(self._mix, self._weights, k=self._random.randint(1, 10)):
            call()

    def _report(self, error: BaseException) -> None:
        """Write to this worker's file, for debugging."""
        when = f"{time.monotonic():.6f} seat {self._seat.number} life {self._life}"
        print(f"{when}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        if ERRORS[error_code(error)] in ("other", "OSError", "WheelError"):
            traceback.print_exception(error, file=sys.stderr)

    @contextmanager
    def _noting(self, kind: int, cookies: npt.NDArray[np.uint64], **columns: Any) -> Iterator[None]:
        """If the call in the block fails, note that: an acknowledgement of `kind`, with the
        error."""
        began = time.monotonic_ns()
        try:
            yield
        except Exception as error:
            self._ledger.note_all(kind, cookies, code=error_code(error), began=began, **columns)
            self._report(error)
            time.sleep(RETRY_SECONDS)

    def _cookies(self, count: int, mark: int = 0) -> npt.NDArray[np.uint64]:
        first = self._life << 32 | mark | self._serial
        self._serial += count
        return np.arange(first, first + count, dtype=np.uint64)

    def _delay(self) -> float:
        chance = self._random.random()
        if chance < 0.1:
            return 0.0
        if chance < 0.9:
            return min(self._random.expovariate(12.0), SHORT_SECONDS)
        return LONG_SECONDS

    def _target(self) -> tuple[int, str | None]:
        chance = self._random.random()
        if chance < 0.7:
            return TO_SELF, None
        if chance < 0.85:
            seat = self._random.choice([seat for seat in SEATING if seat.named and not seat.shares])
            return TO_SEAT + seat.number, seat.name
        group = self._random.randrange(len(GROUPS))
        return TO_GROUP + group, f"group:{GROUPS[group]}"

    def _schedule(self, interval: float | None = None) -> None:
        cookie = self._cookies(1, 0 if interval is None else PERIODIC)
        number, delay = int(cookie[0]), self._delay() if interval is None else interval
        target, to = self._target()
        size = 8 * self._random.randint(0, PAYLOAD_WORDS)
        self._ledger.note(
            Kind.SCHEDULE,
            number,
            code=size,
            a=int(delay * 1e9),
            b=int((interval or 0.0) * 1e9),
            c=target,
        )
        payload = number.to_bytes(8, "little") * (size // 8)
        with self._noting(Kind.ARMED, cookie):
            began = time.monotonic_ns()
            if to is None and interval is None and not size:
                id = self._timers.schedule(delay, number)
            else:
                id = self._timers.schedule(delay, number, payload=payload, interval=interval, to=to)
            self._ledger.note(Kind.ARMED, number, id, began=began)
            if interval is None:
                self._ids[number] = id
            else:
                self._periodic.add(number)
                self._ids[number] = id

    def _schedule_periodic(self) -> None:
        if len(self._periodic) < MOST_PERIODIC:
            self._schedule(self._random.uniform(0.01, 0.2))

    def _schedule_many(self) -> None:
        count = self._random.randint(1, 40)
        delays = np.minimum(self._numpy.exponential(0.1, count), SHORT_SECONDS)
        delays[self._numpy.random(count) < 0.1] = LONG_SECONDS
        self._schedule_batch(delays)

    def _schedule_burst(self) -> None:
        """Schedule many timers for the same moment as all other workers, to keep the clock busy."""
        ahead = BURST_NS * self._random.randint(1, 4) - time.monotonic_ns() % BURST_NS
        self._schedule_batch(np.full(self._random.randint(30, 120), ahead / 1e9))

    def _schedule_batch(self, delays: npt.NDArray[np.float64]) -> None:
        cookies = self._cookies(len(delays))
        target, to = self._target()
        filled = self._random.random() < 0.5
        self._ledger.note_all(
            Kind.SCHEDULE,
            cookies,
            code=BATCH + 8 * filled,
            a=(delays * 1e9).astype(np.int64),
            c=target,
        )
        payloads = cookies.view("V8") if filled else None
        with self._noting(Kind.ARMED, cookies):
            began = time.monotonic_ns()
            ids = self._timers.schedule_many(delays, cookies, payloads=payloads, to=to)
            self._ledger.note_all(Kind.ARMED, cookies, id=ids, began=began)
            self._ids.update(zip(cookies.tolist(), ids.tolist(), strict=True))

    def _cancel_one(self, cookie: int, id: int) -> None:
        self._ledger.note(Kind.CANCEL, cookie, id)
        with self._noting(Kind.CANCELLED, np.array([cookie], np.uint64)):
            began = time.monotonic_ns()
            won = self._timers.cancel(id)
            self._ledger.note(Kind.CANCELLED, cookie, id, began=began, a=int(won))
            self._ids.pop(cookie, None)
            self._periodic.discard(cookie)

    def _some(self, count: int) -> list[int]:
        """Up to `count` of this worker's one-shot timers; perhaps they are over."""
        if not self._ids:
            return []
        keys = list(self._ids)
        picked = {self._random.choice(keys) for _ in range(count)}
        return [cookie for cookie in picked if cookie not in self._periodic]

    def _cancel(self) -> None:
        for cookie in self._some(2):
            self._cancel_one(cookie, self._ids[cookie])

    def _cancel_periodic(self) -> None:
        if self._periodic:
            cookie = self._random.choice(sorted(self._periodic))
            self._cancel_one(cookie, self._ids[cookie])

    def _cancel_of_another(self) -> None:
        """One of the timers of any seat that were armed last."""
        records = self._memory.records(self._random.randrange(SEATS))[-400:]
        records = records[(records["kind"] == Kind.ARMED) & (records["code"] == 0)]
        if len(records):
            record = records[self._random.randrange(len(records))]
            self._cancel_one(int(record["cookie"]), int(record["id"]))

    def _cancel_many(self) -> None:
        picked = self._some(25)
        if not picked:
            return
        cookies = np.array(picked, np.uint64)
        ids = np.array([self._ids[cookie] for cookie in picked], np.uint64)
        self._ledger.note_all(Kind.CANCEL, cookies, id=ids, code=BATCH)
        with self._noting(Kind.CANCELLED, cookies, id=ids):
            began = time.monotonic_ns()
            won = self._timers.cancel_many(ids)
            self._ledger.note_all(Kind.CANCELLED, cookies, id=ids, began=began, a=won)
            for cookie in picked:
                self._ids.pop(cookie, None)

    def _move(self) -> None:
        for cookie in self._some(2):
            id, delay = self._ids[cookie], self._delay()
            wait = int(delay * 1e9)
            began = self._ledger.note(Kind.MOVE, cookie, id, a=wait)
            with self._noting(Kind.MOVED, np.array([cookie], np.uint64), b=wait, c=began):
                moved = self._timers.reschedule(id, delay)
                self._ledger.note(
                    Kind.MOVED, cookie, id, began=began, a=int(moved), b=wait, c=began
                )
                if not moved:
                    self._ids.pop(cookie, None)

    def _move_many(self) -> None:
        picked = self._some(25)
        if not picked:
            return
        cookies = np.array(picked, np.uint64)
        ids = np.array([self._ids[cookie] for cookie in picked], np.uint64)
        delays = np.minimum(self._numpy.exponential(0.1, len(picked)), SHORT_SECONDS)
        waits = (delays * 1e9).astype(np.int64)
        began = self._ledger.note_all(Kind.MOVE, cookies, id=ids, a=waits, code=BATCH)
        with self._noting(Kind.MOVED, cookies, id=ids, b=waits, c=began):
            moved = self._timers.reschedule_many(ids, delays)
            self._ledger.note_all(
                Kind.MOVED, cookies, id=ids, began=began, a=moved, b=waits, c=began
            )

    def _poll(self, timeout: float) -> int:
        """Receive and note; all events of a call enter the ledger at once."""
        most = self._random.randint(1, MOST_EVENTS)
        began, count = self._ledger.note(Kind.POLL, a=most), 0
        with self._noting(Kind.POLLED, np.zeros(1, np.uint64)):
            held = self._common.holds
            visibility = VISIBILITY if held else None
            events = self._timers.poll(timeout, most, hold=held, visibility=visibility)
            running = self._memory.board["command"] == Command.RUN
            if count := len(events):
                events = self._common.receive(events, began, running)
            if len(events):
                cookies = np.ascontiguousarray(events["cookie"])
                sizes = events["payload_size"]
                texts = np.ascontiguousarray(events["payload"]).view(np.uint64)
                intact = (
                    texts.reshape(len(events), PAYLOAD_WORDS) == cookie_words(cookies, sizes)
                ).all(axis=1)
                self._ledger.note_all(
                    Kind.EVENT,
                    cookies,
                    id=events["timer_id"],
                    began=began,
                    a=events["deadline"],
                    b=events["fired"],
                    c=events["missed"],
                    code=np.where(intact, sizes, -1),
                )
                self._forget(cookies)
            self._ledger.note(Kind.POLLED, began=began, a=count, c=most)
        if count and running:
            self._cancel_foreign(events)
        return count

    def _forget(self, cookies: npt.NDArray[np.uint64]) -> None:
        for cookie in cookies.tolist():
            if cookie not in self._periodic:
                self._ids.pop(cookie, None)

    def _cancel_foreign(self, events: npt.NDArray[np.void]) -> None:
        """Now and then, end a periodic timer that another life began."""
        foreign = (events["cookie"] >> np.uint64(32) != self._life) & (
            events["cookie"] & np.uint64(PERIODIC) != 0
        )
        for event in events[foreign]:
            if self._random.random() < END_OF_FOREIGN:
                self._cancel_one(int(event["cookie"]), int(event["timer_id"]))


class Worker(Calls):
    """One life in a seat; `seed` and `life` make its random numbers."""

    def __init__(self, memory: Memory, seat: Seat, life: int, daemon: str, seed: int) -> None:
        super().__init__(memory, seat, life, seed)
        self._board = memory.board
        self._daemon = daemon
        self._stage = 0

    def run(self) -> None:
        self._connect()
        while True:
            self._board["beat"][self._seat.number] += 1
            command = int(self._board["command"])
            if command == Command.LEAVE:
                self._leave()
                return
            if command == Command.RUN:
                self._obeyed(command)
                if self._ledger.room > RESERVE and len(self._ids) < MOST_LIVE:
                    self.some_calls()
            elif command == Command.CANCEL and self._stage != command:
                self._cancel_orders()
                self._obeyed(command)
            elif command == Command.QUIET and self._stage != command:
                self._be_quiet()
                self._obeyed(command)
            elif self._stage != command:
                self._obeyed(command)
            self._common.resume(command != Command.RUN)
            self._poll(self._random.random() * 0.01)

    # -- coming and going -----------------------------------------------------------------------

    def _connect(self) -> None:
        """Connect; wait for a predecessor that was not reaped yet, or a daemon that is away."""
        seat = self._seat
        name = seat.name if seat.named else None
        group = None if seat.group is None else GROUPS[seat.group]
        give_up = time.monotonic() + CONNECT_SECONDS
        while True:
            self._board["beat"][self._seat.number] += 1
            began = time.monotonic_ns()
            try:
                self._timers = connect(self._daemon, worker=name, on_death=seat.policy, group=group)
            except (WheelError, ValueError) as error:
                if time.monotonic() > give_up:
                    self._report(error)
                    self._ledger.note(Kind.FAILED, code=error_code(error), began=began)
                    raise
                time.sleep(RETRY_SECONDS)
                continue
            break
        adopted = int(self._timers.adopted)
        self._common.begin(self._timers)
        if adopted:
            self._remember()
        self._ledger.note(Kind.BORN, began=began, a=adopted)

    def _remember(self) -> None:
        """Take over the timers of earlier lives, from the seat's ledger."""
        records = self._memory.records(self._seat.number)
        kinds, cookies = records["kind"], records["cookie"]
        armed = (kinds == Kind.ARMED) & (records["code"] == 0)
        periodic = cookies[(kinds == Kind.SCHEDULE) & (records["b"] > 0)]
        over = cookies[(kinds == Kind.EVENT) & ~np.isin(cookies, periodic)]
        over = np.concatenate([over, cookies[(kinds == Kind.CANCELLED) & (records["a"] == 1)]])
        left = records[armed & ~np.isin(cookies, over)]
        self._ids = dict(zip(left["cookie"].tolist(), left["id"].tolist(), strict=True))
        self._periodic = set(periodic.tolist()) & self._ids.keys()

    def _leave(self) -> None:
        self._timers.close()
        self._ledger.note(Kind.LEFT)
        self._obeyed(Command.LEAVE)

    def _obeyed(self, command: int) -> None:
        self._stage = command
        self._board["stage"][self._seat.number] = command

    # -- the end of a round ---------------------------------------------------------------------

    def _cancel_orders(self) -> None:
        """Cancel this seat's share of what is left, as the driver found it."""
        orders = self._memory.orders[self._seat.number : int(self._board["orders"]) : SEATS]
        for cookie, id in orders.tolist():
            if cookie & COMMON:
                self._common.end(cookie, id)
            else:
                self._cancel_one(cookie, id)
            if self._random.random() < 0.02:
                self._poll(0.0)

    def _be_quiet(self) -> None:
        for _ in range(MOST_POLLS):
            if not self._poll(0.05):
                break
        self._ids.clear()
        self._periodic.clear()
        with self._noting(Kind.QUIET, np.zeros(1, np.uint64)):
            self._ledger.note(Kind.QUIET, a=self._timers.pending)


def probe(memory: Memory, life: int, daemon: str, capacity: int = CAPACITY) -> None:
    """A newcomer that schedules as many timers as there are slots; notes how many fitted."""
    ledger = Ledger(memory, PROBE, life)
    fitted = 0
    with connect(daemon, worker="probe") as timers:
        for batch in (capacity, *[64] * (capacity // 64)):
            try:
                fitted += len(timers.schedule_many(np.full(batch, LONG_SECONDS)))
            except WheelError as error:
                print(f"probe: {error}", file=sys.stderr, flush=True)
                if batch != capacity:
                    break
            if fitted >= capacity:
                break
    ledger.note(Kind.PROBED, a=fitted, b=capacity)
