"""Numbers for people to read."""

from __future__ import annotations

import math
from typing import Final

_TIMES: Final = ((7200e9, 3600e9, "h"), (600e9, 60e9, "min"), (1e9, 1e9, "s"), (1e6, 1e6, "ms"))
_COUNTS: Final = ((1e9, "G"), (1e6, "M"), (1e4, "k"))
NOTHING: Final = "–"  # noqa: RUF001 - a dash is what a table shows for "none"


def missing(value: float | None) -> bool:
    return value is None or math.isnan(value)


def short(value: float) -> str:
    if value == 0:
        return "0"
    digits = max(0, 2 - math.floor(math.log10(abs(value)) + 1e-9))
    text = f"{value:,.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def duration(ns: float | None) -> str:
    if ns is None or math.isnan(ns):
        return NOTHING
    for least, size, name in (*_TIMES, (1e3, 1e3, "µs")):
        if abs(ns) >= least:
            return f"{short(ns / size)} {name}"
    return f"{short(ns)} ns"


def number(value: float | None) -> str:
    if value is None or math.isnan(value):
        return NOTHING
    for size, unit in _COUNTS:
        if abs(value) >= size:
            return f"{short(value / (1e3 if unit == 'k' else size))} {unit}"
    return f"{value:,.0f}" if float(value).is_integer() else short(value)


def whole(value: float | None) -> str:
    return NOTHING if value is None or math.isnan(value) else f"{value:,.0f}"


def percent(share: float | None) -> str:
    return NOTHING if share is None or math.isnan(share) else f"{short(share * 100)} %"


def option(us: int) -> str:
    """A tick in the form of `wheeld start --tick`."""
    return f"{us // 1000}ms" if us % 1000 == 0 else f"{us}us"


def size(count: float | None) -> str:
    if count is None or math.isnan(count):
        return NOTHING
    for power, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if count >= 1 << power:
            return f"{short(count / (1 << power))} {unit}"
    return f"{count:,.0f} B"
