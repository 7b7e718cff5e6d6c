"""Every native call of purgatories, and every way in which one refuses, for test_leaks."""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from local_wheel import MS
from purgatory_ops import Hooked, Op, Scripted
from wheeld_client import ClientClosed, Purgatory
from wheeld_core import _native

if TYPE_CHECKING:
    from leak_calls import Bench

KEYS: list[Any] = ["a", b"b", 3, 2**80, ("c", 4, b"d")]
"""As keys may be."""


class Places:
    def __init__(self, b: Bench) -> None:
        self.here, self.there = Purgatory(b.timers, "p"), Purgatory(b.other, "p")
        for place in (self.here, self.there):
            place.exception_handler = lambda op, error: None
        self.waiting = Op(1000.0)
        self.here.try_complete_else_watch(self.waiting, ["waiting"])
        self.over = Op(1.0)
        self.over.force_complete()
        self.cancelled = Op(1.0)
        self.here.try_complete_else_watch(self.cancelled, ["cancelled"])
        self.cancelled.cancel()


def complete(b: Bench) -> None:
    here = b.places.here
    here.try_complete_else_watch(Op(1.0, ready=True), KEYS)
    op = Op(1.0)
    here.try_complete_else_watch(op, KEYS)
    op.force_complete()
    op = Op(None)
    here.try_complete_else_watch(op, [*KEYS, *KEYS])
    op.ready = True
    assert here.check_and_complete(2**80) == 1
    b.wheel.clock.advance(b.wheel.now)


def trigger(b: Bench) -> None:
    op = Op(None)
    b.places.there.try_complete_else_watch(op, KEYS)
    op.ready = True
    b.places.here.check_and_complete("a")
    b.other.dispatch()
    assert op.is_completed


def expire(b: Bench) -> None:
    for op in (Op(0.0), Hooked(0.0, complete=lambda: 1 / 0, expire=lambda: 1 / 0)):
        b.places.here.try_complete_else_watch(op, KEYS)
    b.wheel.clock.advance(b.wheel.now + MS)
    b.timers.dispatch()
    b.timers._settle()


def cancel(b: Bench) -> None:
    for _ in range(2):
        b.places.here.try_complete_else_watch(Op(1.0), KEYS)
    assert len(b.places.here.cancel_for_key(3)) == 2
    op = Op(1.0)
    b.places.here.try_complete_else_watch(op, KEYS)
    op.cancel()
    with Purgatory(b.timers, "q") as place:
        place.try_complete_else_watch(Op(1.0), KEYS)
        assert len(place.shutdown(complete=True)) == 1
    with contextlib.suppress(ClientClosed):
        place.check_and_complete("a")
    b.wheel.clock.advance(b.wheel.now)


def drop(b: Bench) -> None:
    place = Purgatory(b.timers, "dropped")
    op = Op(5.0)
    del place, op
    _native.Purgatory.__new__(_native.Purgatory)
    _native.Operation.__new__(_native.Operation)


def err(b: Bench) -> None:
    ops = [Op(1.0), Op(1.0)]
    for op in ops:
        b.places.there.try_complete_else_watch(op, KEYS)
        op.error = ZeroDivisionError("x" * 500)
    b.places.here.check_and_complete("a")
    b.other.dispatch()
    with contextlib.suppress(ExceptionGroup):
        b.places.there.check_and_complete("a")
    assert len(b.places.there.cancel_for_key("a")) == 2
    b.wheel.clock.advance(b.wheel.now)


def seat(b: Bench) -> None:
    memory = mmap.mmap(-1, _native.watch_bytes(1))
    _native.create_watch(memory, 1, 0)


def seat_keys(b: Bench) -> None:
    size, _ = _native.keys_bytes(1, 64)
    memory = mmap.mmap(-1, size)
    _native.create_keys(memory, 1, 64, 0)
    _native.seat_keys(memory, 1, 64, 0, True)
    _native.wake_leases(memory, 1, 64)


def watch_raising(b: Bench, look: int) -> None:
    script: Any = lambda op: op.tries == look and bool(1 / 0)  # noqa: E731
    b.places.here.try_complete_else_watch(Scripted(script, 1.0), KEYS)


def grow(b: Bench) -> None:
    for number, key in enumerate(KEYS):
        assert b.places.here._grow(key, number + 1)
        assert b.places.there._word(key) == number + 1
        b.places.here._done(*b.places.here._change(key))
        assert b.places.there._forget(key)


def never_complete(b: Bench) -> None:
    b.places.here.try_complete_else_watch(Scripted(lambda op: True, 1.0), KEYS)


