"""The figures of a report, worked out row by row, in the dumbest way."""

import math
from collections import Counter, defaultdict
from collections.abc import Iterable
from itertools import count
from typing import Any

from traces import Row

ONE_SHOT = ("scheduled", "rescheduled", "cancelled", "expired", "dropped")


def nearest_rank(values: list[int], share: float) -> int:
    return sorted(values)[max(1, math.ceil(share * len(values) - 1e-9)) - 1]


def column(event: Row) -> str:
    return "ticks" if event["event"] == "expired" and event["periodic"] else str(event["event"])


def counts(rows: Iterable[Row]) -> Counter[str]:
    found: Counter[str] = Counter()
    for each in rows:
        found[column(each)] += each["count"]
    return found


def late(rows: Iterable[Row]) -> list[int]:
    return [each["lateness_ns"] for each in rows if each["lateness_ns"] is not None]


def delay_name(delay_ns: int) -> str:
    names = (
        *("below 1 ms", "1 to 10 ms", "10 to 100 ms", "0.1 to 1 s", "1 to 10 s", "10 to 100 s"),
        "100 to 1000 s",
    )
    return next(name for name, power in zip(names, count(6), strict=False) if delay_ns < 10**power)


def ended(rows: Iterable[Row]) -> list[Row]:
    return [each for each in rows if each["event"] in ("expired", "cancelled", "dropped")]


class Wheel:
    """A timing wheel that only counts, tick by tick as wheel.h has it: levels, digits, cascades."""

    def __init__(self, tick_us: int, bits: int) -> None:
        self.tick_us, self.bits = tick_us, bits
        self.cascades = 0
        self.wakes: set[tuple[str, int]] = set()
        self.due: Counter[int] = Counter()

    def level(self, now: int, due: int) -> int:
        return ((now ^ due).bit_length() - 1) // self.bits if now != due else 0

    def live(self, event: Row, wheel: str) -> None:
        start = event["scheduled"] // self.tick_us
        due = -(-max(event["deadline"], event["scheduled"]) // self.tick_us)
        fired = event["event"] == "expired"
        now = due if event["periodic"] else start
        while (level := self.level(now, due)) > 0:
            begins = due >> level * self.bits << level * self.bits
            if not fired and begins > event["time"] // self.tick_us:
                return
            self.cascades += 1
            self.wakes.add((wheel, begins))
            now = begins
        if fired:
            self.wakes.add((wheel, due))
            self.due[due] += 1


def replayed(rows: Iterable[Row], tick_us: int, bits: int) -> Wheel:
    wheel = Wheel(tick_us, bits)
    for each in ended(rows):
        wheel.live(each, each["run"])
    return wheel


def pending(rows: Iterable[Row], step_us: int) -> dict[int, tuple[int, int]]:
    found: dict[int, list[int]] = defaultdict(list)
    for each in rows:
        found[each["time"] // step_us].append(each["pending"])
    return {step: (max(values), min(values)) for step, values in found.items()}


def makers(rows: Iterable[Row], tick_us: int) -> Counter[tuple[Any, ...]]:
    found: Counter[tuple[Any, ...]] = Counter()
    for each in rows:
        if each["event"] == "expired":
            end = -(-max(each["deadline"], each["scheduled"]) // tick_us) * tick_us
            found[end, each["host"], each["worker"]] += 1
    return found
