"""The ledger: what a worker did, in memory that outlives it.

One file in memory (memfd), made by the driver before any worker exists, holds a part per seat and
the board. A seat has one living worker at a time, and only that one appends to the seat's part: an
*intent* before a call, an *acknowledgement* after it, one record per event received. A record is
whole before the count is raised, so a worker that is killed at any instruction leaves a ledger that
can be read. The wheel's own shared memory has no part in this.
"""

from __future__ import annotations

import mmap
import os
import time
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

import numpy as np
import numpy.typing as npt

SEATS: Final = 11
"""Workers that run at once; one more seat is for the probe that looks for leaks."""
PROBE: Final = SEATS
ROOM: Final = 1 << 19
"""Records per seat."""
RESERVE: Final = 1 << 14
"""Records; a worker with less room than this in its ledger starts nothing new."""
ORDERS: Final = 1 << 17
"""Timers that the driver can have cancelled at the end of a round."""


class Kind(IntEnum):
    """Kind of a record; see `RECORD` for the fields that it uses."""

    BORN = 1
    SCHEDULE = 2
    ARMED = 3
    CANCEL = 4
    CANCELLED = 5
    MOVE = 6
    MOVED = 7
    POLL = 8
    EVENT = 9
    POLLED = 10
    FAILED = 11
    QUIET = 12
    LEFT = 13
    PROBED = 14
    CLAIM = 20
    CLAIMED = 21
    PAUSE = 22
    PAUSED = 23
    RESUME = 24
    RESUMED = 25
    TAKEN = 26
    ACK = 27
    ACKED = 28
    NACK = 29
    NACKED = 30
    FIND = 31
    FOUND = 32
    TICK = 33
    LEASED = 40
    GIVE = 41
    GIVEN = 42
    RENEWED = 43
    DRAWN = 44
    ASK = 45
    ASKED = 46
    RUN = 47
    RAN = 48


class Outcome(IntEnum):
    """The timer that a claim of a key returned, or met."""

    NEW = 1
    OTHER = 2
    UNKNOWN = 3
    """One of both: it was over when it was looked up."""
    REFUSED = 4


RECORD: Final = np.dtype(
    [
        ("kind", "u2"),
        ("code", "i2"),
        ("life", "u4"),
        ("cookie", "u8"),
        ("id", "u8"),
        ("began", "i8"),
        ("time", "i8"),
        ("a", "i8"),
        ("b", "i8"),
        ("c", "i8"),
    ]
)
"""One record, 64 bytes.

`life` counts the workers of the whole run; `cookie` is the timer's number, `id` its timer id;
`began` is when the call began and `time` when this was written, ns of CLOCK_MONOTONIC. `code` is an
entry of `ERRORS` in acknowledgements. The rest:

    BORN       a: 1 took over what its predecessor left, 0 did not
    SCHEDULE   a: delay, ns; b: interval, ns; c: target; code: payload size, + BATCH in a batch
    ARMED      id
    CANCEL     id; code: BATCH in a batch
    CANCELLED  a: 1 won, 0 did not
    MOVE       id; a: delay, ns; code: BATCH in a batch
    MOVED      a: 1 moved, 0 did not; b: delay, ns; c: time of the intent
    POLL       a: most events
    EVENT      id; a: deadline; b: fired; c: missed; code: payload size, or -1 if it is damaged
    POLLED     a: events; c: most events
    FAILED     code
    QUIET      a: `pending`, as the client says
    PROBED     a: timers that fitted, b: those that should

Of common timers, which any worker may change; CANCEL, MOVE and FIND are about a key if `id` is 0,
with a cookie of `key_cookie`:

    CLAIM      a: delay, ns; b: entry of `CONFLICTS` + flags; c: target; code: entry of `SIZES`,
               + BATCH in a batch; id: interval, ns
    CLAIMED    id; a: `Outcome`; b: cookie of the timer that was there, if known; c: target
    PAUSE, RESUME    id
    PAUSED, RESUMED  a: as the call said
    TAKEN      id; a: deadline; b: fired; c: attempts, 0 if it is not held; code: entry of `SIZES`,
               or -1: the payload is damaged, -2: its key is another one
    FIND       code: BATCH
    FOUND      id; a: 1 there is one, 0 none
    TICK       id; a: deadline; b: fired; c: missed; code: as of TAKEN
    ACK, NACK        id; a: delay, ns
    ACKED, NACKED    a: 1 it was this worker's, 0 no longer

Of sharers; the cookie is a position in `sharing.LEASES` or `sharing.LIMITS`, or the number of a
task, 0 for a job with a schedule:

    LEASED     id: token; a: 1 taken, 0 not; c: 1 nobody else wanted it for long
    GIVE       id: token
    GIVEN, RENEWED   id: token; a: 1 it was held, 0 no longer
    DRAWN      a: how many; 0 if it failed
    ASK        a: delay, ns
    ASKED      a task is scheduled
    RUN, RAN   a: position in `sharing.JOBS`; a run of it begins, has ended
"""

BATCH: Final = 1 << 8
TO_SELF, TO_SEAT, TO_JOINED, TO_GROUP = 0, 1, 255, 256
"""Targets: TO_SEAT + seat, TO_GROUP + number of the group; TO_JOINED: that of all holders."""

COMMON: Final = 1 << 30
DETACHED: Final = 1 << 29
TICKS: Final = 1 << 28
"""These bits of a cookie say that its timer is common, is detached, and is periodic."""
KEYS: Final = 24
"""Keys that all workers share."""
CONFLICTS: Final = ("raise", "keep", "replace", "later", "earlier")
KEEP, UNTIL_ACKNOWLEDGED = 1 << 4, 1 << 5
"""Flags of a claim."""


