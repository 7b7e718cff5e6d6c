"""One worker: connects, then a random mix of all calls until the driver says otherwise."""

from __future__ import annotations

import sys
import time
from typing import Final

import numpy as np

from proofs.torture.workers.calls import LONG_SECONDS, RETRY_SECONDS, Calls
from proofs.torture.workers.ledger import RESERVE, SEATS, Command, Kind, Ledger, Memory, error_code
from proofs.torture.workers.roles import GROUPS, Seat
from wheeld_client import WheelError, connect

MOST_LIVE: Final = 1500
"""A worker with so many timers waits until some have ended."""
MOST_POLLS: Final = 1000
"""Seconds; endless ticks must not keep a worker from continuing."""
CONNECT_SECONDS: Final = 30.0


class Worker(Calls):
    """One life in a seat.

    Parameters
    ----------
    memory : Memory
        All ledgers.
    seat : Seat
        The worker's seat.
    life : int
        Its number.
    daemon : str
        The daemon to connect to.
    seed : int
        Of the run; with the life it makes the worker's random numbers.
    """

    def __init__(self, memory: Memory, seat: Seat, life: int, daemon: str, seed: int) -> None:
        super().__init__(memory, seat, life, seed)
        self._board = memory.board
        self._daemon = daemon
        self._stage = 0

    def run(self) -> None:
        """Live until LEAVE."""
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


def probe(memory: Memory, seat: int, life: int, daemon: str, capacity: int) -> None:
    """A newcomer that schedules as many timers as there are slots; notes how many fitted."""
    ledger = Ledger(memory, seat, life)
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
