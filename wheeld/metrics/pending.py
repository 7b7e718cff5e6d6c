"""Pending timers of a daemon, filtered, as rows for people."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from wheeld_client import Observer, PendingTimers, payload_of
from wheeld_core.timer_options import Key
from wheeld_core.views import CLOCKS

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


_SLOTS_AT_ONCE: Final = 1 << 18


@dataclass(frozen=True)
class TimerFilter:
    """Selects the timers that meet all of these conditions."""

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
    contains: str = ""
    """A part of the key as it is shown; for any type of key."""
    limit: int = 0
    """At most so many, soonest first; 0: all."""

    def apply(self, found: PendingTimers) -> npt.NDArray[np.void]:
        """The matching timers, soonest first. `ValueError`: no worker, or no receiver, has that
        name."""
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
        if self.key is not None or self.prefix is not None or self.contains:
            named = [id for id, key in found.keys.items() if self._is_named(key)]
            wanted &= np.isin(timers["timer_id"], np.array(named, np.uint64))
        chosen = timers[wanted]
        if 0 < self.limit < len(chosen):  # sort these only, not millions
            last = np.partition(chosen["due"], self.limit - 1)[self.limit - 1]
            chosen = chosen[chosen["due"] <= last]
        order = np.argsort(chosen["due"], kind="stable")
        return chosen[order[: self.limit] if self.limit else order]

    def _is_named(self, key: Key) -> bool:
        if self.contains not in _shown(key):
            return False
        if self.key is None and self.prefix is None:
            return True
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


def search(
    observer: Observer, wanted: Sequence[TimerFilter], payloads: bool = False
) -> list[list[dict[str, Any]]]:
    """The pending timers that each filter lets through, soonest first, one dict of `COLUMNS` each.

    With `payloads` also `payload`, as text, or None if it is not text, and `payload_hex`. It reads
    the slots once for all filters, and holds only a part of them at a time. Workers keep writing: a
    timer that is armed, moved or fired at this moment may be listed as it was just before.
    `ValueError`: as `TimerFilter.apply`.
    """
    rows: list[list[dict[str, Any]]] = [[] for _ in wanted]
    for begin in range(0, observer.capacity, _SLOTS_AT_ONCE):
        found = observer.pending(begin, begin + _SLOTS_AT_ONCE, payloads)
        for each, mine in zip(wanted, rows, strict=True):
            mine += [_describe(timer, found, payloads) for timer in each.apply(found)]
            mine.sort(key=lambda row: row["due_in_s"])
            if each.limit:
                del mine[each.limit :]
    return rows


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