def key_of(cookie: int) -> tuple[str, int]:
    """The key of a common timer: a shared one, or its own."""
    number = cookie & 31
    return ("shared", number) if number < KEYS else ("own", cookie)


def key_cookie(cookie: int) -> int:
    """In the cookie's place in records about its key."""
    number = cookie & 31
    return COMMON | number if number < KEYS else cookie


ERRORS: Final = (
    "",
    "DaemonNotRunning",
    "WheelFull",
    "ValueError",
    "WheelError",
    "PermissionError",
    "OSError",
    "other",
)


def error_code(error: BaseException) -> int:
    """The entry of `ERRORS` for an exception: its class, else a base of it."""
    for base in type(error).__mro__:
        if base.__name__ in ERRORS:
            return ERRORS.index(base.__name__)
    return ERRORS.index("other")


class Command(IntEnum):
    """The driver's command to all workers."""

    RUN = 1
    DRAIN = 2
    CANCEL = 3
    QUIET = 4
    LEAVE = 5
    IDLE = 6
    """Sharers run no jobs any more."""


BOARD: Final = np.dtype(
    [
        ("command", "i8"),
        ("round", "i8"),
        ("orders", "i8"),
        ("stage", "i8", (SEATS + 1,)),
        ("beat", "i8", (SEATS + 1,)),
    ]
)
"""Command and number of the round, and how many orders there are; of each seat: the last command
that it has obeyed, and a counter that moves while it lives."""

ORDER: Final = np.dtype([("cookie", "u8"), ("id", "u8")])

_HEAD: Final = 64
_PART: Final = _HEAD + ROOM * RECORD.itemsize
_BOARD_AT: Final = (SEATS + 1) * _PART
_ORDERS_AT: Final = _BOARD_AT + 4096
BYTES: Final = _ORDERS_AT + ORDERS * ORDER.itemsize


class Memory:
    """All ledgers and the board, mapped from `fd`, or made."""

    def __init__(self, fd: int | None = None) -> None:
        if fd is None:
            fd = os.memfd_create("wheeld-torture")
            os.ftruncate(fd, BYTES)
        self.fd = fd
        self._map = mmap.mmap(fd, BYTES, mmap.MAP_SHARED)
        self.board: npt.NDArray[Any] = np.frombuffer(self._map, BOARD, 1, _BOARD_AT).reshape(())
        self.orders: npt.NDArray[Any] = np.frombuffer(self._map, ORDER, ORDERS, _ORDERS_AT)

    def part(self, seat: int) -> tuple[npt.NDArray[np.uint64], npt.NDArray[Any]]:
        """Count word and records of a seat, all of them, written or not."""
        at = seat * _PART
        head = np.frombuffer(self._map, np.uint64, 1, at)
        return head, np.frombuffer(self._map, RECORD, ROOM, at + _HEAD)

    def records(self, seat: int) -> npt.NDArray[Any]:
        head, records = self.part(seat)
        return records[: int(head[0])]

    def clear(self) -> None:
        """Empty all ledgers. No worker may be between an intent and its acknowledgement."""
        for seat in range(SEATS + 1):
            self.part(seat)[0][0] = 0


class Ledger:
    """A worker's pen: appends to the part of its seat."""

    def __init__(self, memory: Memory, seat: int, life: int) -> None:
        self.seat, self.life = seat, life
        self._head, self._records = memory.part(seat)

    @property
    def room(self) -> int:
        return ROOM - int(self._head[0])

    def note(
        self,
        kind: int,
        cookie: int = 0,
        id: int = 0,
        *,
        code: int = 0,
        began: int = 0,
        a: int = 0,
        b: int = 0,
        c: int = 0,
    ) -> int:
        at = int(self._head[0])
        now = time.monotonic_ns()
        self._records[at] = (kind, code, self.life, cookie, id, began, now, a, b, c)
        self._head[0] = at + 1  # the record is whole: now it counts
        return now

    def note_all(self, kind: int, cookies: npt.NDArray[np.uint64], **columns: Any) -> int:
        """Append one record per cookie, of which all come to count at once; returns their time."""
        at, count = int(self._head[0]), len(cookies)
        part = self._records[at : at + count]
        now = time.monotonic_ns()
        part["kind"], part["life"], part["time"], part["cookie"] = kind, self.life, now, cookies
        for name in ("code", "id", "began", "a", "b", "c"):
            part[name] = columns.get(name, 0)
        self._head[0] = at + count
        return now


# -- who writes ----------------------------------------------------------------------------------


GROUPS: Final = ("red", "blue")


@dataclass(frozen=True)
class Seat:
    """A place for one worker after the other; all have the same name (if any) and policy."""

    number: int
    policy: str = "drop"
    group: int | None = None
    named: bool = True
    shares: bool = False
    """It has jobs, leases and limits, and no timers of its own."""

    @property
    def name(self) -> str:
        return f"seat-{self.number}"


RED, BLUE = range(len(GROUPS))
SEATING: Final = (
    Seat(0, named=False),
    Seat(1, "drop", RED),
    Seat(2, "drop", RED),
    Seat(3, "keep"),
    Seat(4, "keep", RED),
    Seat(5, "reroute", BLUE),
    Seat(6, "reroute", BLUE),
    Seat(7, "reroute", BLUE),
    *(Seat(number, shares=True) for number in range(8, SEATS)),
)
"""Successors reroute themselves: otherwise what they inherit would be dropped or kept with them."""


def members(group: int) -> list[int]:
    return [seat.number for seat in SEATING if seat.group == group]


HOLDERS: Final = members(RED)
"""The seats whose workers hold events until they acknowledge them."""
