"""A field of a timer is carried or excused: over a clock's death, to a successor, into a snapshot,
by fsck and by a trace. A field that is new to the layout and in no row of the table is found."""

from typing import Any

import numpy as np
import pytest

from local_wheel import REROUTE, LocalWheel
from wheeld.snapshot.contents import FIELDS
from wheeld_core.packing import OWNER_WORKER, STATE_GEN, STATE_PHASE, Phase
from wheeld_core.views import dtype_of

CARRIERS = ("recovery", "successor", "snapshot", "fsck", "trace")
CARRIED = {
    "slot.deadline": "recovery successor snapshot fsck trace",
    "slot.interval": "recovery successor snapshot fsck trace",
    "slot.cookie": "recovery successor snapshot trace",
    "slot.target": "recovery successor snapshot trace",
    "slot.payload_size": "recovery successor snapshot trace",
    "slot.flags": "recovery successor snapshot fsck trace",
    "state.state": "recovery successor snapshot fsck trace",
    "owner.owner": "recovery snapshot fsck trace",
    "link.gen": "recovery successor fsck",
    "link.completion": "recovery successor snapshot fsck",
    "link.due": "recovery successor snapshot fsck",
    "link.list": "fsck",
    "link.next": "fsck",
    "link.prev": "fsck",
}
EXCUSED = {
    ("slot.cookie", "fsck"): "any 64 bits are right",
    ("slot.target", "fsck"): "who is gone is nobody: its owner gets it",
    ("slot.payload_size", "fsck"): "whoever copies a payload cuts it to the room of a slot",
    ("owner.owner", "successor"): "it is what changes",
    ("link.gen", "snapshot"): "the next clock meets every timer anew",
    ("link.gen", "trace"): "the trace keeps a generation of its own, in traced.gen",
    ("link.completion", "trace"): "events are recorded when they come, not where they stand",
    ("link.due", "trace"): "the record has the due time of its own event",
    **{
        (f"link.{name}", carrier): "lists are made anew from the slots"
        for name in ("list", "next", "prev")
        for carrier in ("recovery", "successor", "snapshot", "trace")
    },
}


def test_each_field_is_in_the_table() -> None:
    fields = {
        f"{struct}.{name}"
        for struct in ("slot", "state", "owner", "link")
        for name in dtype_of(struct).names or ()
    }
    assert fields == set(CARRIED)
    for field in fields:
        excused = {carrier for name, carrier in EXCUSED if name == field}
        assert sorted([*CARRIED[field].split(), *excused]) == sorted(CARRIERS), field
    kept = {name for name in dtype_of("slot").names or () if "snapshot" in CARRIED[f"slot.{name}"]}
    assert kept == {*FIELDS, "target"}


@pytest.mark.parametrize("carrier", ["recovery", "successor"])
def test_what_is_carried_is_as_it_was(carrier: str, rng_seed: int) -> None:
    rng = np.random.default_rng(rng_seed)
    with LocalWheel(payload_bytes=65528, capacity=128) as wheel:
        first = wheel.worker(0, "first", group="team")
        wheel.worker(1, "second", group="team").poll(0)
        slot = first.schedule(1.0, payload=b"x") & 0xFFFFFFFF
        wheel.slots.slots.setflags(write=True)
        for name in dtype_of("slot").names or ():
            field = wheel.slots.slots[name][slot : slot + 1]
            field[:] = rng.integers(0, 256, field.itemsize, np.uint8).view(field.dtype)
        for name in ("deadline", "interval"):  # not due, and periodic
            wheel.slots.slots[name][slot] = wheel.slots.slots[name][slot] & 2**61 - 1 | 2**60
        wheel.slots.slots["flags"][slot] &= 0xFFF0  # on the base clock, not private, without a key
        wheel.settle()
        before = carried(wheel, slot)
        if carrier == "recovery":
            wheel.restart_clock()
        else:
            wheel.depart(0, REROUTE)
        wheel.settle()
        after = carried(wheel, slot)
        assert STATE_PHASE.of(after["state.state"]) == Phase.ARMED
        assert STATE_GEN.of(after["state.state"]) == after["link.gen"]
        assert OWNER_WORKER.of(after["owner.owner"]) == 1 + (carrier == "successor")
        for name, carriers in CARRIED.items():
            if carrier in carriers.split():
                assert after[name] == before[name], name


def carried(wheel: LocalWheel, slot: int) -> dict[str, Any]:
    found = {"state.state": wheel.slots.states[slot], "owner.owner": wheel.slots.owners[slot // 64]}
    found |= {
        f"slot.{name}": wheel.slots.slots[name][slot] for name in dtype_of("slot").names or ()
    }
    found |= {f"link.{name}": wheel.view.links[name][slot] for name in dtype_of("link").names or ()}
    return {name: int(value) for name, value in found.items()}
