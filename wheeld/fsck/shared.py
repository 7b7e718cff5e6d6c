"""The checks of `wheeld fsck` on memory that all workers write: watched keys and memory pools.

A row has a bit, a place in a queue, or bytes only while a worker is in it. A pool's word agrees
with its workers' ledgers, and names the last change of one of them. All changes that a ledger has
begun are noted as made, except perhaps the last.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator

import numpy as np

from wheeld.fsck.image import Array, Damage, WheelImage, of_texts
from wheeld.resources.remains import geometry_of
from wheeld.tables import sharing
from wheeld.tables.registry import RowState
from wheeld_core import _native, segments
from wheeld_core.packing import (
    FLAGS_KEYED,
    ID_GEN,
    ID_SLOT,
    REAPING_CHANGE,
    REAPING_ROW,
    STATE_GEN,
    STATE_PHASE,
    TAG_STATE,
    USED_CHANGE,
    USED_ROW,
    state,
    timer_id,
    used_word,
)
from wheeld_core.views import DirectoryView, PoolsView, WatchView, record, records

EXAMPLES = 3
_GONE = (RowState.FREE, RowState.KEPT)
_LIVE = (_native.WORD_LIVE, _native.WORD_TIMER, _native.WORD_LIMIT, _native.WORD_LEASE)


def watch(s: WheelImage) -> list[Damage]:
    """Only present workers watch keys."""
    view, texts = s.watch, _wrong_tenants(s, s.watch.rows["tenant"], "the watch directory")
    watched = view.watched()
    gone = np.ones(len(watched), bool)
    gone[: s.max_workers] = np.isin(s.rows["state"], _GONE)
    for row in np.flatnonzero(gone & (watched > 0)).tolist():
        column = view.directory[:, row // 64] >> np.uint64(row % 64) & np.uint64(1)
        first = ", ".join(str(bucket) for bucket in np.flatnonzero(column)[:EXAMPLES])
        who = "but no worker is there" if row < s.max_workers else "which does not exist"
        texts.append(f"{s.worker(row)}: watches {watched[row]:,} buckets ({first}), {who}")
    for row in np.flatnonzero(s.rows["state"] == RowState.FREE).tolist():
        if count := int((view.rows["notes"][row] != 0).sum() + view.rows["everything"][row]):
            texts.append(f"{s.worker(row)}: {count:,} changes are noted, but no worker is there")
    bad = (view.rows["notes"] > _native.BUCKETS).any(axis=1)
    bad |= s.keys.rows["touching"] > s.keys.sets["tags"].size
    texts += [
        f"{s.worker(row)}: it names a note or a place that does not exist"
        for row in np.flatnonzero(bad).tolist()
    ]
    odd = np.flatnonzero(view.rows["any"] > 1)
    texts += [
        f"{s.worker(r)}: `any` is {view.rows['any'][r]}, expected 0 or 1" for r in odd.tolist()
    ]
    return [of_texts(texts)]


def words(s: WheelImage) -> list[Damage]:
    """Empty places of keys are empty, each used place has a whole name, no key has two places, and
    each timer that a key names has that key."""
    sets = s.keys.sets
    tags, checks, values = (sets[field] for field in ("tags", "checks", "values"))
    states, here = TAG_STATE.of(tags), np.arange(len(sets), dtype=np.uint64)[:, np.newaxis]
    dirty = (tags == 0) & ((checks != 0) | (values != 0))
    texts = _places(dirty, "is empty, but has a check or a value")
    texts += _places((states == 0) & (tags != 0), "has no state, but a name")
    live = np.isin(states, _LIVE)
    texts += _places(live & (checks == 0), "belongs to a key, but its name is half written")
    elsewhere = live & ~_in_its_set(tags, checks, here, len(sets))
    texts += _places(elsewhere, "belongs to a key whose word must be in another set")
    names = np.stack([tags[live], checks[live].astype(np.uint64)], axis=-1)
    _, counts = np.unique(names, axis=0, return_counts=True)
    if (twice := int((counts > 1).sum())) > 0:
        texts.append(f"{twice:,} keys have two words")
    strays = _strays(s.states, s.slots["flags"], s.keys)
    texts += _places(np.ones(len(strays), bool), "names a timer that has another key", strays)
    slots = _unnamed(s.states, s.slots["flags"], s.keys)
    slots = slots[s.owned[slots] & ~np.isin(_places_of(s.keys, slots), _touched(s))]
    mask = np.zeros(s.capacity, bool)
    mask[slots] = True
    says = "is armed, but its key names another timer, or none"
    return [of_texts(texts), s.slot_damage(mask, 0, lambda slot: says)]


def _strays(states: Array, flags: Array, view: DirectoryView) -> Array:
    """The places of words that name an armed timer without that key."""
    places = np.flatnonzero(TAG_STATE.of(view.sets["tags"]).ravel() == _native.WORD_TIMER)
    ids = view.sets["values"].ravel()[places]
    slots = ID_SLOT.of(ids)
    known = (slots < len(states)) & (ids != np.uint64(2**64 - 1))
    places, ids, slots = places[known], ids[known], slots[known]
    armed = (STATE_GEN.of(states[slots]) == ID_GEN.of(ids)) & (
        STATE_PHASE.of(states[slots]) == _native.ARMED
    )
    other = (view.rooms["place"][slots] != places) | (FLAGS_KEYED.of(flags[slots]) == 0)
    found: Array = places[armed & other]
    return found


def _places_of(view: DirectoryView, slots: Array) -> Array:
    found = view.rooms["place"][slots]
    size = np.uint32(view.sets["tags"].size)
    places: Array = np.where(found < size, found, found % np.uint32(_native.WORD_PLACES))
    return places


def _unnamed(states: Array, flags: Array, view: DirectoryView) -> Array:
    """The slots of armed timers whose key's word should name them, and does not."""
    slots = np.flatnonzero(STATE_PHASE.of(states) == _native.ARMED)
    slots = slots[FLAGS_KEYED.of(flags[slots]) != 0]
    slots = slots[view.rooms["place"][slots] != _native.NIL]
    words = view.sets["values"].ravel()[_places_of(view, slots)]
    found: Array = slots[words != timer_id(STATE_GEN.of(states[slots]), slots)]
    return found


