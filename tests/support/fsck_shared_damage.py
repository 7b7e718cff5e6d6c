"""Damage to what all workers write, as in fsck_damage.py: watched keys and memory pools."""

import numpy as np

from fsck_damage import CASES, case
from fsck_wheels import FullWheel
from wheeld_core.packing import USED_BYTES, USED_ROW, used_word
from wheeld_core.views import record

__all__ = ["BEFORE", "CASES"]

BEFORE = len(CASES)
"""The cases from this index on are those of this file."""


@case("headers", "watch: row_count 5, expected 4")
def watch_of_other_rows(w: FullWheel) -> None:
    record(w.shared("watch"), "watch")["row_count"] += 1


@case("headers", "watch: directory_off")
def directory_elsewhere(w: FullWheel) -> None:
    record(w.shared("watch"), "watch")["directory_off"] = 0


@case("headers", "pools: pool_count 17, expected at most 16")
def too_many_pools(w: FullWheel) -> None:
    record(w.shared("pools"), "pools")["pool_count"] = 17


@case("headers", "pools: ledger_count 3, expected 5")
def too_few_ledgers(w: FullWheel) -> None:
    record(w.shared("pools"), "pools")["ledger_count"] = 3


# -- watch -----------------------------------------------------------------------------------------


@case("watch", "row 2: watches 2 buckets (9, 700), but no worker is there")
def watches_from_a_free_row(w: FullWheel) -> None:
    w.words.watch_bucket(2, 9)
    w.words.watch_bucket(2, 700)


@case("watch", "row 63: watches 1 buckets (0), which does not exist")
def watches_from_beyond_the_table(w: FullWheel) -> None:
    w.words.watch_bucket(63, 0)


@case("watch", "a (row 0): `any` is 7")
def impossible_any(w: FullWheel) -> None:
    w.words.watch.rows["any"][0] = 7


@case("watch", "b (row 1): the watch directory belongs to incarnation 9, the worker table says 2")
def watcher_of_another_time(w: FullWheel) -> None:
    w.words.watch.rows["tenant"][1] = 9


@case("watch", "belongs to incarnation 4, the worker table says nobody")
def watcher_in_a_free_row(w: FullWheel) -> None:
    w.words.watch.rows["tenant"][3] = 4


@case("watch", "row 3: 2 changes are noted, but no worker is there")
def notes_of_nobody(w: FullWheel) -> None:
    w.words.watch.rows["notes"][3, 5] = 7
    w.words.watch.rows["everything"][3] = 1


@case("watch", "a (row 0): it names a note or a place that does not exist")
def impossible_note(w: FullWheel) -> None:
    w.words.watch.rows["notes"][0, 0] = 65537


@case("watch", "b (row 1): it names a note or a place that does not exist")
def impossible_place(w: FullWheel) -> None:
    w.words.watch.rows["touching"][1] = 32769


# -- words -----------------------------------------------------------------------------------------


@case("words", "word places 5 (1): each is empty, but has a check or a value")
def value_of_nobody(w: FullWheel) -> None:
    w.words.watch.sets["values"][0, 5] = 1


@case("words", "word places 16, 17 (2): each is in no valid state")
def places_in_no_state(w: FullWheel) -> None:
    w.words.watch.sets["tags"][1, :2] = 5 | 1 << 53


@case("words", "word places 0 (1): each has no state, but a name")
def a_name_alone(w: FullWheel) -> None:
    w.words.watch.sets["tags"][0, 0] = 8


@case("words", "word places 0 (1): each belongs to a key, but its name is half written")
def half_a_name(w: FullWheel) -> None:
    w.words.watch.sets["tags"][0, 0] = 8 | 1


@case("words", "word places 0 (1): each belongs to a key whose word must be in another set")
def word_in_a_wrong_set(w: FullWheel) -> None:
    w.words.watch.sets["tags"][0, 0] = 1 << 53 | 1
    w.words.watch.sets["checks"][0, 0] = 2 << 53 | 1


@case("words", "1 keys have two words")
def key_with_two_words(w: FullWheel) -> None:
    w.words.watch.sets["tags"][0, :2] = 8 | 1
    w.words.watch.sets["checks"][0, :2] = 1
    w.words.watch.sets["values"][0, :2] = [4, 5]


# -- pools -----------------------------------------------------------------------------------------


@case("pools", "pool requests: 449 bytes are out by its own count, 450 by the ledgers")
def lost_byte(w: FullWheel) -> None:
    w.words.pools.pools["used"][0] -= np.uint64(USED_BYTES.put(1))


@case("pools", "pool small: 1,000 bytes are out by its own count, 990 by the ledgers")
def emptied_ledger(w: FullWheel) -> None:
    w.words.pools.ledgers["odd"][1, 0] = 0


@case("pools", "pool small: 1,010 bytes are out, expected at most 1,000")
def more_than_there_is(w: FullWheel) -> None:
    w.words.change(0, 10, 1)


@case("pools", "has 5 bytes, but no worker is there")
def bytes_in_a_free_row(w: FullWheel) -> None:
    w.words.change(3, 5)


@case("pools", "a (row 0) has -7 bytes, which is impossible")
def less_than_nothing(w: FullWheel) -> None:
    w.words.change(0, -257)


@case("pools", "b (row 1) has 1,099,511,627,776 bytes, which is impossible")
def more_than_can_be(w: FullWheel) -> None:
    w.words.pools.ledgers["odd"][0, 1] = 1 << 40


@case("pools", "a (row 0) has begun 2 changes, but number 3 is recorded as made")
def made_before_it_was_begun(w: FullWheel) -> None:
    w.words.pools.ledgers["made"][0, 0] = 3


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


@case("pools", "the bytes of a (row 0) were being returned when the supervisor died")
def reaping_done(w: FullWheel) -> None:
    w.words.reap(0, "done")


@case("pools", "row 2 waits for memory, but no worker is there")
def waits_in_a_free_row(w: FullWheel) -> None:
    w.words.wait_in_line(2, 1, 1)


@case("pools", "row 40 waits for memory, but does not exist")
def waits_beyond_the_table(w: FullWheel) -> None:
    w.words.pools.waiters[0, 0] |= np.uint64(1 << 40)


@case("pools", "b (row 1) waits with ticket 6, but only 5 were issued")
def ticket_of_nobody(w: FullWheel) -> None:
    w.words.pools.ledgers["ticket"][1, 1] = 6


@case(
    "pools", "pool small: a (row 0): its ledger belongs to incarnation 7, the worker table says 1"
)
def borrower_of_another_time(w: FullWheel) -> None:
    w.words.pools.ledgers["tenant"][1, 0] = 7
