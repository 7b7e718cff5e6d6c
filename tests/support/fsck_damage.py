"""Every kind of damage that fsck is known to find: scribbles on a FullWheel, by the check that must
name them."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from fsck_wheels import SHARD, FullWheel, completions, occupancy, returns, shards, summary, worker
from local_wheel import LocalWheel
from wheeld_core import _native, packing
from wheeld_core.packing import USED_BYTES, USED_ROW, used_word
from wheeld_core.views import record


def link(w: LocalWheel, slot: int) -> Any:
    return w.view.links[slot]


def put(fields: Any, name: str, value: object, at: object = None) -> None:
    if at is None:
        fields[name] = value
    else:
        fields[name][at] = value


def add(fields: Any, name: str, more: int, at: object = None) -> None:
    now = fields[name] if at is None else fields[name][at]
    put(fields, name, (int(now) + more) % (1 << 8 * fields.dtype[name].itemsize), at)


def head_of(w: FullWheel, name: str) -> int:
    return w.view.capacity + int(link(w, w.slot[name])["list"])


def put_state(w: LocalWheel, slot: int, gen: int, phase: int) -> None:
    w.slots.states[slot] = packing.state(gen, phase)


def stage(w: LocalWheel, slot: int, number: int, row: int = 1, position: int = 0) -> None:
    link(w, slot)["completion"] = packing.completion(number, row, position)


def count_linked(w: LocalWheel, index: int, more: int) -> None:
    if index < w.view.header["lists"] - 3 * w.max_workers:
        for counts, at in ((w.view.header, ()), (shards(w), index // SHARD)):
            counts["linked"][at] = int(counts["linked"][at]) + more


def unlink(w: LocalWheel, slot: int) -> None:
    node = link(w, slot)
    link(w, int(node["next"]))["prev"] = node["prev"]
    link(w, int(node["prev"]))["next"] = node["next"]
    count_linked(w, int(node["list"]), -1)
    node["list"] = _native.NIL


def append(w: LocalWheel, slot: int, index: int) -> None:
    node, head = link(w, slot), w.view.capacity + index
    node["next"], node["prev"], node["list"] = head, link(w, head)["prev"], index
    link(w, int(node["prev"]))["next"] = slot
    link(w, head)["prev"] = slot


Scribble = Callable[[FullWheel], object]
CASES: dict[str, tuple[str, str, Scribble]] = {}


def case(check: str, expected: str) -> Callable[[Scribble], Scribble]:
    def add(scribble: Scribble) -> Scribble:
        CASES[scribble.__name__] = (check, expected, scribble)
        return scribble

    return add


# -- headers, rows, rings --------------------------------------------------------------------------


ROWS: list[tuple[str, int, dict[str, object], str]] = [
    ("row_state", 1, {"state": 9}, "state 9"),
    ("two_names", 1, {"name": b"a"}, "the same name"),
    ("nameless", 0, {"name": b""}, "no name"),
    ("two_incarnations", 3, {"name": b"c", "incarnation": 2, "state": 1}, "incarnation 2"),
    ("no_incarnation", 3, {"name": b"c", "state": 1}, "no incarnation"),
    ("on_death", 1, {"on_death": 5}, "on_death 5"),
    ("group", 1, {"groups": 1 << 40}, "a group without a name"),
]


def set_row(row: int, fields: dict[str, object], w: FullWheel) -> None:
    for field, value in fields.items():
        w.row(row)[field] = value


CASES.update(
    {name: ("rows", words, partial(set_row, row, fields)) for name, row, fields, words in ROWS}
)


# -- lists, bitmaps, buckets -----------------------------------------------------------------------


@case("lists", "without its head")
def circle_without_head(w: FullWheel) -> None:
    first, second, third = (w.slot[name] for name in ("near", "soon", "third"))
    head = head_of(w, "near")
    link(w, head)["next"], link(w, first)["prev"] = first, head
    link(w, first)["next"], link(w, head)["prev"] = head, first
    link(w, second)["next"], link(w, second)["prev"] = third, third
    link(w, third)["next"], link(w, third)["prev"] = second, second


@case("bitmaps", "empty and marked")
def bit_too_many(w: FullWheel) -> None:
    occupancy(w)[9] |= np.uint64(1 << 33)
    summary(w)[9] |= np.uint64(1)


@case("bitmaps", "not empty and not marked")
def bit_too_few(w: FullWheel) -> None:
    index = int(link(w, w.slot["near"])["list"])
    others = np.flatnonzero(w.view.links["list"][: w.view.capacity] // 64 == index // 64)
    assert len({int(link(w, int(other))["list"]) for other in others}) > 1  # the word stays
    occupancy(w)[index // 64] &= ~np.uint64(1 << index % 64)


@case("bitmaps", "summary bit 0")
def summary_bit(w: FullWheel) -> None:
    summary(w)[10] = 1


@case("buckets", "does not fit due time")
def in_another_bucket(w: FullWheel) -> None:
    far = int(link(w, w.slot["far"])["list"])
    unlink(w, w.slot["near"])
    append(w, w.slot["near"], far)
    count_linked(w, far, 1)


# -- owners ----------------------------------------------------------------------------------------


@case("owners", "incarnation 99: no such worker")
def orphaned(w: FullWheel) -> None:
    w.slots.owners[w.slot["near"] >> 6] = packing.owner_word(1, 99)


@case("owners", "row 700")
def owner_out_of_range(w: FullWheel) -> None:
    w.slots.owners[w.slot["near"] >> 6] = packing.owner_word(700, 2)


LAST = 8191
"""A slot of a slab that nobody owns."""


@case("owners", "of level 4 in shard 1, in a slab that nobody owns")
def given_back_and_linked(w: FullWheel) -> None:
    put_state(w, LAST, 1, 2)
    far = link(w, w.slot["far"])
    link(w, LAST)["gen"], link(w, LAST)["due"] = 1, far["due"]
    append(w, LAST, int(far["list"]))
    count_linked(w, int(far["list"]), 1)


@case("owners", "has stage return waits, in a slab that nobody owns")
def given_back_and_queued(w: FullWheel) -> None:
    put_state(w, LAST, 1, 2)
    link(w, LAST)["gen"] = 1
    stage(w, LAST, 4)


# -- slots and leaks -------------------------------------------------------------------------------


@case("slots", "return ring, which ends before that")
def unpublished_return(w: FullWheel) -> None:
    put_state(w, w.slot["read"], 1, 2)
    stage(w, w.slot["read"], 7, position=int(w.view.ports["ret_tail"][1]) + 5)


TOLD: list[tuple[str, str, str, tuple[int, int] | None, tuple[int, int] | None, str]] = [
    # name of the case, check, timer, its (generation, phase), its record's (stage, row), words
    ("phase", "slots", "read", (1, 7), None,
     "phase 7, which does not exist"),
    ("no_stage", "slots", "read", None, (12, 1),
     "stage 12, which does not exist"),
    ("never_armed", "slots", "read", (5, 0), None,
     "was never armed, at generation 5"),
    ("armed_anew", "slots", "near", (2, 1), None,
     "linked for generation 1, but is at 2"),
    ("never_submitted", "slots", "read", (2, 1), None,
     "armed, but neither linked nor submitted"),
    ("armed_and_over", "slots", "read", (1, 1), None,
     "armed, but already recorded as ended: expired"),
    ("over_in_bucket", "slots", "leaving", None, (8, 1),
     "of level 2 in shard 1, with stage reclaimed"),
    ("fired_in_bucket", "slots", "near", (1, 3), None,
     "not armed: fired"),
    ("cancelled_and_expired", "slots", "read", (1, 2), None,
     "cancelled, but an expiration is recorded for it"),
    ("backlog_stage", "slots", "waiting", None, (0, 1),
     "with stage open"),
    ("backlog_worker", "slots", "waiting", None, (3, 1),
     "but names b (row 1)"),
    ("loan_stage", "slots", "lent", None, (7, 0),
     "with stage returned"),
    ("fired_unknown", "slots", "read", (2, 3), None,
     "but the clock's record is for generation 1"),
    ("fired_open", "slots", "read", None, (0, 1),
     "fired without a completion"),
    ("stage_row", "slots", "read", None, (6, 900),
     "row 900, which does not exist"),
    ("cancelled_unknown", "leaks", "read", (2, 2), None,
     "cancelled, unknown to the clock, and in no ring"),
    ("cancel_forgotten", "leaks", "near", (1, 2), None,
     "no cancel is on its way"),
    ("never_returned", "leaks", "read", (1, 2), (0, 1),
     "unlinked, but was never returned"),
]  # fmt: skip


def tell(timer: str, state: Any, record_stage: Any, w: FullWheel) -> None:
    if state is not None:
        put_state(w, w.slot[timer], *state)
    if record_stage is not None:
        stage(w, w.slot[timer], *record_stage)


CASES.update(
    {
        name: (check, words, partial(tell, timer, state, record_stage))
        for name, check, timer, state, record_stage, words in TOLD
    }
)


# -- records ---------------------------------------------------------------------------------------


@case("completions", "should be there")
def completion_of_another(w: FullWheel) -> None:
    position = int(link(w, w.slot["out"])["completion"]) & 1023
    completions(w, 0)["id"][position] = packing.timer_id(1, w.slot["read"])


@case("completions", "which does not exist")
def completion_out_of_range(w: FullWheel) -> None:
    position = int(link(w, w.slot["out"])["completion"]) & 1023
    completions(w, 0)["id"][position] = packing.timer_id(1, packing.ID_SLOT.most)


@case("returns", "should be there")
def return_of_another(w: FullWheel) -> None:
    position = int(link(w, w.slot["back"])["completion"]) & 1023
    returns(w, 0)[position] = w.slot["read"]


@case("returns", "which occurs twice")
def returned_twice(w: FullWheel) -> None:
    position = int(link(w, w.slot["back"])["completion"]) & 1023
    returns(w, 0)[position] = returns(w, 0)[(position + 1) & 1023]


# -- watch -----------------------------------------------------------------------------------------


@case("watch", "row 2: watches 2 buckets (9, 700), but no worker is there")
def watches_from_a_free_row(w: FullWheel) -> None:
    w.words.watch_bucket(2, 9)
    w.words.watch_bucket(2, 700)


@case("watch", "row 3: 2 changes are noted, but no worker is there")
def notes_of_nobody(w: FullWheel) -> None:
    w.words.watch.rows["notes"][3, 5] = 7
    w.words.watch.rows["everything"][3] = 1


# -- payloads --------------------------------------------------------------------------------------


def heap_ids(w: FullWheel, chunk: int) -> Any:
    return np.frombuffer(
        w.slots_memory,
        "u8",
        _native.CHUNK_BLOCKS,
        w.sizes["heap_off"] + chunk * _native.CHUNK_BYTES,
    )


@case("payloads", "is armed, but its payload is not in the heap")
def payload_that_is_gone(w: FullWheel) -> None:
    for chunk in range(3):
        ids = heap_ids(w, chunk)
        ids[(ids & 0xFFFFFFFF) == w.slot["heavy"]] = 0


@case("payloads", "has no owner, but has a payload in the heap")
def payload_of_nobody(w: FullWheel) -> None:
    heap_ids(w, 0)[5] = 1 << 32 | 8191


@case("payloads", "payload heap: chunk 0, block 5 has no slot: id 4294975488")
def payload_without_a_slot(w: FullWheel) -> None:
    heap_ids(w, 0)[5] = 1 << 32 | 8192


# -- words -----------------------------------------------------------------------------------------


@case("words", "word places 0 (1): each belongs to a key whose word must be in another set")
def word_in_a_wrong_set(w: FullWheel) -> None:
    w.words.keys.sets["tags"][0, 0] = 1 << 62 | 1
    w.words.keys.sets["checks"][0, 0] = 1 << 31 | 1


@case("words", "1 keys have two words")
def key_with_two_words(w: FullWheel) -> None:
    w.words.keys.sets["tags"][0, :2] = 8 | 1
    w.words.keys.sets["checks"][0, :2] = 1
    w.words.keys.sets["values"][0, :2] = [4, 5]


def name_in(w: FullWheel, place: int, id: int) -> None:
    """A key whose word, in one of the first set's places, is `id`."""
    for field, value in (("tags", 8 | _native.WORD_TIMER), ("checks", 1), ("values", id)):
        w.words.keys.sets[field][0, place] = value