def _touched(s: WheelImage) -> Array:
    """Places that a worker is using: it may be about to name a timer there, or to end one."""
    touched: Array = s.keys.rows["touching"][~np.isin(s.rows["state"], _GONE)] - np.uint64(1)
    return touched


def _in_its_set(tags: Array, checks: Array, here: Array, count: int) -> Array:
    """Is a key in the set of its hash's upper half, or of its check?"""
    halves = (tags >> np.uint64(32), checks.astype(np.uint64))
    first, second = (half * np.uint64(count) >> np.uint64(32) for half in halves)
    found: Array = (first == here) | (second == here)
    return found


def _places(which: Array, what: str, numbers: Array | None = None) -> list[str]:
    found = np.flatnonzero(which) if numbers is None else numbers[which]
    if not len(found):
        return []
    first = ", ".join(str(place) for place in found[:EXAMPLES].tolist())
    return [f"word places {first} ({len(found):,}): each {what}"]


def pools(s: WheelImage) -> list[Damage]:
    """Pools and ledgers agree, and only present workers have bytes of a pool."""
    damage = []
    for pool, name in enumerate(s.pools.names()):
        ledgers = s.pools.ledgers[pool]
        texts = list(_of_pool(s, pool))
        # consistent, or it has changed: every change leaves its number in these words
        salt = zlib.crc32(ledgers.tobytes()) << 32 | zlib.crc32(s.pools.pools[pool].tobytes())
        damage.append(of_texts([f"pool {name}: {text}" for text in texts], salt))
        texts = list(_of_rows(s, pool))
        texts += _wrong_tenants(s, ledgers["tenant"][:-1], "its ledger")
        damage.append(of_texts([f"pool {name}: {text}" for text in texts]))
    return damage


