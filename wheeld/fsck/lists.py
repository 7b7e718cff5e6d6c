"""The checks of `wheeld fsck` on the wheel itself: lists, bitmaps, and the contents of buckets.

Each check is a function from a snapshot to its findings, vectorised over all nodes. On a live wheel
apparent damage is read again at once, some thirty times: a list that the clock is changing is
intact in one of these readings.

`wheel_check.h` checks lists and bitmaps, too, for the tests of the core. It stops at the first
fault, and names nodes instead of timers. This check finds all damaged slots, with their owners, so
that later checks can skip these slots.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from wheeld.fsck.image import NEVER_FIRED, OPEN, Array, Damage, WheelImage, mix, of_texts
from wheeld.snapshot.contents import FOREVER, next_on_grid
from wheeld_core.packing import FLAGS_CLOCK, interval_ns

# -- lists -----------------------------------------------------------------------------------------


def lists(s: WheelImage) -> list[Damage]:
    """Every list is one circle through its sentinel.

    If each node's `next` names a node of the same list whose `prev` names it back, then `next` is a
    permutation, so the nodes form circles; nodes that are not on the circle of a sentinel are then
    found by pointer jumping, in as many steps as the longest list's length has binary digits.
    """
    total = s.capacity + s.lists
    nodes = np.concatenate([np.flatnonzero(s.listed), np.arange(s.capacity, total)])
    home = s.links["list"].astype(np.int64)
    astray = nodes[_astray(s, s.links, nodes)]
    nodes = nodes[~_astray(s, s.links, nodes) | (nodes >= s.capacity)]
    broken = nodes[_unpaired(s, s.links, nodes)]
    broken = s.still(broken, lambda some: _unpaired(s, s.view.links, some))
    follows = s.links["next"].astype(np.int64)
    found = [_list_damage(s, astray, lambda node: "is in " + s.list_name(int(home[node])))]
    found.append(
        _list_damage(
            s,
            broken,
            lambda node: (
                f"in {s.list_name(_home(s, node))}, is followed by {s.node(int(follows[node]))}, "
                f"which {_other_side(s, int(follows[node]))}"
            ),
            follows[broken],
        )
    )
    loose = s.still(
        _loose(s, nodes, follows), lambda some: s.view.links["list"][some] == home[some]
    )
    found.append(
        _list_damage(
            s, loose, lambda node: f"in a cycle of {s.list_name(_home(s, node))} without its head"
        )
    )
    return found


def _home(s: WheelImage, node: int) -> int:
    return int(s.links["list"][node]) if node < s.capacity else node - s.capacity


def _astray(s: WheelImage, links: Array, nodes: Array) -> Array:
    named = links["list"][nodes].astype(np.int64)
    return np.where(nodes < s.capacity, named >= s.lists, named != nodes - s.capacity)


def _unpaired(s: WheelImage, links: Array, nodes: Array) -> Array:
    """Nodes whose `next` does not point back to them, or is in another list."""
    total = s.capacity + s.lists
    follows = links["next"][nodes].astype(np.int64)
    inside = follows < total
    follows = np.where(inside, follows, 0)
    own = np.where(nodes < s.capacity, links["list"][nodes], nodes - s.capacity)
    theirs = np.where(follows < s.capacity, links["list"][follows], follows - s.capacity)
    broken: Array = ~inside | (links["prev"][follows] != nodes) | (theirs != own)
    return broken


def _other_side(s: WheelImage, node: int) -> str:
    if node >= s.capacity + s.lists:
        return "is none"
    link = s.links[node]
    return f"is in {s.list_name(_home(s, node))} and follows {s.node(int(link['prev']))}"


def _loose(s: WheelImage, nodes: Array, follows: Array) -> Array:
    """Nodes outside of every sentinel's circle, although each of them is paired."""
    places = np.empty(s.capacity + s.lists, np.int64)
    places[nodes] = np.arange(len(nodes))
    ends = (nodes >= s.capacity) | _unpaired(s, s.links, nodes)
    jump = np.where(ends, np.arange(len(nodes)), 0)
    jump[~ends] = places[follows[nodes[~ends]]]
    longest = int(np.bincount(s.list[s.listed & (s.list < s.lists)], minlength=1).max())
    for _ in range(longest.bit_length() + 1):
        jump = jump[jump]
    return nodes[~ends[jump]]