def has_key(w: FullWheel, name: str, place: int) -> int:
    """The timer of this name says that it is the key's of that place. Returns its id."""
    slot = w.slot[name]
    w.slots.slots["flags"][slot] |= packing.FLAGS_KEYED.mask
    w.words.keys.rooms["place"][slot] = place
    return packing.timer_id(packing.STATE_GEN.of(int(w.slots.states[slot])), slot)


@case("words", "word places 3 (1): each names a timer that has another key")
def key_of_a_timer_without_one(w: FullWheel) -> None:
    slot = w.slot["near"]
    name_in(w, 3, packing.timer_id(packing.STATE_GEN.of(int(w.slots.states[slot])), slot))


@case("words", "is armed, but its key names another timer, or none")
def timer_that_its_key_does_not_name(w: FullWheel) -> None:
    name_in(w, 3, has_key(w, "near", 3) + packing.ID_GEN.put(1))


@case("words", "is armed, but its key names another timer, or none")
def timer_whose_key_is_nowhere(w: FullWheel) -> None:
    has_key(w, "far", 2**32 - 2)


# -- leases ----------------------------------------------------------------------------------------


def wait_for_lease(w: FullWheel, row: int, ticket: int = 1) -> None:
    w.words.keys.lease_places[row, 3] = (packing.TICKET_NUMBER.put(ticket), 77)