def _of_pool(s: WheelImage, pool: int) -> Iterator[str]:
    view, fields = s.pools, s.pools.pools[pool]
    used, out = int(view.used()[pool]), view.out()[pool, :-1]
    row, change, made = _being_returned(view, pool)
    total = int(out.sum()) - (int(out[row]) if made else 0)
    if used != total:
        yield f"{used:,} bytes are out by its own count, {total:,} by the ledgers"
    most = int(fields["size"]) + (0 if fields["strict"] else int(fields["largest"]) - 1)
    if used > most:
        yield f"{used:,} bytes are out, expected at most {most:,}"
    if change and not s.live:
        yield f"the bytes of {s.worker(row)} were being returned when the supervisor died"
    word = int(fields["used"])
    last = USED_ROW.of(word)
    if last == _native.POOL_NOBODY:
        if used:
            yield f"{used:,} bytes are out, but no change was made"
    elif last >= len(view.ledgers[pool]):
        yield f"ledger {last} made the last change, but does not exist"
    elif USED_CHANGE.of((begun := int(view.ledgers[pool]["change"][last])) - word) > 1:
        named = USED_CHANGE.of(word)
        yield f"its word names change {named} of {_who(s, last)}, which has begun {begun}"


def _being_returned(view: PoolsView, pool: int) -> tuple[int, int, bool]:
    """Row and number of the supervisor's change in `reaping`, (0, 0) if there is none; and whether
    `used` already includes that change."""
    reaping = int(view.pools["reaping"][pool])
    row, change = REAPING_ROW.of(reaping) - 1, REAPING_CHANGE.of(reaping)
    boss = len(view.ledgers[pool]) - 1
    if not 0 <= row < boss:
        return 0, change, False
    begun, word = int(view.ledgers[pool]["change"][boss]), int(view.pools["used"][pool])
    named = USED_ROW.of(word) == boss and USED_CHANGE.of(word ^ begun) == 0
    named |= int(view.ledgers[pool]["made"][boss]) == begun
    return row, change, begun & REAPING_CHANGE.most == change and named


def _of_rows(s: WheelImage, pool: int) -> Iterator[str]:
    view, fields, ledgers = s.pools, s.pools.pools[pool], s.pools.ledgers[pool]
    out, waiting = view.out()[pool, :-1], view.waiting()[pool]
    most = int(fields["size"]) + int(fields["largest"])
    gone = np.isin(s.rows["state"], _GONE)
    for row in np.flatnonzero((out < 0) | (out > most)).tolist():
        yield f"{s.worker(row)} has {out[row]:,} bytes, which is impossible"
    for row in np.flatnonzero(gone & (out > 0) & (out <= most)).tolist():
        yield f"{s.worker(row)} has {out[row]:,} bytes, but no worker is there"
    for row in np.flatnonzero(ledgers["change"] - ledgers["made"] > 1).tolist():  # it wraps
        begun, made = int(ledgers["change"][row]), int(ledgers["made"][row])
        yield f"{_who(s, row)} has begun {begun} changes, but number {made} is recorded as made"
    for row in np.flatnonzero(gone & waiting[: s.max_workers]).tolist():
        yield f"{s.worker(row)} waits for memory, but no worker is there"
    for row in (np.flatnonzero(waiting[s.max_workers :]) + s.max_workers).tolist():
        yield f"row {row} waits for memory, but does not exist"
    for row in np.flatnonzero(ledgers["ticket"] > fields["tickets"]).tolist():
        ticket, given = int(ledgers["ticket"][row]), int(fields["tickets"])
        yield f"{_who(s, row)} waits with ticket {ticket}, but only {given} were issued"


