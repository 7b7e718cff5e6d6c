"""fsck on memory that nobody writes: a whole wheel is clean, each kind of damage is named alone."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from fsck_damage import CASES, append, link, put_state, stage, unlink
from fsck_wheels import FullWheel, Local, check, completions, damaged, returns
from local_wheel import MS, LocalWheel
from proofs import sanitize
from wheeld.fsck import run as fsck
from wheeld_core import _native
from wheeld_core.packing import Phase, Stage

ALL = ("headers", *fsck.CHECKS, "counts", "offences")


def test_a_whole_wheel_is_clean(wheel: FullWheel) -> None:
    report = check(wheel)
    assert damaged(report) == {}
    assert [result.name for result in report.checks] == list(ALL)
    assert {result.status for result in report.checks} == {"ok"}
    looked = {result.name: result.looked_at for result in report.checks}
    assert looked["completions"] == 1024 + 1  # one ring is full, one has the loan
    assert looked["returns"] == 1024
    assert min(looked.values()) > 0
    counts = report.counts
    assert counts["pending"] + counts["in_flight"] + counts["free"] == counts["owned"]
    assert counts["pending"] == wheel.a.pending + wheel.b.pending
    assert "clean" in report.summary()


def test_the_full_wheel_has_every_state(wheel: FullWheel) -> None:
    stages = {name: int(link(wheel, slot)["completion"] >> 60) for name, slot in wheel.slot.items()}
    expected = {
        "near": 0, "periodic": 1, "endless": 1, "out": 6, "read": 6, "lent": 5, "back": 7,
        "waiting": 3, "wanted": 3, "queued": 4,
    }  # fmt: skip
    assert {name: stages[name] for name in expected} == expected
    assert link(wheel, wheel.slot["endless"])["list"] == _native.NIL
    assert link(wheel, wheel.slot["leaving"])["list"] != _native.NIL
    phases = wheel.slots.phases()
    assert [int(phases[wheel.slot[n]]) for n in ("submitted", "unseen", "leaving")] == [1, 2, 2]


def test_a_slot_between_a_dead_worker_and_its_successor(wheel: FullWheel) -> None:
    before = check(wheel).counts
    link(wheel, wheel.slot["read"])["completion"] = Stage.HANDED << 60
    report = check(wheel)
    assert damaged(report) == {}
    moved = {name: report.counts[name] - before[name] for name in ("in_flight", "free", "owned")}
    assert moved == {"in_flight": 1, "free": -1, "owned": 0}


@pytest.mark.parametrize("name", CASES)
def test_damage_is_named_and_nothing_else(wheel: FullWheel, name: str) -> None:
    expected, words, scribble = CASES[name]
    scribble(wheel)
    report = check(wheel)
    found = damaged(report)
    assert list(found) == [expected], found
    assert any(words in text for text in found[expected]), found
    assert "damaged" in report.summary()


def test_every_check_has_a_case() -> None:
    assert {check for check, *_ in CASES.values()} == set(ALL) - {"counts", "offences"}


def test_slots_are_named_with_id_and_owner(wheel: FullWheel) -> None:
    put_state(wheel, wheel.slot["near"], 1, 3)
    (example,) = next(c for c in check(wheel).checks if c.damage).examples
    slot = wheel.slot["near"]
    assert (example.slot, example.id, example.owner) == (slot, 1 << 32 | slot, "b (row 1)")


def test_offences_are_a_note(wheel: FullWheel) -> None:
    wheel.view.ports["offences"][1] = 12
    report = check(wheel)
    assert report.damage == 0
    note = report.checks[-1]
    assert (note.name, note.status) == ("offences", "note")
    assert "b (row 1): 12 submissions" in note.examples[0].text


def test_nobody_reads_what_a_departing_worker_left(wheel: FullWheel) -> None:
    completions(wheel, 0)["id"][9] = 77 << 32 | 3
    returns(wheel, 0)[9] = 3
    assert list(damaged(check(wheel))) == ["completions", "returns"]
    wheel.row(0)["state"] = 3
    assert damaged(check(wheel)) == {}


def test_many_damaged_slots_are_counted(wheel: FullWheel) -> None:
    wheel.slots.states[:] = wheel.slots.states & ~np.uint64(0xFF) | np.uint64(9)
    result = next(c for c in check(wheel).checks if c.name == "slots")
    assert result.damage >= 2048
    assert len(result.examples) == 5


def test_only_what_stays_is_reported_of_a_living_wheel(wheel: FullWheel) -> None:
    class Healing(Local):
        looks = 0

        def memories(self) -> Any:
            self.looks += 1
            put_state(wheel, wheel.slot["near"], 1, 3 if self.looks == 1 else 1)
            return super().memories()

    healing = Healing(wheel, racing=True)
    report = fsck.examine(healing, "local")
    assert (report.damage, report.looks, report.live) == (0, 2, True)
    put_state(wheel, wheel.slot["near"], 1, 3)
    report = fsck.examine(Local(wheel, racing=True), "local")
    assert (report.damage, report.looks) == (1, len(fsck.PAUSES) + 1)


def test_moving_damage_is_not_reported_of_a_living_wheel(wheel: FullWheel) -> None:
    class Moving(Local):
        looks = 0

        def memories(self) -> Any:
            self.looks += 1
            wheel.slots.states[wheel.slot["near"]] = 1 << 32 | self.looks << 8 | 3
            return super().memories()

    assert fsck.examine(Moving(wheel, racing=True), "local").damage == 0


@pytest.mark.parametrize("position", [2**64 - 3, 2**48 - 3, 2**47, 0])
def test_rings_and_ticks_near_their_wraps(position: int) -> None:
    with LocalWheel(start_ns=63 * MS) as wheel:
        wheel.start_rings_at(0, position)
        timers = wheel.worker(0)
        for _ in range(4):
            cancelled = timers.schedule(60.0)
            timers.schedule_many(np.full(3, 0.001))
            timers.cancel(cancelled)
            wheel.advance(2 * MS)
            assert damaged(check(wheel)) == {}
            assert len(timers.poll()) == 3
            assert damaged(check(wheel)) == {}


@pytest.mark.parametrize("wheel_bits", [1, 4, 6, 8, 12])
def test_wheels_of_every_shape(wheel_bits: int) -> None:
    with LocalWheel(wheel_bits=wheel_bits, start_ns=2**62) as wheel:
        timers = wheel.worker(0)
        timers.schedule_many(np.geomspace(0.001, 1e9, 500))
        wheel.settle()
        for step in (MS, 777 * MS, 10**12):
            wheel.advance(step)
            timers.poll()
            assert damaged(check(wheel)) == {}


TABLE = (sanitize.INCLUDE / "wheeld" / "shared" / "states.h").read_text()
ROWS = re.findall(r"^ \*  (S\d+) *\| ([\w ]+?) *\| same +\| ([A-Z_, ]+?) *\| (.*)$", TABLE, re.M)
PLACES = ("home", "queue", "backlog", "loans")
"""Where an unlinked slot and one in the list of a worker stand; buckets are for what is armed."""


def told(place: str) -> set[tuple[Phase, Stage]]:
    found = set()
    for _, phase, stages, where in ROWS:
        phases = {Phase.NEVER, Phase.CANCELLED, Phase.FIRED, Phase.DONE}
        if phase != "not ARMED":
            phases = {Phase[phase]}
        for name in stages.split(", "):
            if name == "WAIT_EXPIRE":
                here = place == "backlog"
            elif name == "OFFERED":
                here = place == "loans"
            else:
                here = place in where.split(":")[0]
            found |= {(each, Stage[name]) for each in phases if here}
    return found


def accepted(wheel: FullWheel, place: str) -> set[tuple[Phase, Stage]]:
    slot, row, found = wheel.slot["read"], 0, set()
    buckets = int(wheel.view.header["lists"]) - 3 * wheel.max_workers
    if place in ("backlog", "loans"):
        append(wheel, slot, buckets + row + wheel.max_workers * (place == "loans"))
    for phase in Phase:
        for each in Stage:
            generation = int(phase != Phase.NEVER)
            put_state(wheel, slot, generation, phase)
            link(wheel, slot)["gen"] = generation
            stage(wheel, slot, each, row=row, position=0)
            if not {"slots", "leaks"} & damaged(check(wheel)).keys():
                found.add((phase, each))
    if link(wheel, slot)["list"] != _native.NIL:
        unlink(wheel, slot)
    return found


def test_each_phase_with_each_stage() -> None:
    assert [row[0] for row in ROWS] == [f"S{n}" for n in range(1, 19) if n not in (2, 5)]
    with FullWheel() as wheel:
        assert accepted(wheel, "home") == told("home") | told("queue")
        for place in ("backlog", "loans"):
            assert accepted(wheel, place) == told(place), place
