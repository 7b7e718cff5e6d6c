"""Pending timers, filtered, as table, JSON and CSV: the command `inspect`."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.table import Table

from wheeld_client import Observer, PendingTimers, payload_of
from wheeld_core.timer_options import Key
from wheeld_core.views import CLOCKS

FORMATS: Final = ("table", "json", "csv")
COLUMNS: Final = (
    "id",
    "worker",
    "due_in_s",
    "clock",
    "interval_s",
    "paused",
    "cookie",
    "to",
    "key",
)


@dataclass(frozen=True)
class TimerFilter:
    """Which timers are wanted: those that meet all of these conditions."""

    worker: str | None = None
    to: str | None = None
    """Receiver, such as a worker's name or group:NAME."""
    cookies: Sequence[int] = ()
    """Any of these; empty: all."""
    due_before_ns: int | None = None
    due_after_ns: int | None = None
    """Bounds of the time that is left; the first one is exclusive."""
    key: str | None = None
    prefix: str | None = None
    """The key, a text, or how it begins."""
    limit: int = 0
    """At most so many, soonest first; 0: all."""

    def apply(self, found: PendingTimers) -> npt.NDArray[np.void]:
        """The matching timers, soonest first. `ValueError`: there is no worker, or no receiver, of
        that name."""
        timers = found.timers
        wanted = np.ones(len(timers), bool)
        if self.worker is not None:
            wanted &= np.isin(timers["owner"], _keys(found.workers, self.worker, "worker"))
        if self.to is not None:
            wanted &= np.isin(timers["target"], _keys(found.targets, self.to, "receiver"))
        if self.cookies:
            wanted &= np.isin(timers["cookie"], np.array(self.cookies, np.uint64))
        if self.due_before_ns is not None:
            wanted &= timers["due"] < self.due_before_ns
        if self.due_after_ns is not None:
            wanted &= timers["due"] >= self.due_after_ns
        if self.key is not None or self.prefix is not None:
            named = [id for id, key in found.keys.items() if self._is_named(key)]
            wanted &= np.isin(timers["timer_id"], np.array(named, np.uint64))
        chosen = timers[wanted]
        if 0 < self.limit < len(chosen):  # sort these only, not millions
            last = np.partition(chosen["due"], self.limit - 1)[self.limit - 1]
            chosen = chosen[chosen["due"] <= last]
        order = np.argsort(chosen["due"], kind="stable")
        return chosen[order[: self.limit] if self.limit else order]

    def _is_named(self, key: Key) -> bool:
        return (
            isinstance(key, str)
            and self.key in (None, key)
            and (self.prefix is None or key.startswith(self.prefix))
        )


def _keys(names: dict[int, str], name: str, what: str) -> list[int]:
    found = [key for key, known in names.items() if known == name]
    if not found:
        raise ValueError(f"no {what} {name!r}; there are: {sorted(set(names.values()))}")
    return found


def pending_timers(
    name: str, runtime_dir: Path | None, wanted: TimerFilter, payloads: bool = False
) -> list[dict[str, Any]]:
    """The pending timers of a daemon, soonest first, one dict of `COLUMNS` each.

    With `payloads` also `payload`, as text, or None if it is not text, and `payload_hex`. Reads
    them while others write: a timer that is armed, moved or fired at this moment may be listed as
    it was just before.
    """
    with Observer(name, runtime_dir) as observer:
        found = observer.pending(payloads=payloads)
    return [_describe(timer, found, payloads) for timer in wanted.apply(found)]


def _describe(timer: np.void, found: PendingTimers, payloads: bool) -> dict[str, Any]:
    target = int(timer["target"])
    described: dict[str, Any] = {
        "id": int(timer["timer_id"]),
        "worker": "" if timer["owner"] == -1 else found.workers.get(int(timer["owner"]), "gone"),
        "due_in_s": round(int(timer["due"]) / 1e9, 6),
        "clock": CLOCKS.get(int(timer["clock"]), "?"),
        "interval_s": int(timer["interval"]) / 1e9 or None,
        "paused": bool(timer["paused"]),
        "cookie": int(timer["cookie"]),
        "to": found.targets.get(target, "gone") if target else None,
        "key": None if (key := found.keys.get(int(timer["timer_id"]))) is None else _shown(key),
    }
    if payloads:
        content = payload_of(timer)
        described |= {"payload": _text(content), "payload_hex": content.hex()}
    return described


def _shown(key: Key) -> str:
    return key if isinstance(key, str) and key.isprintable() else repr(key)


def _text(content: bytes) -> str | None:
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return None
    return text if text.isprintable() else None


def print_timers(timers: list[dict[str, Any]], format: str, payloads: bool = False) -> None:
    columns = [*COLUMNS, *(["payload", "payload_hex"] if payloads else [])]
    if format == "json":
        print(json.dumps(timers, indent=1))
    elif format == "csv":
        writer = csv.DictWriter(sys.stdout, columns)
        writer.writeheader()
        writer.writerows(timers)
    else:
        table = Table(*columns, title=f"{len(timers)} pending timers, soonest first")
        for timer in timers:
            values = (timer[column] for column in columns)
            table.add_row(*("" if value is None else str(value) for value in values))
        Console(markup=False, emoji=False).print(table)
