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
from option_lives import OptionLives
from wheeld_client import payload_of
from wheeld_core.errors import KeyInUse

WORKERS = 3
KEYS: list[Any] = ["a", b"a", 1, ("a", 1), "x" * 100]
rows = st.integers(0, WORKERS - 1)
keys = st.sampled_from(KEYS)
delays = st.integers(1, 60)
which = st.integers(0, 50)
ROOM = 16
SIZES = [0, ROOM, 100, 3000, 60_000]
PAUSED = 10**9
CONFLICTS: list[Any] = ["raise", "keep", "replace", "later", "earlier"]


@dataclass
class Held:
    """The timer that has a key; times in ms."""

    id: int
    cookie: int
    row: int
    due: int
    period: int
    left: int | None = None
    """Time that was left when it was paused; None: it is not paused."""


def payload(cookie: int, size: int) -> bytes:
    return bytes([cookie % 256]) * size


def named(timer: Held, key: Any, by_id: bool) -> dict[str, Any]:
    return {"id": timer.id} if by_id else {"key": key}


class KeyMachine(RuleBasedStateMachine):
    """Promise: a key names the timer that a dictionary has for it; each event is of one that the
    dictionary held until it was due, and comes once, with its payload. Any worker moves, pauses and
    ends any timer, by its key or its id. The heap has the payloads of pending timers only."""

    @initialize()
    def begin(self) -> None:
        self.wheel = LocalWheel(1024, WORKERS, payload_bytes=ROOM, heap_chunks=64)
        self.workers: list[LocalTimers] = [self.wheel.worker(row) for row in range(WORKERS)]
        self.held: dict[Any, Held] = {}
        self.due: list[set[tuple[int, int]]] = [set() for _ in range(WORKERS)]
        self.sizes: dict[int, int] = {}
        self.now, self.serial = 0, 0

    @rule(
        row=rows,
        key=keys,
        delay=delays,
        how=st.sampled_from(CONFLICTS),
        periodic=st.sampled_from([False, False, True]),
        size=st.sampled_from(SIZES),
    )
    def schedule(self, row: int, key: Any, delay: int, how: Any, periodic: bool, size: int) -> None:
        self.serial += 1
        self.sizes[self.serial] = size
        old, due = self.held.get(key), self.now + delay
        period = delay if periodic else 0
        options: dict[str, Any] = {"interval": period / 1000} if periodic else {}

        def call() -> int:
            return self.workers[row].schedule(
                delay / 1000,
                self.serial,
                key=key,
                on_conflict=how,
                payload=payload(self.serial, size),
                **options,
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
            before = PAUSED if old.left is not None else old.due
            later = max(before, due) if how == "later" else min(before, due)
            if later != before:
                old.due, old.left = later, None

    @rule(row=rows, key=keys)
    def cancel(self, row: int, key: Any) -> None:
        assert self.workers[row].cancel(key=key) == (self.held.pop(key, None) is not None)

    def pick(self, n: int) -> Any:
        """A key; mostly one that has a timer."""
        taken = [key for key in KEYS if key in self.held]
        return taken[n % len(taken)] if n % 4 and taken else KEYS[n % len(KEYS)]

    @rule(row=rows, n=which, delay=delays, by_id=st.booleans())
    def reschedule(self, row: int, n: int, delay: int, by_id: bool) -> None:
        key = self.pick(n)
        timer, move = self.held.get(key), self.workers[row].reschedule
        if timer is not None and by_id:
            assert move(timer.id, delay / 1000)
        else:
            assert move(delay=delay / 1000, key=key) == (timer is not None)
        if timer is not None:
            timer.due, timer.left = self.now + delay, None

    @rule(row=rows, n=which, by_id=st.booleans(), by=delays)
    def pause(self, row: int, n: int, by_id: bool, by: int) -> None:
        """Of those that fire once. Time goes on, in which it would have been due."""
        key = self.pick(n)
        timer = self.held.get(key)
        if timer is None:
            assert not self.workers[row].pause(key=key)
        elif not timer.period:
            assert self.workers[row].pause(**named(timer, key, by_id))
            timer.left = timer.due - self.now if timer.left is None else timer.left
        self.advance(by)

    @rule(row=rows, n=which, by_id=st.booleans())
    def resume(self, row: int, n: int, by_id: bool) -> None:
        key = self.pick(n)
        timer = self.held.get(key)
        if timer is not None:
            assert self.workers[row].resume(**named(timer, key, by_id))
            if timer.left is not None:
                timer.due, timer.left = self.now + timer.left, None

    @rule(by=delays)
    def advance(self, by: int) -> None:
        """Tick by tick, so that no tick of a periodic timer is missed."""
        for _ in range(by):
            self.now += 1
            self.wheel.advance(MS)
            for key, timer in list(self.held.items()):
                if timer.due == self.now and timer.left is None:
                    self.due[timer.row].add((timer.cookie, timer.due))
                    timer.due += timer.period
                    if not timer.period:
                        del self.held[key]
            self.read()

    def read(self) -> None:
        for row, timers in enumerate(self.workers):
            events = timers.poll(0.0)
            came = [(int(e["cookie"]), self.now) for e in events]
            for event in events:
                cookie = int(event["cookie"])
                assert payload_of(event) == payload(cookie, self.sizes[cookie])
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
        sizes = [self.sizes[timer.cookie] for timer in self.held.values()]
        assert self.workers[0]._heap_bytes() == sum(size for size in sizes if size > ROOM)
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


@pytest.mark.parametrize("life", range(60))
def test_random_lives_with_all_options(life: int, rng_seed: int) -> None:
    OptionLives(rng_seed + life).play(60)