GOOD: dict[str, Callable[[Bench], Any]] = {
    "try_complete_else_watch": complete,
    "check_and_complete": trigger,
    "check_and_complete_many": lambda b: b.places.here.check_and_complete_many([*KEYS, *KEYS]),
    "_settle": expire,
    "cancel_for_key": cancel,
    "Purgatory": drop,
    "Operation": err,
    "_numbers": lambda b: (b.places.here.metrics(), repr(b.places.here)),
    "_take": lambda b: (
        b.places.here._take(b.places.over, KEYS),
        b.places.here.try_complete_else_watch(b.places.over, KEYS),
    ),
    "force_complete": lambda b: (b.places.over.force_complete(), Op(1.0).force_complete()),
    "watched": lambda b: (b.places.here.watched, b.places.here.num_delayed, b.places.here._closed),
    "state": lambda b: (Op(1.0).state, Op(None).timeout, b.places.over.is_completed),
    "is_expired": lambda b: (b.places.over.is_expired, b.timers._unsettled, b.timers._over),
    "_await_work": lambda b: (b.timers._await_work(), b.timers._await_work(1e-6, 5)),
    "_wake": lambda b: (b.timers._wake(), b.timers.poll()),
    "_shutdown": cancel,
    "_grow": grow,
    "owed_watchers": lambda b: _native.owed_watchers(b.wheel.shared("watch")),
    "create_watch": seat,
    "seat_watcher": lambda b: _native.seat_watcher(b.wheel.shared("watch"), 2, 0),
    "create_keys": seat_keys,
}
ALONGSIDE = {
    "_word",
    "_forget",
    "_change",
    "_done",
    "is_completed",
    "timeout",
    "num_delayed",
    "watch_bytes",
    "keys_bytes",
    "seat_keys",
    "wake_leases",
    "_unsettled",
    "_block",
    "_tells",
    "_away",
    "_given_up",
    "_closed",
    "_over",
}

BAD: dict[str, Callable[[Bench], Any]] = {
    "operation timeout": lambda b: Op(float("nan")),
    "operation timeout type": lambda b: Op("x" * 500),  # type: ignore[arg-type]
    "operation again": lambda b: b.places.waiting.__init__(5.0),  # type: ignore[misc]
    "operation unmade": lambda b: _native.Operation.__new__(_native.Operation).force_complete(),
    "watch type": lambda b: b.places.here.try_complete_else_watch("x" * 500, KEYS),  # type: ignore[arg-type]
    "watch arguments": lambda b: b.places.here.try_complete_else_watch(Op(1.0)),  # type: ignore[call-arg]
    "watch twice": lambda b: b.places.here.try_complete_else_watch(b.places.waiting, KEYS),
    "watch cancelled": lambda b: b.places.here.try_complete_else_watch(b.places.cancelled, KEYS),
    "watch no keys": lambda b: b.places.here.try_complete_else_watch(Op(1.0), iter([])),  # type: ignore[arg-type]
    "watch str": lambda b: b.places.here.try_complete_else_watch(Op(1.0), "x" * 500),
    "watch bad key": lambda b: b.places.here.try_complete_else_watch(Op(1.0), [*KEYS, 1.5]),
    "watch bad piece": lambda b: b.places.here.try_complete_else_watch(
        Op(1.0), [("x" * 300, 2**90, None)]
    ),
    "watch surrogate": lambda b: b.places.here.try_complete_else_watch(
        Op(1.0), [*KEYS, "x" * 300 + "\ud800"]
    ),
    "watch raises first": lambda b: watch_raising(b, 1),
    "watch raises second": lambda b: watch_raising(b, 2),
    "watch without completion": never_complete,
    "check key": lambda b: b.places.here.check_and_complete(("x" * 300, (1,))),
    "check many": lambda b: b.places.here.check_and_complete_many([*KEYS, *KEYS, ("x" * 300, 1.5)]),
    "check empty": lambda b: b.places.here.check_and_complete(()),
    "cancel key": lambda b: b.places.here.cancel_for_key(["x" * 300]),
    "purgatory name": lambda b: Purgatory(b.timers, "p"),
    "purgatory surrogate": lambda b: Purgatory(b.timers, "\ud800" * 100),
    "purgatory again": lambda b: _native.Purgatory.__init__(b.places.here, b.timers, "x", None, 0),
    "purgatory worker": lambda b: _native.Purgatory(object(), "x", None),  # type: ignore[arg-type]
    "purgatory unbound": lambda b: _native.Purgatory(b.fresh_worker(), "x", None),
    "purgatory uninitialised": lambda b: _native.Purgatory.__new__(
        _native.Purgatory
    ).check_and_complete("a"),
    "word key": lambda b: b.places.here._word(("x" * 300, 1.5)),
    "grow key": lambda b: b.places.here._grow(("x" * 300, 1.5), 1),
    "grow value": lambda b: b.places.here._grow("a", -(2**90)),
    "grow arguments": lambda b: b.places.here._grow("a"),  # type: ignore[call-arg]
    "forget key": lambda b: b.places.here._forget(("x" * 300, 1.5)),
    "change key": lambda b: b.places.here._change(("x" * 300, 1.5)),
    "done type": lambda b: b.places.here._done("x" * 300, 1),  # type: ignore[arg-type]
    "owed kind": lambda b: _native.owed_watchers(b.wheel.wheel_memory),
    "watcher": lambda b: _native.seat_watcher(b.wheel.shared("watch"), 99, 0),
    "watcher kind": lambda b: _native.seat_watcher(b.wheel.wheel_memory, 0, 0),
    "keys segment": lambda b: _native.create_keys(bytearray(5), 1, 64, 0),
    "keys row": lambda b: _native.seat_keys(b.wheel.keys_memory, 1, 64, 1, True),
    "watch segment": lambda b: _native.create_watch(bytearray(5), 1, 0),
}
