"""The table of states in states.h is what fsck accepts: each phase with each stage."""

import re

from fsck_damage import append, link, put_state, stage, unlink
from fsck_wheels import FullWheel, check, damaged
from proofs import sanitize
from wheeld_core import _native
from wheeld_core.packing import Phase, Stage

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
    buckets = int(wheel.view.header["lists"]) - 2 * wheel.max_workers
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
    assert [row[0] for row in ROWS] == [f"S{n}" for n in range(1, 17) if n not in (2, 5)]
    with FullWheel() as wheel:
        assert accepted(wheel, "home") == told("home") | told("queue")
        for place in ("backlog", "loans"):
            assert accepted(wheel, place) == told(place), place
