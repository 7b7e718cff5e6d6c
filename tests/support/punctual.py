"""Random calls over one LocalWheel, and what may never be: something armed that is overdue when all
is quiet, that is with all rings empty and nothing left for the clock to do.

It looks at the slots themselves and has no model of its own, so it asks of timers that no account
follows: moved in a backlog, on the grid of a period, left by a worker that died within a call.
"""

import random
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt

from local_wheel import DROP, KEEP, MS, REROUTE, LocalTimers, LocalWheel
from wheeld_core import _native, packing
from wheeld_core.errors import WheelFull
from wheeld_core.views import layout

ROWS = 3
CAPACITY = 2048
DELAYS = (0.0, 0.0, 0.001, 0.013, 0.07, 0.4, 5.0, 30.0)
INTERVALS = (0.003, 0.05, 1.0)
STEPS_NS = (0, MS, 2 * MS, 20 * MS, 500 * MS, 6000 * MS)


def overdue(wheel: LocalWheel) -> list[tuple[int, int, int]]:
    late = []
    slots, links = wheel.slots, wheel.view.links
    for slot in slots.armed():
        if not slots.owners[slot // _native.SLAB_SLOTS]:
            continue
        fields, link = slots.slots[slot], links[slot]
        due, interval = (
            int(fields["deadline"]),
            int(packing.interval_ns(slots.slots[slot : slot + 1]["interval"])[0]),
        )
        met = int(link["gen"]) == int(slots.states[slot]) >> 32
        ticked = int(link["due"])  # of a periodic timer: the last due time that fired
        moved = packing.STATE_MOVED.of(int(slots.states[slot]))
        if interval > 0 and met and due <= ticked and not moved:
            due = ticked + interval - (ticked - due) % interval
        if due <= wheel.now // wheel.tick_ns * wheel.tick_ns:
            late.append((int(slot), due, int(link["completion"]) >> 60))
    return late


def sub_tail(wheel: LocalWheel, row: int) -> npt.NDArray[np.uint64]:
    """The tail of that worker's submission ring, writable: to set it back is to have died before it
    was published."""
    offset = next(field.offset for field in layout()["worker"][1] if field.name == "sub_tail")
    return np.frombuffer(wheel.worker_memories[row], "u8", 1, offset)


class Calls:
    """Workers of one group that schedule, move, cancel, read too little, and die."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.label = f"seed {seed}"
        self.wheel = LocalWheel(CAPACITY, ROWS)
        self.workers: dict[int, LocalTimers] = {}
        self.owned: dict[int, list[int]] = {row: [] for row in range(ROWS)}

    def play(self, steps: int) -> None:
        with self.wheel:
            for row in range(ROWS):
                self.workers[row] = self.wheel.worker(row, group="all")
            for _ in range(steps):
                self._step(self.rng.random(), self.rng.randrange(ROWS))
            self._assert_punctual()

    def _step(self, dice: float, row: int) -> None:
        timers = self.workers[row]
        if dice < 0.55:
            self._call(row)
        elif dice < 0.65:
            timers.poll(0, max_events=self.rng.choice([1, 10, None]))
        elif dice < 0.85:
            self.wheel.advance(self.rng.choice(STEPS_NS))
        elif dice < 0.88:
            self.wheel.restart_clock()
        elif dice < 0.93:
            self._die(row)
        else:
            self._assert_punctual()

    def _call(self, row: int) -> None:
        timers, dice = self.workers[row], self.rng.random()
        to = self.rng.choice([None, "group:all", self.workers[self.rng.randrange(ROWS)].worker])
        owned = self.owned[row]
        with suppress(WheelFull):
            if dice < 0.1:
                self.wheel.settle()
                timers.schedule_many(np.zeros(self.rng.choice([100, 400])), to=to)
            elif dice < 0.5 or not owned:
                interval = self.rng.choice([None, *INTERVALS])
                owned.append(timers.schedule(self.rng.choice(DELAYS), interval=interval, to=to))
            elif dice < 0.9:
                some = [self.rng.choice(owned) for _ in range(self.rng.choice([1, 1, 6]))]
                timers.reschedule_many(some, [self.rng.choice(DELAYS) for _ in some])
            else:
                timers.cancel(owned.pop(self.rng.randrange(len(owned))))

    def _die(self, row: int) -> None:
        if self.rng.random() < 0.5:
            tail = sub_tail(self.wheel, row)
            before = tail[0]
            self._call(row)
            tail[0] = before if self.wheel.view.ports["sub_head"][row] <= before else tail[0]
        self.wheel.depart(row, self.rng.choice([KEEP, KEEP, REROUTE, DROP]))
        self.owned[row].clear()
        for _ in range(100):  # what is on loan to others holds its sweep up
            if self.wheel.row(row)["state"] != 3:
                break
            self.wheel.settle()
            self._read(but=row)
        kept = self.wheel.row(row)["state"] == 4
        assert kept or self.wheel.row(row)["state"] == 0, f"never reaped; {self.label}"
        self.workers[row] = (
            self.wheel.successor(row) if kept else self.wheel.worker(row, group="all")
        )

    def _read(self, but: int | None = None) -> int:
        return sum(len(w.poll(0)) for row, w in self.workers.items() if row != but)

    def _assert_punctual(self) -> None:
        for _ in range(100):
            self.wheel.settle()
            # a ring full of ticks of former grids gives nothing to read, and room for others
            if not self._read() and not self.wheel.view.ports["backlog"].any():
                break
        else:
            raise AssertionError(f"never quiet; {self.label}")
        late: list[Any] = overdue(self.wheel)
        assert not late, f"slot, due, stage at {self.wheel.now}: {late[:4]}; {self.label}"
