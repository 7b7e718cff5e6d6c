"""What the cycle collector looks at: operations that wait are many, and hardly ever garbage."""

import gc
import weakref

import pytest

from local_wheel import LocalTimers, LocalWheel
from purgatory_ops import Op
from wheeld_client import DelayedOperation, Purgatory

MANY = 10_000
"""From so many on a worker that is in use is taken for alive."""


class Bare(DelayedOperation):
    """Holds something that the collector tracks."""

    def __init__(self, thing: list[object]) -> None:
        super().__init__(None)
        self.thing = thing

    def try_complete(self) -> bool:
        return False


def fill(purgatory: Purgatory, count: int) -> list[list[object]]:
    things: list[list[object]] = [[number] for number in range(count)]
    for thing in things:
        purgatory.try_complete_else_watch(Bare(thing), ["k"])
    return things


def looked_at(timers: LocalTimers) -> int:
    return len(gc.get_referents(timers))


@pytest.mark.parametrize("call", ["check", "watch", "dispatch", "poll"])
def test_many_of_a_worker_in_use(wheel: LocalWheel, call: str) -> None:
    timers = wheel.worker(0)
    purgatory = Purgatory(timers, "p")
    things = fill(purgatory, MANY)
    calls = {
        "check": lambda: purgatory.check_and_complete("other"),
        "watch": lambda: purgatory.try_complete_else_watch(Op(None), ["other"]),
        "dispatch": timers.dispatch,
    }
    for _ in range(2):
        gc.collect()
        gc.collect()
        assert looked_at(timers) >= MANY
        calls.get(call, timers.poll)()
        for _ in range(3):
            gc.collect(0)
            gc.collect(1)
        gc.collect()
        assert (looked_at(timers) >= MANY) is (call == "poll")
    assert [thing[0] for thing in things] == list(range(MANY))
    assert len(purgatory.shutdown()) >= MANY


def test_few_are_always_looked_at(wheel: LocalWheel) -> None:
    timers = wheel.worker(0)
    purgatory = Purgatory(timers, "p")
    fill(purgatory, MANY - 1)
    gc.collect()
    assert looked_at(timers) >= MANY - 1
    timers.cycle = [timers, purgatory]  # type: ignore[attr-defined]
    watcher = weakref.ref(timers)
    del timers, purgatory
    gc.collect()
    assert watcher() is None


def test_many_that_are_forgotten(wheel: LocalWheel) -> None:
    timers = wheel.worker(0)
    purgatory = Purgatory(timers, "p")
    for thing in fill(purgatory, MANY):
        thing.append(timers)
    thing = [Purgatory]
    watcher, held = weakref.ref(timers), weakref.ref(purgatory)
    del timers, purgatory, thing
    gc.collect()
    gc.collect()
    assert watcher() is None
    assert held() is None
