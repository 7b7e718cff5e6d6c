"""All ledgers of a round as arrays: one row per record, and one per timer.

Everything here comes from the ledgers and the driver's own notes; nothing asks the daemon.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from proofs.torture.ledger import (
    BATCH,
    CONFLICTS,
    ERRORS,
    RECORD,
    SEATS,
    TO_GROUP,
    TO_JOINED,
    TO_SEAT,
    TO_SELF,
    Kind,
    Memory,
    Outcome,
    key_of,
)

NEVER: Final = np.iinfo(np.int64).max
NEIGHBOUR_NS: Final = 2_000_000_000
ANSWERS: Final = (
    *(Kind.ARMED, Kind.CANCELLED, Kind.MOVED, Kind.PAUSED, Kind.RESUMED, Kind.ACKED, Kind.NACKED),
    Kind.FOUND,
)
HASH: Final = 0x9E3779B97F4A7C15
STORY_LINES: Final = 12
"""How many lines are shown at the beginning and at the end of a long history."""
TIMER: Final = np.dtype(
    [
        ("cookie", "u8"),
        ("seat", "i4"),
        ("life", "u4"),
        ("noted", "i8"),
        ("delay", "i8"),
        ("interval", "i8"),
        ("target", "i8"),
        ("size", "i4"),
        ("batch", "?"),
        ("id", "u8"),
        ("answered", "i8"),
        ("error", "i2"),
        ("won", "i4"),
        ("unsure", "?"),
        ("events", "i4"),
        ("earliest", "i8"),
        ("latest", "i8"),
    ]
)
"""One timer. `noted`: when the intent was; `answered`: when the schedule call came back, 0: never;
`error`: what it raised; `won`: cancels that said True; `unsure`: nobody knows the answer of a
cancel; `events`: how often it was received; `earliest`, `latest`: between what its deadline must
be, as the last move left it (`latest` is NEVER where a move's answer is not known)."""


@dataclass
class Death:
    """The end of a life: when (ns, 0 if it left in good order), how many events it may have taken
    out of its ring and not noted; which life of its seat connected next (0: none yet), when, and
    whether that took over."""

    life: int
    seat: int
    killed: int
    ended: int
    taken: int
    adopted: bool | None = None
    reborn: int = 0
    successor: int = 0


@dataclass(frozen=True)
class Birth:
    """A life that has connected: when, and whether it took over what its predecessor left."""

    life: int
    seat: int
    time: int
    adopted: bool


@dataclass
class History:
    """A round. `records` has a column for the seat; `timers` is sorted by cookie."""

    records: npt.NDArray[Any]
    seats: npt.NDArray[np.int32]
    timers: npt.NDArray[Any]
    deaths: list[Death] = field(default_factory=list)
    births: list[Birth] = field(default_factory=list)

    def of(self, kind: int) -> npt.NDArray[Any]:
        found: npt.NDArray[Any] = self.records[self.records["kind"] == kind]
        return found

    def seats_of(self, kind: int) -> npt.NDArray[np.int32]:
        found: npt.NDArray[np.int32] = self.seats[self.records["kind"] == kind]
        return found

    def find(self, cookies: npt.NDArray[Any]) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.bool_]]:
        """Index in `timers` of each cookie, and whether there is such a timer."""
        known = self.timers["cookie"]
        at = np.minimum(np.searchsorted(known, cookies), max(len(known) - 1, 0))
        if not len(known):
            return at, np.zeros(len(cookies), bool)
        return at, known[at] == cookies

    def story(self, cookie: int, origin: int = 0) -> list[str]:
        mine = self.records["cookie"] == cookie
        lines = self._lines(mine, origin)
        if len(lines) > 2 * STORY_LINES:
            left_out = len(lines) - 2 * STORY_LINES
            lines[STORY_LINES:-STORY_LINES] = [f"... {left_out} more ..."]
        return lines

    def neighbours(self, cookie: int, origin: int = 0) -> list[str]:
        """The ledgers' rows about other timers in the same slot, before and after this one."""
        at, known = self.find(np.array([cookie], np.uint64))
        if not known[0] or not self.timers["id"][at[0]]:
            return []
        slots = self.records["id"] & np.uint64(0xFFFFFFFF)
        same = (slots == self.timers["id"][at[0]] & np.uint64(0xFFFFFFFF)) & (
            self.records["id"] != 0
        )
        same &= (self.records["cookie"] != cookie) & np.isin(
            self.records["kind"], [Kind.ARMED, Kind.EVENT, Kind.CANCELLED]
        )
        when = int(self.timers["noted"][at[0]])
        same &= abs(self.records["time"] - when) < NEIGHBOUR_NS
        return self._lines(same, origin)

    def _lines(self, which: npt.NDArray[np.bool_], origin: int) -> list[str]:
        rows = sorted(zip(self.records[which], self.seats[which], strict=True), key=_when)
        return [tell(record, int(seat), origin) for record, seat in rows]