def seat_of(w: FullWheel, row: int, tenant: int) -> None:
    """A lease whose seat, in the first set, is of this worker."""
    word = packing.LEASE_ROW.put(row + 1) | packing.LEASE_TENANT.put(tenant) | 1 << 40
    for field, value in (("tags", 8 | _native.WORD_LEASE), ("checks", 1), ("values", word)):
        w.words.keys.sets[field][0, 2] = value


@case("leases", "row 3: waits for a lease, but no worker is there")
def nobody_waits_for_a_lease(w: FullWheel) -> None:
    wait_for_lease(w, 3)


@case("leases", "row 3: waits for a lease, but no worker is there")
def nobody_says_that_it_waits_for_a_lease(w: FullWheel) -> None:
    w.words.keys.leases["waiting"][0] |= np.uint64(1 << 3)


@case("leases", "row 100: waits for a lease, but does not exist")
def row_beyond_the_table_waits_for_a_lease(w: FullWheel) -> None:
    w.words.keys.leases["waiting"][1] |= np.uint64(1 << 36)


@case("leases", "b (row 1): waits for a lease, and its bit says that it does not: ticket 1")
def waiter_for_a_lease_that_nobody_finds(w: FullWheel) -> None:
    w.words.keys.leases["waiting"][0] = 0


