"""The wheel's arithmetic over arrays: the work of the same timers with other ticks and sizes.

A timer is placed at tick `s`, is due at tick `d` (rounded up) and ends at tick `e`. Level *k* of a
wheel of 2**b buckets has buckets of g = 2**(b*k) ticks. It follows from `wh_bucket_for` of the core
that the timer is moved down from level *k* >= 1, once, exactly if

    d / g > s / g           (whole numbers: it was not placed within d's bucket already),
    d / g * g <= e          (it was still there when the bucket began), and
    (d / g) mod 2**b != 0   (else a higher level's bucket begins at the same tick and it skips k).

The first two do not depend on b. So one pass over the timers counts, for each power of two *m*, how
many timers met the beginning of each stretch of 2**m finest ticks; a wheel whose tick is 2**k
finest ticks sums the counts that it needs. With a longer tick a timer that is due in the last tick
of a stretch is due at the beginning of the next: such timers are counted separately, by the ticks
for which that holds. A wake-up is a tick at which a bucket begins or timers are due: the distinct
ones are counted by merging sorted positions.

Time is cut into blocks of 2**BLOCK_BITS finest ticks, which are counted separately, wherever they
were read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final, NamedTuple

import numpy as np

BLOCK_BITS: Final = 22
DUE: Final = 63
"""In place of `m`, for timers that were still pending when they were due."""
_KINDS = 64
_FROM = 16
"""A kind is m + _KINDS * c: c = 0 counts for all ticks, c < _FROM for exponents below c, and _FROM
+ c for exponents from c on."""
_FOREVER = 1 << 62
_FEWER = 0.75
"""The share of remaining timers at which they are moved together."""
_AT_BITS = 51  # a microsecond tick for 70 years; kinds need 12

Array = Any


class Candidates(NamedTuple):
    finest_us: int
    ticks: tuple[int, ...]
    """Powers of two times the finest tick: the exponents."""
    bits: tuple[int, ...]
    """Powers of two buckets per level: the exponents."""
    current_tick: int
    """The exponent of the tick that the trace was recorded with."""
    current_bits: int

    @property
    def lowest(self) -> int:
        return min(self.ticks) + min(self.bits)


def candidates(tick_ns: int = 1_000_000, wheel_size: int = 64) -> Candidates:
    """Ticks from a quarter of the present one to 32 times as long, wheels of 64 to 4096 buckets."""
    tick_us = max(1, round(tick_ns / 1000))
    finer = next(power for power in (2, 1, 0) if tick_us % (1 << power) == 0)
    own_bits = max(1, (wheel_size - 1).bit_length())
    return Candidates(
        tick_us >> finer,
        tuple(range(finer + 6)),
        tuple(sorted({6, 8, 10, 12, own_bits})),
        finer,
        own_bits,
    )


class Counts(NamedTuple):
    """How many timers met each instant: three arrays of the same length, sorted."""

    kind: Array
    """m or DUE, and the ticks for which it counts."""
    at: Array
    """The instant, in finest ticks."""
    n: Array


def meet(s: Array, d: Array, e: Array, tried: Candidates) -> Counts:
    """Count the events of timers by instant; arrays of int64 in finest ticks.

    A timer with `e` >= `d` fired; one that was cancelled has `e` < `d`. A timer with `s` far behind
    `d` is due, and meets nothing before.
    """
    fired = d <= e
    found = [_sum(np.full(int(fired.sum()), DUE, np.int64), d[fired], None)]
    e = np.where(fired, _FOREVER, e)
    for m in range(tried.lowest, DUE):
        later = (s >> m) < (d >> m)
        longest = min(max(tried.ticks), m - min(tried.bits))
        gap = (((d >> m) + 1) << m) - d
        near = gap < 1 << longest
        if m - min(tried.bits) > max(tried.ticks):
            # A span that is neither is neither for all longer stretches.
            kept = later | near
            if not kept.any():
                break
            if kept.sum() < _FEWER * len(kept):
                s, d, e, later, gap, near = (each[kept] for each in (s, d, e, later, gap, near))
        found.append(_by_stretch(m, *_in_stretch(m, d, e, gap, later, near)))
        found.append(_by_stretch(m, *_at_its_end(m, s, d, e, gap, near)))
    return merge(found)


def _in_stretch(
    m: int, d: Array, e: Array, gap: Array, later: Array, near: Array
) -> tuple[Array, Array]:
    """Timers that meet the beginning of the stretch that they are due in."""
    begins = d >> m << m
    met = later & (begins <= e)
    upto = np.where(near[met], _exponents(gap[met]), 0)
    return m + _KINDS * upto, begins[met]


def _at_its_end(
    m: int, s: Array, d: Array, e: Array, gap: Array, near: Array
) -> tuple[Array, Array]:
    begins = ((d >> m) + 1) << m
    met = near & (begins <= e) & (s < begins)
    return m + _KINDS * (_FROM + _exponents(gap[met])), begins[met]


def _by_stretch(m: int, kind: Array, at: Array) -> Counts:
    """Merge equal instants, and sort; all are multiples of 2**m, and all kinds belong to m."""
    if not len(at):
        return Counts(kind, at, at)
    stretch, group = at >> m, kind // _KINDS
    first = int(stretch.min())
    size = int(stretch.max()) - first + 1
    if size * (int(group.max()) + 1) > 4 * len(at):
        return _sum(kind, at, None)
    n = np.bincount(group * size + stretch - first)  # many times faster than sorting
    key = np.flatnonzero(n)
    group, stretch = np.divmod(key, size)
    return Counts(m + _KINDS * group, (stretch + first) << m, n[key])


def _exponents(gap: Array) -> Array:
    return np.frexp(gap.astype(np.float64))[1].astype(np.int64)


def _sum(kind: Array, at: Array, n: Array | None) -> Counts:
    """Merge equal instants, and sort; with `n` None each counts once."""
    if not len(at):
        return Counts(kind, at, at)
    first = int(at.min())
    key = kind << _AT_BITS | (at - first)  # one number sorts many times faster than two
    if n is None:
        key.sort()
    else:
        order = np.argsort(key, kind="stable")
        key, n = key[order], n[order]
    starts = np.flatnonzero(np.diff(key, prepend=-1))
    total = np.diff(starts, append=len(key)) if n is None else np.add.reduceat(n, starts)
    key = key[starts]
    return Counts(key >> _AT_BITS, (key & (1 << _AT_BITS) - 1) + first, total.astype(np.int64))


def merge(parts: Iterable[Counts]) -> Counts:
    kept = list(parts)
    if len(kept) == 1:
        return kept[0]
    return _sum(*(np.concatenate([part[i] for part in kept]) for i in range(3)))


def blocks(counts: Counts) -> Iterator[tuple[int, Counts]]:
    """Cut counts into blocks of time: an instant `t` is in block (t - 1) >> BLOCK_BITS.

    The end of a block belongs to it, so that rounding up to any candidate's tick stays inside.
    """
    block = (counts.at - 1) >> BLOCK_BITS
    for number in np.unique(block):
        inside = block == number
        yield int(number), Counts(*(values[inside] for values in counts))


class TriedWheel(NamedTuple):
    tick: int
    bits: int
    wakes: int
    cascades: int
    fired: int
    rounded: int
    """Total time added by rounding up to the tick, in finest ticks."""


def outcomes(counts: Counts, tried: Candidates) -> Iterator[TriedWheel]:
    """The work of each candidate with the timers of one block."""
    kinds, starts = np.unique(counts.kind, return_index=True)
    ends = [*starts[1:], len(counts.kind)]
    slices = {int(kind): slice(*ends_) for kind, *ends_ in zip(kinds, starts, ends, strict=True)}
    due = slices.get(DUE, slice(0))
    for k in tried.ticks:
        last = -(-counts.at[due] >> k)  # the tick it is due at, rounded up
        fires = last[np.flatnonzero(np.diff(last, prepend=-1))]
        rounded = int((((last << k) - counts.at[due]) * counts.n[due]).sum())
        for b in tried.bits:
            begun, cascades = _begun(counts, slices, k, b)
            both = int(np.isin(begun, fires, assume_unique=True).sum())
            wakes = len(fires) + len(begun) - both
            yield TriedWheel(k, b, wakes, cascades, int(counts.n[due].sum()), rounded)


def _begun(counts: Counts, slices: dict[int, slice], k: int, b: int) -> tuple[Array, int]:
    """Ticks at which a nonempty bucket of an upper level begins, and its cascades."""
    found, cascades = [], 0
    for m in range(k + b, DUE, b):
        classes = [0, *range(k + 1, _FROM), *(_FROM + c for c in range(k + 1))]
        for own in (slices[kind] for c in classes if (kind := m + _KINDS * c) in slices):
            at, n = counts.at[own], counts.n[own]
            here = (at >> m & ((1 << b) - 1)) != 0
            found.append(at[here] >> k)
            cascades += int(n[here].sum())
    if not found:
        return counts.at[:0], 0
    begun = np.sort(np.concatenate(found), kind="stable")  # long sorted runs
    return begun[np.flatnonzero(np.diff(begun, prepend=-1))], cascades


def together(counts: Counts, k: int) -> tuple[Array, Array]:
    """Ticks of 2**k finest ticks at which timers were due, and how many at each."""
    inside = counts.kind == DUE
    last = -(-counts.at[inside] >> k)
    starts = np.flatnonzero(np.diff(last, prepend=-1))
    n = np.add.reduceat(counts.n[inside], starts) if len(starts) else counts.n[:0]
    return last[starts], n
