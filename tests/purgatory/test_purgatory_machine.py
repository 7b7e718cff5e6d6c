"""The purgatory and its model, driven by the same random calls under virtual time."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, settings, strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from local_wheel import MS, LocalWheel
from purgatory_model import TICK, Model, Spec, act
from purgatory_ops import WatchView, bucket_of, loop_purgatories
from wheeld_client import DelayedOperation, Purgatory

WORKERS = 2
MOST = 60
"""Operations of one example."""
KEYS: list[Any] = ["a", b"a", 7, ("a", 7), "b"]

workers = st.integers(0, WORKERS - 1)
keys = st.sampled_from(KEYS)
picks = st.integers(0, 10**6)


class RealOperation(DelayedOperation):
    """Does what its Spec says."""

    def __init__(self, world: Real, spec: Spec) -> None:
        super().__init__(spec.timeout)
        self.world, self.spec = world, spec

    def try_complete(self) -> bool:
        self.world.log.append(("try", self.spec.id))
        if self.spec.fails:
            raise ZeroDivisionError
        return self.spec.ready and self.force_complete()

    def on_complete(self) -> None:
        self.world.log.append(("complete", self.spec.id))
        act(self.world, self.spec)

    def on_expiration(self) -> None:
        self.world.log.append(("expire", self.spec.id))


class Real:
    """The real side of the machine: two workers on a LocalWheel."""

    def __init__(self, loop: bool) -> None:
        self.wheel = LocalWheel(1024, WORKERS, TICK)
        self.timers = [self.wheel.worker(row) for row in range(WORKERS)]
        self.view = WatchView(self.wheel.shared("watch"))
        self.log: list[tuple[Any, ...]] = []
        self.operations: dict[int, RealOperation] = {}
        self.gone: dict[int, weakref.ref[RealOperation]] = {}
        self.stack = ExitStack()
        self.makers: list[Callable[[str], Purgatory]] = [
            self.stack.enter_context(loop_purgatories(timers))
            if loop
            else partial(Purgatory, timers)
            for timers in self.timers
        ]
        self.places = [self.make(worker) for worker in range(WORKERS)]
        self.buckets = {key: bucket_of(self.places[0], self.view, 0, key) for key in KEYS}
        assert len(set(self.buckets.values())) == len(KEYS)
        self.places[0].shutdown()
        self.places[0] = self.make(0)

    def make(self, worker: int) -> Purgatory:
        purgatory = self.makers[worker]("p")
        purgatory.exception_handler = self.report
        return purgatory

    def report(self, operation: DelayedOperation, error: BaseException) -> None:
        assert isinstance(operation, RealOperation)
        self.log.append(("reported", operation.spec.id, type(error).__name__))

    def watch(self, spec: Spec) -> bool:
        operation = self.operations.setdefault(spec.id, RealOperation(self, spec))
        return self.places[spec.worker].try_complete_else_watch(operation, spec.keys)

    def check(self, worker: int, key: Any) -> int:
        return self.places[worker].check_and_complete(key)

    def cancel(self, worker: int, key: Any) -> list[int]:
        return ids_of(self.places[worker].cancel_for_key(key))

    def force(self, id: int) -> bool:
        return id in self.operations and self.operations[id].force_complete()

    def renew(self, worker: int) -> list[int]:
        left = ids_of(self.places[worker].shutdown())
        self.places[worker] = self.make(worker)
        return left


def ids_of(operations: list[DelayedOperation]) -> list[int]:
    return [op.spec.id for op in operations if isinstance(op, RealOperation)]


def outcome(call: Any, *args: Any) -> Any:
    try:
        return call(*args)
    except Exception as error:
        return type(error).__name__


class PurgatoryMachine(RuleBasedStateMachine):
    """Promise: whatever is called in whatever order, also by callbacks, each operation completes
    once, is asked when the algorithm says so, and leaves wheel, keys and directory at once."""

    loop = False

    @initialize()
    def begin(self) -> None:
        self.real = Real(self.loop)
        self.model = Model(WORKERS, self.real.buckets)
        self.made = 0

    def spec(self, data: st.DataObject, worker: int, depth: int = 0) -> Spec:
        self.made += 1
        id = self.made
        ms = data.draw(st.one_of(st.none(), st.integers(1, 30), st.integers(1, 5)), "timeout")
        spec = Spec(
            id,
            worker,
            data.draw(st.lists(keys, min_size=1, max_size=3), "keys"),
            None if ms is None else ms / 1e3 + 3 * id / 1e6,
            data.draw(st.integers(0, 4), "ready") == 0,
            data.draw(st.integers(0, 7), "fails") == 0,
        )
        kinds = ["none"] * 3 + ["check", "cancel", "force", "raise"] + ["watch"] * (depth < 2)
        what = data.draw(st.sampled_from(kinds), "action")
        of: Any = None
        if what in ("check", "cancel"):
            of = data.draw(keys, "of")
        elif what == "force":
            of = data.draw(st.integers(1, max(1, id - 1)), "of")
            known = self.model.operations.get(of)
            ours = known and known.spec.worker == worker and known.state != "new"
            of = of if ours else 0
        elif what == "watch":
            of = self.spec(data, worker, depth + 1)
        spec.action = None if what == "none" else (what, of)
        return spec

    def both(self, call: str, *args: Any) -> None:
        wanted = outcome(getattr(self.model, call), *args)
        assert outcome(getattr(self.real, call), *args) == wanted

    def pick(self, number: int) -> int:
        known = list(self.model.operations)
        assume(known)
        return known[number % len(known)]

    # -- rules ------------------------------------------------------------

    @rule(data=st.data(), worker=workers)
    def watch(self, data: st.DataObject, worker: int) -> None:
        assume(self.made < MOST)
        self.both("watch", self.spec(data, worker))

    @rule(number=picks)
    def watch_again(self, number: int) -> None:
        id = self.pick(number)
        if id in self.real.operations:
            self.both("watch", self.model.operations[id].spec)

    @rule(number=picks, ready=st.booleans())
    def make_ready(self, number: int, ready: bool) -> None:
        self.model.operations[self.pick(number)].spec.ready = ready

    @rule(number=picks, fails=st.booleans())
    def make_fail(self, number: int, fails: bool) -> None:
        self.model.operations[self.pick(number)].spec.fails = fails

    @rule(worker=workers, key=keys)
    def check(self, worker: int, key: Any) -> None:
        self.both("check", worker, key)

    @rule(worker=workers, key=keys)
    def cancel(self, worker: int, key: Any) -> None:
        self.both("cancel", worker, key)

    @rule(number=picks)
    def force(self, number: int) -> None:
        id = self.pick(number)
        assume(self.model.operations[id].state != "new")
        if id in self.real.operations:
            self.both("force", id)
        else:
            assert self.model.force(id) is False

    @rule(ms=st.integers(0, 40))
    def advance(self, ms: int) -> None:
        self.model.now += ms * MS
        self.real.wheel.advance(ms * MS)

    @rule(worker=workers)
    def dispatch(self, worker: int) -> None:
        self.model.dispatch(worker)
        assert len(self.real.timers[worker].dispatch()) == 0

    @rule()
    def collect(self) -> None:
        gc.collect(1)

    @rule(worker=workers)
    def renew(self, worker: int) -> None:
        self.both("renew", worker)

    # -- what always holds ------------------------------------------------------------

    @invariant()
    def logs_agree(self) -> None:
        if hasattr(self, "real"):
            assert self.real.log == self.model.log
            completed = [entry[1] for entry in self.real.log if entry[0] == "complete"]
            assert len(completed) == len(set(completed)), "completed twice"

    @invariant()
    def numbers_are_exact(self) -> None:
        if not hasattr(self, "real"):
            return
        for worker, place in enumerate(self.model.places):
            purgatory = self.real.places[worker]
            assert purgatory.watched == sum(map(len, place.links.values()))
            assert purgatory.num_delayed == len(place.waiting)
            assert self.real.timers[worker].pending == self.model.armed(worker)
            metrics = purgatory.metrics()
            assert {name: metrics[name] for name in place.counts} == place.counts

    @invariant()
    def directory_is_exact(self) -> None:
        if hasattr(self, "real"):
            for worker, place in enumerate(self.model.places):
                wanted = {self.real.buckets[key] for key in place.links}
                assert self.real.view.buckets(worker) == wanted

    @invariant()
    def nothing_is_pinned(self) -> None:
        if not hasattr(self, "real"):
            return
        for id, operation in self.model.operations.items():
            if id in self.real.operations:
                assert self.real.operations[id].state == operation.state
                if operation.state in ("completed", "cancelled"):
                    self.real.gone[id] = weakref.ref(self.real.operations.pop(id))
            if id in self.real.gone:
                assert not self.model.linked(operation)
                assert self.real.gone[id]() is None, f"operation {id} is pinned"

    def teardown(self) -> None:
        if not hasattr(self, "real"):
            return
        with self.real.wheel, self.real.stack:
            for worker in range(WORKERS):
                self.both("renew", worker)
            self.nothing_is_pinned()
            assert self.real.view.watched() == 0
            assert [timers.pending for timers in self.real.timers] == [0] * WORKERS
            self.real.wheel.settle()
            assert self.real.wheel.clock.check() == 0


class LoopMachine(PurgatoryMachine):
    loop = True


@pytest.mark.parametrize("machine", [PurgatoryMachine, LoopMachine])
def test_purgatory_agrees_with_model(machine: type[PurgatoryMachine]) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=30,
            stateful_step_count=40,
            deadline=None,
            print_blob=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
