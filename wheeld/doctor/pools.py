"""The checks of `wheeld doctor` on memory pools: their size, and who holds their bytes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from wheeld.doctor.machine import Finding, ok
from wheeld_core.units import readable_bytes
from wheeld_core.views import PoolsView

DEPLETED = 50.0
"""Per cent of the time."""
YOUNG_NS = 10 * 10**9
"""The share of time is not judged for a younger pool."""
LONG_WAIT_NS = 5 * 10**9
NEARLY_ALL = 0.9


@dataclass(frozen=True)
class ObservedPool:
    name: str
    size: int
    used: int
    age_ns: int
    depleted_percent: float
    dry_ns: int
    """How long the current dry spell has lasted, ns; 0: there is none."""
    waiters: tuple[str, ...]
    """Workers that waited in both readings, with the same ticket."""
    shares: Mapping[str, int]
    """Bytes by worker."""

    def __str__(self) -> str:
        return f"{self.name}: {readable_bytes(self.used)} of {readable_bytes(self.size)} out"


def tickets(view: PoolsView) -> np.ndarray:
    rows = view.ledgers.shape[1] - 1
    found: np.ndarray = np.where(view.waiting()[:, :rows], view.ledgers["ticket"][:, :rows], 0)
    return found


def gather(
    view: PoolsView, before: np.ndarray, names: Mapping[int, str], now: int
) -> list[ObservedPool]:
    stuck = (before == tickets(view)) & (before != 0)
    used, out, depleted = view.used(), view.out(), view.depleted_percent(now)
    return [
        ObservedPool(
            name,
            int(fields["size"]),
            int(used[i]),
            now - int(fields["created"]),
            float(depleted[i]),
            now - int(fields["dry_since"]) if fields["dry_since"] else 0,
            tuple(names.get(row, f"row {row}") for row in np.flatnonzero(stuck[i]).tolist()),
            {who: int(out[i, row]) for row, who in names.items()},
        )
        for i, (name, fields) in enumerate(zip(view.names(), view.pools, strict=True))
    ]


# -- the checks ------------------------------------------------------------------------------------


def depletion(pools: Sequence[ObservedPool]) -> Finding:
    name = "pool depletion"
    bad = [p for p in pools if p.age_ns >= YOUNG_NS and p.depleted_percent >= DEPLETED]
    if not bad:
        most = max((pool.depleted_percent for pool in pools), default=0.0)
        return ok(name, f"{len(pools)} pools, at most {most:.1f} % of the time depleted")
    return Finding(
        name, "warning",
        "; ".join(f"{p}, depleted {p.depleted_percent:.1f} % of the time" for p in bad),
        f"less than {DEPLETED:g} %",
        "requests wait for memory: use a larger --pool, a smaller largest=, or workers that "
        "finish sooner",
    )  # fmt: skip


def waits(pools: Sequence[ObservedPool]) -> Finding:
    """Check that no worker waits for memory while none is released."""
    name = "pool waits"
    bad = [p for p in pools if p.waiters and p.dry_ns >= LONG_WAIT_NS]
    if not bad:
        return ok(name, "nobody waits for long")
    return Finding(
        name, "warning",
        "; ".join(f"{p}, {', '.join(p.waiters)} waited for {p.dry_ns / 1e9:.0f} s" for p in bad),
        f"memory within {LONG_WAIT_NS / 1e9:g} s",
        "its holders do not give it back (`wheeld status` lists them): a forgotten buffer, or a "
        "handler that hangs",
    )  # fmt: skip


def hogs(pools: Sequence[ObservedPool]) -> Finding:
    """Check that no worker of several has nearly all of a pool."""
    name = "pool shares"
    texts = [
        f"{who} has {share / pool.size:.0%} of {pool.name}"
        for pool in pools
        if len(pool.shares) > 1
        for who, share in pool.shares.items()
        if share >= NEARLY_ALL * pool.size
    ]
    if not texts:
        return ok(name, f"nobody has {NEARLY_ALL:.0%} of a pool")
    return Finding(
        name, "note", "; ".join(texts), f"less than {NEARLY_ALL:.0%}",
        "the others wait for it to release memory: give it its own pool, or bound its requests",
    )  # fmt: skip


CHECKS: tuple[Callable[[Sequence[ObservedPool]], Finding], ...] = (depletion, waits, hogs)
