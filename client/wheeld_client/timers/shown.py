"""Counters of a worker as a table, and its times as dates, for notebooks."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

WALL_NS: Final = 1 << 59
"""Times from here on are on the wall clock (since 1988); smaller ones are on a clock that began
with the boot."""


class Stats(dict[str, Any]):
    """The dictionary of `Timers.stats`; a notebook shows it as a table."""

    def _repr_html_(self) -> str:
        return _table(self)


def _table(values: dict[str, Any]) -> str:
    from html import escape

    rows = []
    for name, value in values.items():
        if isinstance(value, dict) and value:
            count = f"<summary>{len(value)} values</summary>"
            shown = f"<details>{count}{_table(value)}</details>"
        else:
            shown = f"{value:,}" if isinstance(value, int) else escape(str(value))
        rows.append(f"<tr><th>{escape(str(name))}</th><td>{shown}</td></tr>")
    return f"<table>{''.join(rows)}</table>"


def dates(moments: npt.ArrayLike, ahead_ns: int) -> npt.NDArray[np.datetime64]:
    """Nanoseconds on either clock as dates; the wall clock is `ahead_ns` ahead of the other."""
    given = np.asarray(moments).astype(np.int64)
    return (given + np.where(given < WALL_NS, ahead_ns, 0)).view("M8[ns]")
