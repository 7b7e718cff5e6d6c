"""Timers by key and a dictionary, as a state machine of random calls."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, settings, strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from local_wheel import DROP, KEEP, MS, LocalTimers, LocalWheel
from wheeld_core.errors import KeyInUse

WORKERS = 3
KEYS: list[Any] = ["a", b"a", 1, ("a", 1), "x" * 100]
rows = st.integers(0, WORKERS - 1)
keys = st.sampled_from(KEYS)
delays = st.integers(1, 60)
CONFLICTS: list[Any] = ["raise", "keep", "replace", "later", "earlier"]


@dataclass
class Held:
    """The timer that has a key; times in ms."""

    id: int
    cookie: int
    row: int
    due: int
    period: int


class KeyMachine(RuleBasedStateMachine):
    """Promise: a key names the timer that a dictionary has for it; each event is of one that the
    dictionary held until it was due, and comes once."""

    @initialize()
    def begin(self) -> None:
        self.wheel = LocalWheel(1024, WORKERS, payload_bytes=16)
        self.workers: list[LocalTimers] = [self.wheel.worker(row) for row in range(WORKERS)]
        self.held: dict[Any, Held] = {}
        self.due: list[set[tuple[int, int]]] = [set() for _ in range(WORKERS)]
        self.now, self.serial = 0, 0

    @rule(row=rows, key=keys, delay=delays, how=st.sampled_from(CONFLICTS), periodic=st.booleans())
    def schedule(self, row: int, key: Any, delay: int, how: Any, periodic: bool) -> None:
        self.serial += 1
        old, due = self.held.get(key), self.now + delay
        period = delay if periodic else 0
        options: dict[str, Any] = {"interval": period / 1000} if periodic else {}

        def call() -> int:
            return self.workers[row].schedule(
                delay / 1000, self.serial, key=key, on_conflict=how, **options
            )

        if old is not None and how == "raise":
            with pytest.raises(KeyInUse) as refused:
                call()
            assert refused.value.id == old.id
            return
        id = call()
        if old is None or how == "replace":
            self.held[key] = Held(id, self.serial, row, due, period)
            return
        assert id == old.id
        if how != "keep":
            old.due = max(old.due, due) if how == "later" else min(old.due, due)

    @rule(row=rows, key=keys)
    def cancel(self, row: int, key: Any) -> None:
        assert self.workers[row].cancel(key=key) == (self.held.pop(key, None) is not None)

    @rule(row=rows, key=keys, delay=delays)
    def reschedule(self, row: int, key: Any, delay: int) -> None:
        assert self.workers[row].reschedule(delay=delay / 1000, key=key) == (key in self.held)
        if key in self.held:
            self.held[key].due = self.now + delay

    @rule(by=delays)
    def advance(self, by: int) -> None:
        """Tick by tick, so that no tick of a periodic timer is missed."""
        for _ in range(by):
            self.now += 1
            self.wheel.advance(MS)
            for key, timer in list(self.held.items()):
                if timer.due == self.now:
                    self.due[timer.row].add((timer.cookie, timer.due))
                    timer.due += timer.period
                    if not timer.period:
                        del self.held[key]
            self.read()

    def read(self) -> None:
        for row, timers in enumerate(self.workers):
            events = timers.poll(0.0)
            came = [(int(e["cookie"]), self.now) for e in events]
            assert len(set(came)) == len(came)
            assert set(came) == self.due[row]
            self.due[row].clear()

    @rule(row=rows, keep=st.booleans())
    def die(self, row: int, keep: bool) -> None:
        self.wheel.settle()
        self.wheel.depart(row, KEEP if keep else DROP)
        self.wheel.settle()
        if keep:
            self.workers[row] = self.wheel.successor(row)
        else:
            self.held = {key: timer for key, timer in self.held.items() if timer.row != row}
            self.workers[row] = self.wheel.worker(row)

    @rule()
    def restart_clock(self) -> None:
        self.wheel.restart_clock()

    @invariant()
    def keys_are_named(self) -> None:
        for key in KEYS:
            timer = self.held.get(key)
            id = self.workers[0]._find(key)
            assert id == (timer.id if timer else 0)
            assert timer is None or self.workers[1]._key_of(timer.id) == key

    def teardown(self) -> None:
        if not hasattr(self, "wheel"):
            return
        for key in list(self.held):
            self.cancel(0, key)
        self.advance(61)
        self.wheel.close()


def test_keys_agree_with_a_dictionary() -> None:
    run_state_machine_as_test(
        KeyMachine,
        settings=settings(
            max_examples=200,
            stateful_step_count=30,
            deadline=None,
            print_blob=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