def _who(s: WheelImage, ledger: int) -> str:
    return "the supervisor" if ledger == s.max_workers else s.worker(ledger)


def _wrong_tenants(s: WheelImage, tenants: Array, where: str) -> list[str]:
    """Rows whose worker differs from the worker table."""
    states, incarnations = s.rows["state"], s.rows["incarnation"]
    let, same = tenants != 0, tenants == incarnations
    wrong = (states == RowState.FREE) & let
    wrong |= (states == RowState.ACTIVE) & ~same
    moving = (RowState.ATTACHING, RowState.DYING, RowState.KEPT)
    wrong |= np.isin(states, moving) & let & ~same
    return [
        f"{s.worker(row)}: {where} belongs to incarnation {int(tenants[row])}, the worker table "
        "says "
        f"{int(incarnations[row]) if states[row] else 'nobody'}"
        for row in np.flatnonzero(wrong).tolist()
    ]


# -- repair ----------------------------------------------------------------------------------------


def mend_keys(
    name: str, keys: _native.Memory, wheel: _native.Memory, slots: _native.Memory
) -> None:
    """When no worker lives: cancel timers whose key does not name them, and clear keys that name a
    timer of another key. The recovering clock takes the slots back."""
    view, g = DirectoryView(segments.data(name, os.getuid())), geometry_of(record(wheel, "wheel"))
    capacity = len(view.rooms)
    states = np.frombuffer(slots, "u8", capacity, g["states_off"])
    flags = records(slots, "slot", g["slots_off"], capacity)["flags"]
    for slot in _unnamed(states, flags, view).tolist():
        states[slot] = state(STATE_GEN.of(int(states[slot])), _native.CANCELLED)
    strays = _strays(states, flags, view)
    values = _word_sets(keys, view)["values"]
    for place in strays.tolist():
        values[divmod(place, _native.WORD_PLACES)] = 0


def _word_sets(keys: _native.Memory, view: DirectoryView) -> Array:
    """The sets of places in the segment itself; touch only those that have memory."""
    header = view.header
    return records(keys, "word_set", int(header["sets_off"]), int(header["set_count"]))


def repair(memories: sharing.Memories, name: str, rows: Array, alone: bool) -> None:
    """Repair the writable segments, whose headers are intact, as the next supervisor would; if
    `alone` (no worker lives), repair the rest, too."""
    watch, keys, pools = (memories[kind] for kind in sharing.KINDS)
    _native.resume_pools(pools)
    directory, budget = WatchView(watch), PoolsView(pools)
    capacity = int(record(keys, "keys")["capacity"])
    gone = np.isin(rows["state"], _GONE) & sharing.occupied(directory, budget)
    for row in np.flatnonzero(gone).tolist():
        _native.seat_watcher(watch, row, 0)
        _native.seat_keys(keys, len(rows), capacity, row, False)
        _native.seat_borrower(pools, row, 0)
    if alone:
        _repair_watch(directory, rows)
        sharing.key_rows(keys, len(rows))["touching"] = 0
        _repair_words(name, keys)
        for pool in range(len(budget.pools)):
            _repair_pool(budget, pool, rows)


def _assign_rows(tenants: Array, rows: Array) -> None:
    """Assign each row to the worker in the worker table."""
    states = rows["state"]
    tenants[states == RowState.FREE] = 0
    taken = states != RowState.FREE
    wrong = (
        taken & (tenants != rows["incarnation"]) & ((tenants != 0) | (states == RowState.ACTIVE))
    )
    tenants[wrong] = rows["incarnation"][wrong]


def _repair_watch(view: WatchView, rows: Array) -> None:
    """Clear bits beyond the table."""
    if len(rows) % 64:
        view.directory[:, -1] &= np.uint64((1 << len(rows) % 64) - 1)
    view.rows["any"][view.rows["any"] > 1] = 1
    view.rows["notes"][view.rows["notes"] > _native.BUCKETS] = 0
    tenants = view.rows["tenant"].copy()
    _assign_rows(tenants, rows)
    view.rows["tenant"] = tenants


