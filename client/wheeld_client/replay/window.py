"""What a worker has in flight, and what became of each request: exact, in bounded memory.

Requests of a worker are numbered 0, 1, 2 ... in their order of arrival. A window reaches from the
oldest that has not ended to the newest that has arrived; it grows with what is in flight, not with
the workload. Whatever comes for a number before the window comes for a request that has ended.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]

FREE, WAITING, SCHEDULED, CANCELLED, EXPIRED = range(5)
_LOOK: Final = 1 << 16


class Window:
    """Ids, sizes and states of the requests in flight.

    Attributes
    ----------
    scheduled, cancelled, expired : int
        How many were ever scheduled, were cancelled in time, were delivered.
    late : int
        Done in time, but too late for `cancel`: the timer was delivered, or is about to be.
    doubled : int
        Delivered a second time, or though `cancel` had won.
    strangers : int
        Delivered, but never scheduled by this worker.
    """

    def __init__(self, room: int = _LOOK) -> None:
        self._room = room
        self.ids = np.zeros(room, np.uint64)
        self.sizes = np.zeros(room, np.int32)
        self.states = np.zeros(room, np.uint8)
        self._marks = np.zeros(room, np.int32)
        self.base = self.end = 0
        self.scheduled = self.cancelled = self.expired = 0
        self.late = self.doubled = self.strangers = 0

    def __len__(self) -> int:
        return self.scheduled - self.cancelled - self.expired

    def arrive(self, sizes: npt.NDArray[np.int32]) -> Ints:
        """Number new requests; they wait to be scheduled. Shape (n,)."""
        count = len(sizes)
        while self.end + count - self.base > self._room:
            self._grow()
        numbers = np.arange(self.end, self.end + count)
        at = self._at(numbers)
        self.sizes[at], self.states[at] = sizes, WAITING
        self.end += count
        return numbers

    def schedule(self, numbers: Ints, ids: npt.NDArray[np.uint64]) -> None:
        """These were scheduled now."""
        at = self._at(numbers)
        self.ids[at], self.states[at] = ids, SCHEDULED
        self.scheduled += len(numbers)

    def in_flight(self, numbers: Ints) -> tuple[Ints, npt.NDArray[np.uint64]]:
        """Those of the numbers whose timers have not ended, and their ids."""
        numbers = numbers[numbers >= self.base]
        open_ = numbers[self.states[self._at(numbers)] == SCHEDULED]
        return open_, self.ids[self._at(open_)]

    def cancel(self, numbers: Ints, won: npt.NDArray[np.bool_]) -> None:
        """What `cancel_many` said about numbers that were in flight."""
        self.states[self._at(numbers[won])] = CANCELLED
        self.cancelled += int(won.sum())

    def sizes_of(self, numbers: Ints) -> Ints:
        """Bytes of their payloads; of others than those in the window it may be any number."""
        sizes: Ints = self.sizes[self._at(numbers)].astype(np.int64)
        return sizes

    def deliver(self, numbers: Ints) -> None:
        """An expiration came for each of these numbers."""
        known = numbers[(numbers >= 0) & (numbers < self.end)]
        current = known[known >= self.base]
        states = self.states[self._at(current)]
        never = int((states == WAITING).sum())
        at = self._at(current[states == SCHEDULED])
        # twice in one batch: the later one overwrites the mark of the earlier one
        marks = np.arange(len(at), dtype=np.int32)
        self._marks[at] = marks
        distinct = int((self._marks[at] == marks).sum())
        self.states[at] = EXPIRED
        self.expired += distinct
        self.doubled += len(known) - never - distinct
        self.strangers += len(numbers) - len(known) + never

    def slide(self) -> None:
        """Forget those at the beginning that have ended."""
        while self.base < self.end:
            start = self.base & (self._room - 1)
            length = min(self.end - self.base, _LOOK, self._room - start)
            ended = self.states[start : start + length] >= CANCELLED
            stop = length if ended.all() else int(np.argmin(ended))
            self.states[start : start + stop] = FREE
            self.base += stop
            if stop < length:
                return

    def _at(self, numbers: Ints) -> Ints:
        return numbers & (self._room - 1)

    def _grow(self) -> None:
        numbers = np.arange(self.base, self.end)
        old, new = self._at(numbers), numbers & (2 * self._room - 1)
        for name in ("ids", "sizes", "states", "_marks"):
            before = getattr(self, name)
            after = np.zeros(2 * self._room, before.dtype)
            after[new] = before[old]
            setattr(self, name, after)
        self._room *= 2