def _list_damage(
    s: WheelImage, nodes: Array, say: Callable[[int], str], also: Array | None = None
) -> Damage:
    others = np.full(len(nodes), -1) if also is None else also
    total = s.capacity + s.lists
    inside = np.where((others >= 0) & (others < total), others, nodes)
    third = s.links["prev"][inside].astype(np.int64)
    third = np.where(third < total, third, nodes)
    keys = mix(s.node_keys(nodes), s.node_keys(inside), s.node_keys(third))
    return Damage(
        keys,
        np.where(nodes < s.capacity, nodes, -1),
        np.where((others >= 0) & (others < s.capacity), others, -1),
        lambda i: (
            s.name(int(nodes[i])) if nodes[i] < s.capacity else s.node(int(nodes[i])) + ": "
        ) + say(int(nodes[i])),
    )  # fmt: skip


# -- bitmaps and counts ----------------------------------------------------------------------------


def bitmaps(s: WheelImage) -> list[Damage]:
    """A bucket's bit is set if and only if its list is not empty, a summary bit if its word is."""
    per_level = 1 << s.bits

    def wrong_bits(buckets: Array, occupancy: Array, links: Array) -> Array:
        level, digit = buckets >> s.bits, buckets & (per_level - 1)
        word = occupancy[level * s.words + (digit >> 6)]
        bit = word >> (digit & 63).astype(np.uint64) & np.uint64(1)
        sentinel = buckets + s.capacity
        wrong: Array = (bit != 0) != (links["next"][sentinel] != sentinel)
        return wrong

    buckets = np.arange(s.buckets)
    suspects = buckets[wrong_bits(buckets, s.occupancy, s.links)]
    suspects = s.still(suspects, lambda some: wrong_bits(some, s.live_occupancy(), s.view.links))
    texts = [
        f"{s.list_name(int(bucket))} is "
        + ("empty and marked" if _empty(s, int(bucket)) else "not empty and not marked")
        for bucket in suspects
    ]

    def wrong_words(words: Array, occupancy: Array, summary: Array) -> Array:
        level, index = words // s.words, (words % s.words).astype(np.uint64)
        wrong: Array = (summary[level] >> index & np.uint64(1) != 0) != (occupancy[words] != 0)
        return wrong

    words = np.arange(s.all_levels * s.words)
    suspects = words[wrong_words(words, s.occupancy, s.summary)]
    suspects = s.still(
        suspects, lambda some: wrong_words(some, s.live_occupancy(), s.live_summary())
    )
    texts += [
        f"{_level(s, word // s.words)}: summary bit {word % s.words} and its occupancy word differ"
        for word in suspects.tolist()
    ]
    beyond = s.occupancy & np.uint64(~((1 << min(64, per_level)) - 1) & (2**64 - 1))
    texts += [
        f"{_level(s, i // s.words)}: bits beyond the last bucket"
        for i in np.flatnonzero(beyond).tolist()
    ]
    return [of_texts(texts)]


def _level(s: WheelImage, index: int) -> str:
    shard_levels = s.shard_bits - s.bits
    level, shard = index & (1 << shard_levels) - 1, index >> shard_levels
    return f"level {level}" if s.shards == 1 else f"level {level} of shard {shard}"


def _empty(s: WheelImage, bucket: int) -> bool:
    return bool(s.links["next"][s.capacity + bucket] == s.capacity + bucket)


def linked(s: WheelImage) -> list[Damage]:
    """The counts of the header and of each shard are the numbers of nodes in buckets. Not compared
    while the clock works."""
    if not s.quiet:
        return []
    placed = s.list[s.listed & (s.list < s.buckets)]
    by_shard = np.bincount(placed >> s.shard_bits, minlength=s.shards)
    texts = [
        f"{by_shard[shard]:,} timers are in buckets of shard {shard}, its count is "
        f"{s.shard_linked[shard]:,}"
        for shard in np.flatnonzero(by_shard != s.shard_linked.astype(np.int64))
    ]
    if len(placed) != s.linked:
        texts.append(f"{len(placed):,} timers are in buckets, the header says {s.linked:,}")
    return [of_texts(texts)]


