"""Every native call of callbacks, and every way in which one refuses, for test_leaks."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from local_wheel import MS
from wheeld_client import TimerHandle
from wheeld_core import _native

WAITING = _native.Waiting()


def into(b: Any) -> None:
    handle = TimerHandle(b.timers._callbacks, print, (), True)
    b.timers._callbacks.arm(handle, 1.0, True)
    handle.cancel()
    b.wheel.settle()


def ended_by_id(b: Any) -> None:
    b.timers.cancel(b.timers.call_later(1.0, print).id)
    b.timers.cancel_many([b.timers.call_later(1.0, print).id for _ in range(3)])
    b.timers.call_later(0.0, print)
    b.wheel.clock.advance(b.wheel.now + MS)
    assert len(b.timers.poll()) == 1
    assert not b.timers._handles


def called(b: Any) -> None:
    b.timers.call_later(0.0, len, "")
    b.timers.schedule(0.0)
    b.wheel.clock.advance(b.wheel.now + MS)
    assert len(b.timers.dispatch()) == 1


def raised(b: Any) -> None:
    due, said = deque([TimerHandle(b.timers._callbacks, int, ("x",), True)]), []
    _native.call_due(due, lambda *what: said.append(what))
    assert type(said[0][3]) is ValueError


def under_a_key(b: Any) -> None:
    for conflict in ("raise", "keep", "replace", "later"):
        b.timers.call_later(1.0, print, key="callback", on_conflict=conflict)
    assert b.timers.cancel(key="callback")
    b.wheel.settle()


def waiting(b: Any) -> None:
    table = _native.Waiting()
    for delay in range(40):
        b.timers._schedule_into(table, TimerHandle(b.timers._callbacks, print, (), True), 1 + delay)
    assert len(table.values()) == len(table) == len(set(table)) == 40
    assert all(id in table and table.get(id).id == id for id in table)
    b.timers.cancel_many(list(table))
    assert all(table.pop(id).id == id for id in table)
    assert table.pop(1) is None
    assert not table
    table.get(1, table)
    b.wheel.settle()


GOOD: dict[str, Callable[[Any], Any]] = {
    "_call_later": lambda b: (b.timers.call_later(1.0, print).cancel(), b.wheel.settle()),
    "_handles": ended_by_id,
    "_schedule_into": into,
    "_schedule_into_key": under_a_key,
    "Handle": into,
    "Waiting": waiting,
    "take_handles": called,
    "call_due": raised,
}
BAD: dict[str, Callable[[Any], Any]] = {
    "into what": lambda b: b.timers._schedule_into([], print, 1.0),
    "into what, by key": lambda b: b.timers._schedule_into_key(
        WAITING, print, 1.0, True, "k", "keep"
    ),
    "by no key": lambda b: b.timers.call_later(1.0, print, key=1.5),
    "into frozen": lambda b: b.timers._schedule_into(WAITING, print, 1.0),
    "waiter into what": lambda b: b.timers._schedule_waiter([], None, 1.0),
    "later what": lambda b: b.timers._call_later(WAITING, int, None, 1.0, print, (), True),
    "later whom": lambda b: b.timers.call_later(1.0, "print"),
    "taken from": lambda b: _native.take_handles([], b"", deque()),
    "due where": lambda b: _native.call_due((1,), print),
    "due what": lambda b: _native.call_due(deque([1]), print),
    "due raised": lambda b: _native.call_due(
        deque([TimerHandle(b.timers._callbacks, int, ("x",), True)]), len
    ),
    "due no arguments": lambda b: _native.call_due(
        deque([TimerHandle(b.timers._callbacks, int, "x", True)]), len
    ),
    "taken what": lambda b: _native.take_handles(WAITING, "events", deque()),
    "waiting, no id": lambda b: WAITING.get("x"),
    "waiting, two defaults": lambda b: WAITING.pop(1, 2, 3),
    "waiting, in": lambda b: "x" in WAITING,
    "taken where": lambda b: _native.take_handles(WAITING, b"", ()),
}