def _when(row: tuple[Any, Any]) -> int:
    return int(row[0]["time"])


def read(memory: Memory) -> History:
    parts = [memory.records(seat).copy() for seat in range(SEATS)]
    records = np.concatenate([np.empty(0, RECORD), *parts])
    seats = np.repeat(np.arange(SEATS, dtype=np.int32), [len(part) for part in parts])
    history = History(records, seats, np.empty(0, TIMER))
    history.timers = _timers(history)
    _add_answers(history)
    _add_cancels(history)
    _add_moves(history)
    events = history.of(Kind.EVENT)
    at, known = history.find(events["cookie"])
    history.timers["events"] = np.bincount(at[known], minlength=len(history.timers))
    return history


def _timers(history: History) -> npt.NDArray[Any]:
    intents, seats = history.of(Kind.SCHEDULE), history.seats_of(Kind.SCHEDULE)
    timers = np.zeros(len(intents), TIMER)
    for name, column in (("cookie", "cookie"), ("life", "life"), ("noted", "time")):
        timers[name] = intents[column]
    timers["seat"] = seats
    timers["delay"], timers["interval"], timers["target"] = intents["a"], intents["b"], intents["c"]
    timers["size"] = intents["code"] & (BATCH - 1)
    timers["batch"] = intents["code"] & BATCH != 0
    timers.sort(order="cookie")
    return timers


def _add_answers(history: History) -> None:
    timers, answers = history.timers, history.of(Kind.ARMED)
    at, known = history.find(answers["cookie"])
    at, answers = at[known], answers[known]
    timers["id"][at] = answers["id"]
    timers["answered"][at] = answers["time"]
    timers["error"][at] = answers["code"]
    timers["earliest"] = timers["noted"] + timers["delay"]
    timers["latest"] = np.where(timers["answered"], timers["answered"] + timers["delay"], NEVER)


def _add_cancels(history: History) -> None:
    """A cancel without an answer, or a batch that raised half-way, may have won or not."""
    timers, count = history.timers, len(history.timers)
    intents, answers = history.of(Kind.CANCEL), history.of(Kind.CANCELLED)
    asked, known = history.find(intents["cookie"])
    told, known_too = history.find(answers["cookie"])
    open_ = np.bincount(asked[known], minlength=count) - np.bincount(
        told[known_too], minlength=count
    )
    batch = np.zeros(count, bool)
    batch[asked[known & (intents["code"] & BATCH != 0)]] = True
    failed = np.zeros(count, bool)
    failed[told[known_too & (answers["code"] != 0)]] = True
    timers["unsure"] = (open_ > 0) | (batch & failed)
    won = known_too & (answers["a"] == 1)
    timers["won"] = np.bincount(told[won], minlength=count)