# -- buckets ---------------------------------------------------------------------------------------


def buckets(s: WheelImage) -> list[Damage]:
    """Each linked timer is in the bucket of its due tick."""
    slots = np.flatnonzero(s.listed & (s.list < s.buckets) & s.same)
    due, exact = _due(s, slots)
    fits = np.zeros(len(slots), bool)
    shard = s.list[slots] >> s.shard_bits
    for ticks in s.ticks:
        fits |= _fits(s, s.list[slots], due, exact, ticks[shard])
    fits |= s.waits_in_ring(slots)  # a submission for exactly that may be on its way
    wrong = np.zeros(s.capacity, bool)
    wrong[slots[~fits]] = True
    dues = dict(zip(slots[~fits].tolist(), due[~fits].tolist(), strict=True))
    return [
        s.slot_damage(
            wrong,
            1,
            lambda slot: (
                f"in {s.list_name(int(s.list[slot]))}, which does not fit due time {dues[slot]} ns "
                f"at tick {s.ticks[-1][s.list[slot] >> s.shard_bits]}"
            ),
        )
    ]


def _due(s: WheelImage, slots: Array) -> tuple[Array, Array]:
    """When linked timers are due on the base clock, and whether that time is exact.

    The link record of a one-shot timer has the time for which it was linked. The next time of a
    periodic timer follows from its slot. On another clock it also depends on the difference of the
    clocks when it was linked, which is close to their present difference.
    """
    links, fields = s.links[slots], s.slots[slots]
    known = (s.stages[slots] == OPEN) & (links["due"] != NEVER_FIRED)
    due = np.where(known, links["due"], fields["deadline"])
    interval = interval_ns(fields["interval"])
    periodic = ~known & (interval > 0)
    due = np.where(periodic, next_on_grid(fields["deadline"], interval, s.last_due(slots)), due)
    kind = np.where(known, 0, FLAGS_CLOCK.of(fields["flags"]))
    return _saturating(due, s.clock_offsets[kind]), kind == 0


def _saturating(times: Array, offsets: Array) -> Array:
    """Sums of times, clamped to the range of time."""
    sums = times.astype(np.float64) + offsets
    return np.where(
        np.abs(sums) < float(FOREVER), times + offsets, np.where(sums > 0, FOREVER, NEVER_FIRED)
    )


def _fits(s: WheelImage, lists: Array, due: Array, exact: Array, now: Array) -> Array:
    """Whether each timer is in the bucket of its due tick, or in another valid one. `now`: the
    current tick of its shard."""
    at, bits = lists & (1 << s.shard_bits) - 1, np.uint64(s.bits)
    late = np.maximum((np.maximum(due, 1) - 1).astype(np.uint64) // np.uint64(s.tick_ns) + 1, now)
    wanted = np.where(due <= 0, now, late)
    level = np.zeros(len(due), np.uint64)
    for k in range(1, s.levels):
        level += (wanted ^ now) >> np.uint64(k * s.bits) != 0
    mask = np.uint64((1 << s.bits) - 1)
    right = at == (level << bits | (wanted >> (level * bits) & mask)).astype(np.int64)
    # The next pass empties these anyway: the bucket of this very tick, or an upper one that is
    # being emptied, which begins at this tick.
    at_level, digit = (at >> s.bits).astype(np.uint64), at.astype(np.uint64) & mask
    shift = at_level * bits
    current = now >> shift & mask
    begins = (now & ((np.uint64(1) << shift) - np.uint64(1))) == 0
    taken_next = (digit == current) & ((at_level == 0) | begins)
    # Clocks drift apart: a timer of another clock may be too early, and somewhat too late.
    above = np.minimum(shift + bits, np.uint64(63))
    prefix = np.where(shift + bits > 63, np.uint64(0), now >> above << above)
    late_by = np.uint64(1_000_000_000 // s.tick_ns + 1) + ((wanted - now) >> np.uint64(10))
    in_time = (prefix | digit << shift) <= wanted + late_by
    fits: Array = right | taken_next | (~exact & (digit > current) & in_time)
    return fits