def _repair_words(name: str, keys: _native.Memory) -> None:
    """Free places with half-written keys, and the smaller of two words of one key."""
    view = DirectoryView(segments.data(name, os.getuid()))
    sets = view.sets
    tags, checks, values = (sets[field].ravel() for field in ("tags", "checks", "values"))
    here = (np.arange(len(tags)) // _native.WORD_PLACES).astype(np.uint64)
    good = np.isin(TAG_STATE.of(tags), _LIVE) & (checks != 0)
    good &= _in_its_set(tags, checks, here, len(sets))
    order = np.lexsort((~values, checks, tags))
    same = (tags[order][1:] == tags[order][:-1]) & (checks[order][1:] == checks[order][:-1])
    good[order[1:][same]] = False
    shared = _word_sets(keys, view)
    wrong = ~good & ((tags != 0) | (checks != 0) | (values != 0))
    for i in np.flatnonzero(wrong).tolist():  # only what has memory is written
        for field in ("tags", "checks", "values"):
            shared[field][divmod(i, _native.WORD_PLACES)] = 0


def _repair_pool(view: PoolsView, pool: int, rows: Array) -> None:
    """Correct impossible ledgers, then make the pool's word agree with them."""
    fields, ledgers = view.pools[pool], view.ledgers[pool]
    most = int(fields["size"]) + int(fields["largest"])
    out = view.out()[pool]
    for row in np.flatnonzero((out < 0) | (out > most)).tolist():
        if row < len(rows):  # the supervisor's goes below 0
            ledgers["even"][row] = ledgers["odd"][row] = 0
    change, word = ledgers["change"], fields["used"]
    wrong = change - ledgers["made"] > 1
    named = (USED_ROW.of(int(word)) == np.arange(len(ledgers))) & (
        USED_CHANGE.of(word ^ change) == 0
    )
    ledgers["made"][wrong] = (change - (~named & (change > 0)))[wrong]
    tenants = ledgers["tenant"][:-1].copy()
    _assign_rows(tenants, rows)
    ledgers["tenant"][:-1] = tenants
    if len(rows) % 64:
        view.waiters[pool, -1] &= np.uint64((1 << len(rows) % 64) - 1)
    fields["tickets"] = max(int(fields["tickets"]), *map(int, ledgers["ticket"]))
    fields["reaping"] = 0
    _repair_used(view, pool)


def _repair_used(view: PoolsView, pool: int) -> None:
    """The word of a pool: the worker it names stays if possible, its bytes are the ledgers' sum."""
    fields, ledgers = view.pools[pool], view.ledgers[pool]
    word = int(fields["used"])
    last, change = USED_ROW.of(word), USED_CHANGE.of(word)
    if last >= len(ledgers) or USED_CHANGE.of(int(ledgers["change"][last]) - word) > 1:
        last, change = _last_change(view, pool, int(view.used()[pool]))
    fields["used"] = used_word(0, last, change)  # first, because the ledgers are read by that name
    fields["used"] = used_word(int(view.out()[pool, :-1].sum()), last, change)


def _last_change(view: PoolsView, pool: int, used: int) -> tuple[int, int]:
    """The worker and number of the last change, if the pool's word no longer names it: the worker
    whose last change makes the ledgers add up to `used`, else the supervisor."""
    ledgers = view.ledgers[pool]
    view.pools["used"][pool] = used_word(0, _native.POOL_NOBODY, 0)
    without, change = view.out()[pool, :-1], ledgers["change"]
    made = np.where(change & np.uint64(1) == 1, ledgers["odd"], ledgers["even"])[:-1]
    fits = (ledgers["made"] != change)[:-1] & (without.sum() - without + made == used)
    rows = [] if without.sum() == used else np.flatnonzero(fits).tolist()
    last = rows[0] if rows else len(ledgers) - 1
    return last, int(change[last])