def _add_moves(history: History) -> None:
    """The last move that was answered True says what the deadline is; one without an answer, or in
    a batch that raised half-way, may have moved it or not."""
    timers = history.timers
    intents, answers = history.of(Kind.MOVE), history.of(Kind.MOVED)
    moved = np.sort(answers[answers["a"] == 1], order="time")
    at, known = history.find(moved["cookie"])
    at, moved = at[known], moved[known]
    timers["earliest"][at] = moved["c"] + moved["b"]  # of equal indices the last one stays
    timers["latest"][at] = moved["time"] + moved["b"]
    last = np.zeros(len(timers), np.int64)
    last[at] = moved["time"]
    answered = _key(answers["cookie"], answers["c"])[answers["code"] == 0]
    answered = np.concatenate([answered, _lone_failures(intents, answers)])
    unsure = intents[~np.isin(_key(intents["cookie"], intents["time"]), answered)]
    at, known = history.find(unsure["cookie"])
    known &= unsure["time"] > last[at] if len(timers) else known
    due = unsure["time"] + unsure["a"]
    np.minimum.at(timers["earliest"], at[known], due[known])
    timers["latest"][at[known]] = NEVER


def _key(cookies: npt.NDArray[Any], times: npt.NDArray[Any]) -> npt.NDArray[np.uint64]:
    keys: npt.NDArray[np.uint64] = cookies ^ (times.astype(np.uint64) * np.uint64(HASH))
    return keys


def _lone_failures(intents: npt.NDArray[Any], answers: npt.NDArray[Any]) -> npt.NDArray[np.uint64]:
    """Moves of one timer that raised: those had no effect."""
    lone = intents[intents["code"] & BATCH == 0]
    failed = answers[answers["code"] != 0]
    keys = _key(failed["cookie"], failed["c"])
    alone: npt.NDArray[np.uint64] = keys[np.isin(keys, _key(lone["cookie"], lone["time"]))]
    return alone


def tell(record: npt.NDArray[Any], seat: int, origin: int) -> str:
    """One record in words; times in seconds since `origin`."""
    kind = Kind(int(record["kind"]))
    text = (
        f"{(int(record['time']) - origin) / 1e9:.6f} seat {seat} life {record['life']} {kind.name}"
    )
    a, b, c, code = (int(record[name]) for name in ["a", "b", "c", "code"])
    if kind == Kind.CLAIM:
        text += f" interval {int(record['id']) / 1e9:.6f}"
    elif record["id"]:
        text += f" id {int(record['id']):#x}"
    if kind == Kind.SCHEDULE:
        text += f" delay {a / 1e9:.6f} interval {b / 1e9:.6f} {_target(c)}"
        text += " (batch)" * (code & BATCH != 0)
    elif kind == Kind.MOVE:
        text += f" delay {a / 1e9:.6f}" + " (batch)" * (code & BATCH != 0)
    elif kind in (Kind.EVENT, Kind.TICK):
        text += f" deadline {(a - origin) / 1e9:.6f} fired {(b - origin) / 1e9:.6f} missed {c}"
        text += " DAMAGED" * (code < 0)
    elif kind == Kind.CLAIM:
        text += f" delay {a / 1e9:.6f} {CONFLICTS[b & 15]} {key_of(int(record['cookie']))}"
        text += f" {_target(c)} flags {b >> 4}"
    elif kind == Kind.CLAIMED:
        text += f" -> {ERRORS[code] if code else Outcome(a).name}" + f" of {b:#x}" * (b != 0)
    elif kind == Kind.TAKEN:
        text += f" deadline {(a - origin) / 1e9:.6f} fired {(b - origin) / 1e9:.6f} attempt {c}"
    elif kind == Kind.NACK:
        text += f" delay {a / 1e9:.6f}"
    elif kind in ANSWERS:
        text += f" -> {ERRORS[code]}" if code else "" if kind == Kind.ARMED else f" -> {bool(a)}"
    return text


def _target(number: int) -> str:
    if number == TO_SELF:
        return "to itself"
    if number == TO_JOINED:
        return "to all holders"
    if number >= TO_GROUP:
        return f"to group {number - TO_GROUP}"
    return f"to seat {number - TO_SEAT}"
