"""`wheeld fsck`: check the wheel in shared memory for damage.

A wheel without a writer is checked once, and each finding is damage. A live one changes while it is
read: findings are checked again, a few times, and only those that persist are damage.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Container
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from wheeld.fsck import (
    leases as fsck_leases,
    lists as fsck_lists,
    payloads as fsck_payloads,
    repair as fsck_repair,
    shared as fsck_shared,
    slots as fsck_checks,
    tables as fsck_tables,
)
from wheeld.fsck.image import Array, Damage, WheelImage, of_texts
from wheeld.resources.remains import DaemonMemory, Memories, find

PAUSES = (0.02, 0.05, 0.1, 0.2)
"""Seconds between two passes over a live wheel with findings."""
EXAMPLES = 5

Progress = Callable[[str, int, int], None]
Check = Callable[[WheelImage], list[Damage]]

CHECKS: dict[str, Check] = {
    "rows": fsck_tables.rows,
    "rings": fsck_tables.rings,
    "lists": fsck_lists.lists,
    "bitmaps": fsck_lists.bitmaps,
    "linked": fsck_lists.linked,
    "buckets": fsck_lists.buckets,
    "owners": fsck_checks.owners,
    "slots": fsck_checks.slots,
    "leaks": fsck_checks.leaks,
    "completions": fsck_tables.completions,
    "returns": fsck_tables.returns,
    "payloads": fsck_payloads.payloads,
    "watch": fsck_shared.watch,
    "words": fsck_shared.words,
    "leases": fsck_leases.leases,
    "pools": fsck_shared.pools,
}
"""In the order of the report: a later check does not report a slot again."""


class MemorySource(Protocol):
    """The segments that are checked."""

    def racing(self) -> bool:
        """Whether any process writes to it."""

    def headers(self) -> list[str]:
        """Faults of the segments themselves."""

    def memories(self) -> Memories | None:
        """The segments; None: they are too damaged to be checked."""


@dataclass
class Example:
    text: str
    slot: int | None = None
    id: int | None = None
    owner: str | None = None


@dataclass
class CheckResult:
    """The findings of one check: status ok, damage, note or skipped."""

    name: str
    status: str = "ok"
    looked_at: int = 0
    damage: int = 0
    examples: list[Example] = field(default_factory=list)
    remark: str = ""


@dataclass
class Findings:
    name: str
    directory: str
    live: bool
    looks: int
    seconds: float
    checks: list[CheckResult]
    counts: dict[str, int] = field(default_factory=dict)
    workers: list[dict[str, object]] = field(default_factory=list)
    repaired: bool = False

    @property
    def damage(self) -> int:
        return sum(check.damage for check in self.checks)

    def as_dict(self) -> dict[str, Any]:
        return {**asdict(self), "damage": self.damage, "summary": self.summary()}

    def title(self) -> str:
        how = "live" if self.live else "exact: nothing writes to it"
        return f"wheel of {self.name} ({how})"

    def summary(self) -> str:
        text = f"{self.name}: {'repaired, ' if self.repaired else ''}"
        text += f"{'live' if self.live else 'exact'}, {self.looks} look{'s' * (self.looks > 1)}, "
        text += f"{self.seconds:.2f} s: "
        text += f"{self.damage:,} damaged" if self.damage else "clean"
        if self.counts:
            text += (
                "; {pending:,} pending + {in_flight:,} in flight + {free:,} free = {owned:,} owned "
                "of {capacity:,} slots"
            ).format(**self.counts)
        if self.damage and not self.live:
            text += "; a killed clock can leave this behind: `wheeld fsck --repair`, or the next"
            text += " `wheeld start`, rebuilds the wheel from its slots"
        return text


@dataclass
class _Pass:
    """The findings of one pass, by check."""

    headers: list[Damage]
    snapshot: WheelImage | None
    found: dict[str, list[Damage]]

    def unwell(self) -> set[str]:
        return {name for name, group in self.found.items() if any(len(d.keys) for d in group)}


def run(
    name: str,
    runtime_dir: Path | None = None,
    *,
    repair: bool = False,
    progress: Progress = lambda *_: None,
) -> Findings:
    """Check, and perhaps repair, the wheel of a daemon, given by its name or the path of its
    runtime directory. `repair` rebuilds it with the native recovery, only when no daemon and no
    clock run; `progress` is called with the current action, the steps done, and the number of
    steps.

    `WheelError`, `OSError`: the wheel could not be checked or repaired; the message says what to
    do.
    """
    directory = find(name, runtime_dir)
    daemon = DaemonMemory(directory)
    if repair:
        progress("repair", 0, 1)
        fsck_repair.repair(daemon)
    report = examine(daemon, directory.name, str(directory), progress)
    report.repaired = repair
    return report


def examine(
    source: MemorySource, name: str, directory: str = "", progress: Progress = lambda *_: None
) -> Findings:
    began = time.monotonic()
    look = _look(source, source.racing(), progress, CHECKS)
    live, looks = source.racing(), 1
    while look.unwell() and live and looks <= len(PAUSES):
        time.sleep(PAUSES[looks - 1])
        again = _look(source, True, progress, look.unwell())
        again.found = {
            check: _stayed(look.found[check], again.found[check]) for check in look.found
        }
        look, looks = again, looks + 1
        live |= source.racing()
    results, snapshot = _results(look), look.snapshot
    report = Findings(name, directory, live, looks, 0.0, results)
    if snapshot is not None:
        _finish(report, snapshot)
    report.seconds = round(time.monotonic() - began, 3)
    return report


def _look(source: MemorySource, live: bool, progress: Progress, wanted: Container[str]) -> _Pass:
    steps = len(CHECKS) + 2
    progress("headers", 0, steps)
    headers = [of_texts(source.headers())]
    found: dict[str, list[Damage]] = {"headers": headers, **{check: [] for check in CHECKS}}
    memories = source.memories()
    if memories is None:
        return _Pass(headers, None, found)
    progress("reading", 1, steps)
    snapshot = WheelImage(memories, live)
    for done, (name, check) in enumerate(CHECKS.items(), 2):
        progress(name, done, steps)
        if name in wanted:
            found[name] = check(snapshot)
    return _Pass(headers, snapshot, found)


def _stayed(before: list[Damage], now: list[Damage]) -> list[Damage]:
    keys = np.concatenate([np.zeros(0, np.uint64), *(damage.keys for damage in before)])
    return [damage.only(np.isin(damage.keys, keys)) for damage in now]


def _results(look: _Pass) -> list[CheckResult]:
    """One result per check; each slot is reported by the first check that finds it."""
    snapshot = look.snapshot
    named: Array = np.zeros(0 if snapshot is None else snapshot.capacity, bool)
    results: list[CheckResult] = []
    for name, group in look.found.items():
        result = CheckResult(name, looked_at=_looked_at(name, snapshot))
        fresh = named.copy()
        for damage in group:
            new = ~((damage.slots >= 0) & named[damage.slots]) if len(named) else damage.slots < 0
            left = damage.only(new)
            _count(result, left, snapshot)
            for slots in (damage.slots, damage.also):
                fresh[slots[slots >= 0]] = True
        named = fresh
        if snapshot is None and name != "headers":
            result.status, result.remark = "skipped", "the headers are damaged"
        elif name == "linked" and any(r.name == "lists" and r.damage for r in results):
            result = CheckResult(name, "skipped", remark="the lists are damaged")
        elif name == "linked" and snapshot is not None and not snapshot.quiet:
            result.status, result.remark = "skipped", "the clock was busy"
        results.append(result)
    return results


def _count(result: CheckResult, damage: Damage, snapshot: WheelImage | None) -> None:
    result.damage += len(damage.keys)
    result.status = "damage" if result.damage else result.status
    for i in range(min(len(damage.keys), EXAMPLES - len(result.examples))):
        example, slot = Example(damage.text(i)), int(damage.slots[i])
        if slot >= 0 and snapshot is not None:
            example.slot, example.id = slot, int(snapshot.ids[slot])
            row = int(snapshot.owner_row[slot])
            example.owner = snapshot.worker(row) if row >= 0 else None
        result.examples.append(example)


def _looked_at(name: str, s: WheelImage | None) -> int:
    if s is None:
        return 0
    return {
        "headers": 6 + len(s.subs),
        "rows": int((s.rows["state"] != 0).sum()),
        "rings": 3 * len(s.subs),
        "lists": s.lists + int(s.listed.sum()),
        "bitmaps": s.buckets,
        "linked": 1,
        "buckets": int((s.listed & (s.list < s.buckets)).sum()),
        "owners": len(s.owners),
        "slots": int(s.owned.sum()),
        "leaks": int((s.owned & (s.phases == 2)).sum()),
        "completions": sum(len(ring.entries) for ring in s.comps.values()),
        "returns": sum(len(ring.entries) for ring in s.rets.values()),
        "payloads": fsck_payloads.used(s),
        "watch": int(s.watch.watched().sum()),
        "words": s.keys.sets["tags"].size,
        "leases": fsck_leases.used(s),
        "pools": int((s.pools.ledgers["change"] != 0).sum()),
    }[name]


def _finish(report: Findings, snapshot: WheelImage) -> None:
    report.counts, nothing = fsck_tables.counts(snapshot)
    unnamed = 0 if report.damage or report.live else int(nothing.sum())
    report.checks.append(
        CheckResult(
            "counts",
            "damage" if unnamed else "ok",
            report.counts["owned"],
            unnamed,
            [Example(snapshot.name(int(i)) + "has no valid state")
             for i in np.flatnonzero(nothing)[: EXAMPLES if unnamed else 0]],
        )
    )  # fmt: skip
    offences = fsck_tables.offences(snapshot)
    report.checks.append(
        CheckResult(
            "offences",
            "note" if offences else "ok",
            int((snapshot.rows["state"] != 0).sum()),
            0,
            [Example(text) for text in offences[:EXAMPLES]],
            f"{len(offences)} workers" if offences else "",
        )
    )
    report.workers = fsck_tables.shares(snapshot)
