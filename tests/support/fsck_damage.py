"""Every kind of damage that fsck is known to find: scribbles on a FullWheel, by the check that must
name them."""

from collections.abc import Callable
from typing import Any

import numpy as np

from fsck_wheels import LANE, FullWheel, completions, lanes, occupancy, returns, summary, worker
from local_wheel import LocalWheel
from wheeld_core import _native, packing
from wheeld_core.views import record


def link(w: LocalWheel, slot: int) -> Any:
    return w.view.links[slot]


def head_of(w: FullWheel, name: str) -> int:
    return w.view.capacity + int(link(w, w.slot[name])["list"])


def put_state(w: LocalWheel, slot: int, gen: int, phase: int) -> None:
    w.slots.states[slot] = packing.state(gen, phase)


def stage(w: LocalWheel, slot: int, number: int, row: int = 1, position: int = 0) -> None:
    link(w, slot)["completion"] = packing.completion(number, row, position)


def count_linked(w: LocalWheel, index: int, more: int) -> None:
    if index < w.view.header["lists"] - 2 * w.max_workers:
        for counts, at in ((w.view.header, ()), (lanes(w), index // LANE)):
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


Scribble = Callable[[FullWheel], None]
CASES: dict[str, tuple[str, str, Scribble]] = {}


def case(check: str, expected: str) -> Callable[[Scribble], Scribble]:
    def add(scribble: Scribble) -> Scribble:
        CASES[scribble.__name__] = (check, expected, scribble)
        return scribble

    return add


# -- headers, rows, rings --------------------------------------------------------------------------


@case("headers", "impossible sizes")
def capacity_of_half_a_slab(w: FullWheel) -> None:
    w.view.header["capacity"] += 1


@case("headers", "wheel: slab_count 128, expected 129")
def capacity_of_another_wheel(w: FullWheel) -> None:
    w.view.header["capacity"] += 64


@case("headers", "slots: states_off")
def offset_changed(w: FullWheel) -> None:
    record(w.slots_memory, "slots")["states_off"] += 64


@case("headers", "registry: row_count")
def rows_changed(w: FullWheel) -> None:
    record(w.registry_memory, "registry")["row_count"] += 1


ROWS: list[tuple[str, int, dict[str, object], str]] = [
    ("row_state", 1, {"state": 9}, "state 9"),
    ("two_names", 1, {"name": b"a"}, "the same name"),
    ("nameless", 0, {"name": b""}, "no name"),
    ("two_incarnations", 3, {"name": b"c", "incarnation": 2, "state": 1}, "incarnation 2"),
    ("no_incarnation", 3, {"name": b"c", "state": 1}, "no incarnation"),
    ("on_death", 1, {"on_death": 5}, "on_death 5"),
    ("group", 1, {"groups": 1 << 40}, "a group without a name"),
]


def _add_rows() -> None:
    for name, row, fields, words in ROWS:

        def scribble(w: FullWheel, row: int = row, fields: dict[str, object] = fields) -> None:
            for field, value in fields.items():
                w.row(row)[field] = value

        CASES[name] = ("rows", words, scribble)


_add_rows()


@case("rows", "but the clock serves 77")
def served(w: FullWheel) -> None:
    w.view.lines["incarnation"][1] = 77


@case("rings", "submission ring of 1,024")
def submission_ring_overfull(w: FullWheel) -> None:
    worker(w, 0)["sub_tail"] += 1025


@case("rings", "return ring")
def return_ring_head_beyond(w: FullWheel) -> None:
    worker(w, 1)["ret_head"] += 1


@case("rings", "completion ring")
def completion_ring_overfull(w: FullWheel) -> None:
    worker(w, 0)["comp_head"] -= 1


# -- lists, bitmaps, buckets -----------------------------------------------------------------------


@case("lists", "which is in bucket 2 of level 2 in lane 1 and follows the head")
def own_next(w: FullWheel) -> None:
    link(w, w.slot["near"])["next"] = w.slot["near"]


@case("lists", "which does not exist")
def wild_next(w: FullWheel) -> None:
    link(w, w.slot["soon"])["next"] = 0x7FFFFFFF


@case("lists", "the head of bucket")
def head_next(w: FullWheel) -> None:
    link(w, head_of(w, "near"))["next"] = w.slot["soon"]


@case("lists", "follows slot")
def wrong_prev(w: FullWheel) -> None:
    link(w, w.slot["third"])["prev"] = w.slot["near"]


@case("lists", "no list")
def out_of_list(w: FullWheel) -> None:
    link(w, w.slot["soon"])["list"] = _native.NIL


@case("lists", "bucket 9 of level 1 in lane 1")
def other_list(w: FullWheel) -> None:
    link(w, w.slot["soon"])["list"] = LANE + 64 + 9


@case("lists", "): is in list 70000")
def no_such_list(w: FullWheel) -> None:
    link(w, w.slot["third"])["list"] = 70000


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


@case("linked", "the header says")
def linked_count(w: FullWheel) -> None:
    w.view.header["linked"] += 1


@case("linked", "timers are in buckets of lane 1, its count is")
def lane_count(w: FullWheel) -> None:
    lanes(w)["linked"][1] -= 1


@case("buckets", "does not fit due time")
def due_changed(w: FullWheel) -> None:
    link(w, w.slot["far"])["due"] -= 80_000 * 10**9


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


@case("owners", "is armed, in a slab that nobody owns")
def given_back_too_early(w: FullWheel) -> None:
    put_state(w, LAST, 1, 1)


@case("owners", "of level 4 in lane 1, in a slab that nobody owns")
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


@case("slots", "armed, but linked nowhere")
def dropped_out(w: FullWheel) -> None:
    unlink(w, w.slot["near"])


@case("slots", "armed, but linked nowhere")
def not_endless(w: FullWheel) -> None:
    w.slots.slots["interval"][w.slot["endless"]] = 10**9


@case("slots", "has stage expiration waits, but is in no list")
def waits_nowhere(w: FullWheel) -> None:
    unlink(w, w.slot["waiting"])


@case("slots", "completion ring, which ends before that")
def unpublished_completion(w: FullWheel) -> None:
    stage(w, w.slot["read"], 6, position=int(w.view.lines["comp_tail"][1]))


@case("slots", "return ring, which ends before that")
def unpublished_return(w: FullWheel) -> None:
    put_state(w, w.slot["read"], 1, 2)
    stage(w, w.slot["read"], 7, position=int(w.view.lines["ret_tail"][1]) + 5)


@case("leaks", "waits to be returned, but a (row 0)'s line does not say so")
def flag_off(w: FullWheel) -> None:
    w.view.lines["backlog"][0] = 0


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
     "of level 2 in lane 1, with stage reclaimed"),
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


def _add_told() -> None:
    for name, check, timer, state, record_stage, words in TOLD:

        def scribble(
            w: FullWheel,
            timer: str = timer,
            state: tuple[int, int] | None = state,
            record_stage: tuple[int, int] | None = record_stage,
        ) -> None:
            if state is not None:
                put_state(w, w.slot[timer], *state)
            if record_stage is not None:
                stage(w, w.slot[timer], *record_stage)

        CASES[name] = (check, words, scribble)


_add_told()


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