@case("leases", "b (row 1): waits for a lease with a ticket that was not issued, of 1")
def ticket_for_a_lease_from_nowhere(w: FullWheel) -> None:
    wait_for_lease(w, 1, 2)


@case("leases", "word places 2 (1): each is a seat of a worker that does not exist")
def seat_of_a_row_beyond_the_table(w: FullWheel) -> None:
    seat_of(w, 100, 0)


@case("leases", "word places 2 (1): each is a seat of a worker that has not come yet")
def seat_of_a_worker_to_come(w: FullWheel) -> None:
    seat_of(w, 1, (int(w.words.keys.rows["tenancy"][1]) >> 1) + 1)


# -- pools -----------------------------------------------------------------------------------------


@case("pools", "b (row 1) has begun 3 changes, but number 1 is recorded as made")
def not_noted_for_long(w: FullWheel) -> None:
    w.words.change(1, 5)
    w.words.change(1, -5)
    w.words.pools.ledgers["made"][0, 1] = 1


@case("pools", "ledger 900 made the last change, but does not exist")
def changed_by_nobody(w: FullWheel) -> None:
    word = int(w.words.pools.pools["used"][0])
    w.words.pools.pools["used"][0] = word & ~USED_ROW.mask | USED_ROW.put(900)


@case("pools", "450 bytes are out, but no change was made")
def used_without_a_change(w: FullWheel) -> None:
    w.words.pools.pools["used"][0] |= np.uint64(USED_ROW.mask)


@case("pools", "its word names change 1 of the supervisor, which has begun 0")
def change_that_was_not_begun(w: FullWheel) -> None:
    bytes = USED_BYTES.of(int(w.words.pools.pools["used"][0]))
    w.words.pools.pools["used"][0] = used_word(bytes, 4, 1)


@case("pools", "the bytes of a (row 0) were being returned when the supervisor died")
def reaping_begun(w: FullWheel) -> None:
    w.words.reap(0, "marked")
    w.words.pools.ledgers["tenant"][0, 0] = 1


@case("pools", "row 40 waits for memory, but does not exist")
def waits_beyond_the_table(w: FullWheel) -> None:
    w.words.pools.waiters[0, 0] |= np.uint64(1 << 40)


# -- one word, or one call -----------------------------------------------------------------------

ONE_WORD: list[tuple[str, str, str, Scribble]] = [
    ("capacity_of_half_a_slab", "headers", "impossible sizes",
     lambda w: add(w.view.header, "capacity", 1)),
    ("capacity_of_another_wheel", "headers", "wheel: slab_count 128, expected 129",
     lambda w: add(w.view.header, "capacity", 64)),
    ("offset_changed", "headers", "slots: states_off",
     lambda w: add(record(w.slots_memory, "slots"), "states_off", 64)),
    ("rows_changed", "headers", "registry: row_count",
     lambda w: add(record(w.registry_memory, "registry"), "row_count", 1)),
    ("served", "rows", "but the clock serves 77",
     lambda w: put(w.view.ports, "incarnation", 77, 1)),
    ("submission_ring_overfull", "rings", "submission ring of 1,024",
     lambda w: add(worker(w, 0), "sub_tail", 1025)),
    ("return_ring_head_beyond", "rings", "return ring",
     lambda w: add(worker(w, 1), "ret_head", 1)),
    ("completion_ring_overfull", "rings", "completion ring",
     lambda w: add(worker(w, 0), "comp_head", -1)),
    ("own_next", "lists", "which is in bucket 2 of level 2 in shard 1 and follows the head",
     lambda w: put(link(w, w.slot["near"]), "next", w.slot["near"])),
    ("wild_next", "lists", "which does not exist",
     lambda w: put(link(w, w.slot["soon"]), "next", 0x7FFFFFFF)),
    ("head_next", "lists", "the head of bucket",
     lambda w: put(link(w, head_of(w, "near")), "next", w.slot["soon"])),
    ("wrong_prev", "lists", "follows slot",
     lambda w: put(link(w, w.slot["third"]), "prev", w.slot["near"])),
    ("out_of_list", "lists", "no list",
     lambda w: put(link(w, w.slot["soon"]), "list", _native.NIL)),
    ("other_list", "lists", "bucket 9 of level 1 in shard 1",
     lambda w: put(link(w, w.slot["soon"]), "list", SHARD + 64 + 9)),
    ("no_such_list", "lists", "): is in list 70000",
     lambda w: put(link(w, w.slot["third"]), "list", 70000)),
    ("linked_count", "linked", "the header says",
     lambda w: add(w.view.header, "linked", 1)),
    ("shard_count", "linked", "timers are in buckets of shard 1, its count is",
     lambda w: add(shards(w), "linked", -1, 1)),
    ("due_changed", "buckets", "does not fit due time",
     lambda w: add(link(w, w.slot["far"]), "due", -80_000 * 10**9)),
    ("given_back_too_early", "owners", "is armed, in a slab that nobody owns",
     lambda w: put_state(w, LAST, 1, 1)),
    ("dropped_out", "slots", "armed, but linked nowhere",
     lambda w: unlink(w, w.slot["near"])),
    ("not_endless", "slots", "armed, but linked nowhere",
     lambda w: put(w.slots.slots, "interval", 10**9, w.slot["endless"])),
    ("waits_nowhere", "slots", "has stage expiration waits, but is in no list",
     lambda w: unlink(w, w.slot["waiting"])),
    ("unpublished_completion", "slots", "completion ring, which ends before that",
     lambda w: stage(w, w.slot["read"], 6, position=int(w.view.ports["comp_tail"][1]))),
    ("flag_off", "leaks", "waits to be returned, but a (row 0)'s port does not say so",
     lambda w: put(w.view.ports, "backlog", 0, 0)),
    ("watch_of_other_rows", "headers", "watch: row_count 5, expected 4",
     lambda w: add(record(w.shared("watch"), "watch"), "row_count", 1)),
    ("directory_elsewhere", "headers", "watch: directory_off",
     lambda w: put(record(w.shared("watch"), "watch"), "directory_off", 0)),
    ("too_many_pools", "headers", "pools: pool_count 17, expected at most 16",
     lambda w: put(record(w.shared("pools"), "pools"), "pool_count", 17)),
    ("too_few_ledgers", "headers", "pools: ledger_count 3, expected 5",
     lambda w: put(record(w.shared("pools"), "pools"), "ledger_count", 3)),
    ("watches_from_beyond_the_table", "watch",
     "row 63: watches 1 buckets (0), which does not exist",
     lambda w: w.words.watch_bucket(63, 0)),
    ("impossible_any", "watch", "a (row 0): `any` is 7",
     lambda w: put(w.words.watch.rows, "any", 7, 0)),
    ("watcher_of_another_time", "watch",
     "b (row 1): the watch directory belongs to incarnation 9, the worker table says 2",
     lambda w: put(w.words.watch.rows, "tenant", 9, 1)),
    ("watcher_in_a_free_row", "watch", "belongs to incarnation 4, the worker table says nobody",
     lambda w: put(w.words.watch.rows, "tenant", 4, 3)),
    ("impossible_note", "watch", "a (row 0): it names a note or a place that does not exist",
     lambda w: put(w.words.watch.rows, "notes", 65537, (0, 0))),
    ("impossible_place", "watch", "b (row 1): it names a note or a place that does not exist",
     lambda w: put(w.words.keys.rows, "touching", 65537, 1)),
    ("value_of_nobody", "words", "word places 5 (1): each is empty, but has a check or a value",
     lambda w: put(w.words.keys.sets, "values", 1, (0, 5))),
    ("a_name_alone", "words", "word places 0 (1): each has no state, but a name",
     lambda w: put(w.words.keys.sets, "tags", 8, (0, 0))),
    ("half_a_name", "words",
     "word places 0 (1): each belongs to a key, but its name is half written",
     lambda w: put(w.words.keys.sets, "tags", 8 | 1, (0, 0))),
    ("lost_byte", "pools", "pool requests: 449 bytes are out by its own count, 450 by the ledgers",
     lambda w: add(w.words.pools.pools, "used", -USED_BYTES.put(1), 0)),
    ("emptied_ledger", "pools",
     "pool small: 1,000 bytes are out by its own count, 990 by the ledgers",
     lambda w: put(w.words.pools.ledgers, "odd", 0, (1, 0))),
    ("more_than_there_is", "pools", "pool small: 1,010 bytes are out, expected at most 1,000",
     lambda w: w.words.change(0, 10, 1)),
    ("bytes_in_a_free_row", "pools", "has 5 bytes, but no worker is there",
     lambda w: w.words.change(3, 5)),
    ("less_than_nothing", "pools", "a (row 0) has -7 bytes, which is impossible",
     lambda w: w.words.change(0, -257)),
    ("more_than_can_be", "pools", "b (row 1) has 1,099,511,627,776 bytes, which is impossible",
     lambda w: put(w.words.pools.ledgers, "odd", 1 << 40, (0, 1))),
    ("made_before_it_was_begun", "pools",
     "a (row 0) has begun 2 changes, but number 3 is recorded as made",
     lambda w: put(w.words.pools.ledgers, "made", 3, (0, 0))),
    ("reaping_done", "pools", "the bytes of a (row 0) were being returned when the supervisor died",
     lambda w: w.words.reap(0, "done")),
    ("waits_in_a_free_row", "pools", "row 2 waits for memory, but no worker is there",
     lambda w: w.words.wait_in_queue(2, 1, 1)),
    ("ticket_of_nobody", "pools", "b (row 1) waits with ticket 6, but only 5 were issued",
     lambda w: put(w.words.pools.ledgers, "ticket", 6, (1, 1))),
    ("borrower_of_another_time", "pools",
     "pool small: a (row 0): its ledger belongs to incarnation 7, the worker table says 1",
     lambda w: put(w.words.pools.ledgers, "tenant", 7, (1, 0))),
]  # fmt: skip
CASES.update({name: (check, words, scribble) for name, check, words, scribble in ONE_WORD})
