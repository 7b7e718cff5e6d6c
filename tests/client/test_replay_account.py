"""The account of a replay, against daemons that misbehave."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from wheeld_client.replay import WORDS, Columns, Feed, Outcome, Player, add_up

MS = 1_000_000
START = 10**12
EVENT = np.dtype("u8, u8, i8, i8, i4, V8")
EVENT.names = ("timer_id", "cookie", "deadline", "fired", "payload_size", "payload")


class MadeUp:
    """A daemon and its worker in one object; the test moves its clock."""

    expiration_dtype = EVENT

    def __init__(self) -> None:
        self.now, self.ids = START, 0
        self.armed: dict[int, Any] = {}
        self.counts = dict.fromkeys(("scheduled", "cancelled", "received"), 0)

    def now_ns(self) -> int:
        return self.now

    @property
    def pending(self) -> int:
        return len(self.armed)

    def stats(self) -> dict[str, int]:
        return self.counts

    def schedule_many(self, delays: Any, cookies: Any, payloads: Any) -> Any:
        ids = np.arange(self.ids, self.ids + len(delays), dtype=np.uint64) + np.uint64(1)
        self.ids += len(delays)
        self.counts["scheduled"] += len(delays)
        for id, delay, cookie, payload in zip(ids, delays, cookies, payloads, strict=True):
            deadline = self.now + int(delay * 1e9)
            self.armed[int(id)] = (id, cookie, deadline, deadline + MS, 8, payload)
        return ids

    def cancel_many(self, ids: Any) -> Any:
        won = np.array([self.armed.pop(int(id), None) is not None for id in ids], bool)
        self.counts["cancelled"] += int(won.sum())
        return won

    def poll(self, seconds: float) -> Any:
        due = [id for id, event in self.armed.items() if event[3] <= self.now]
        self.counts["received"] += len(due)
        return np.array([self.armed.pop(id) for id in due], EVENT)


def played(timers: Any, requests: int = 8) -> Outcome:
    """Worker 0 of 2: two in three requests are done after 10 ms, the others time out after 200."""
    numbers = np.arange(8)
    columns: Columns = {
        "arrival_ns": numbers * MS,
        "latency_ns": np.where(numbers % 3 < 2, 10 * MS, 900 * MS),
        "timeout_ns": np.full(8, 200 * MS),
        "payload_bytes": np.full(8, 8),
    }
    player = Player(timers, Feed(iter([columns]), 1.0), 0, 2, START)
    while player.turn(timers.now) is not None:
        player.receive(0.0)
        timers.now += 10 * MS
    return add_up([player.report() | {"cpu_s": 0.0}], requests, 500.0)


def test_a_good_account_is_exact() -> None:
    found = played(MadeUp())
    assert found.faults == {}
    assert (found.exactly_once, found.cancelled, found.expired, found.late) == (8, 6, 2, 0)
    assert found.peak_pending == 8
    assert found.lateness.most == MS
    assert MS <= found.receipt.most <= 11 * MS
    assert found.behind.most <= 10 * MS
    assert found.text().endswith(
        "OK: every request ended exactly once, none early, every payload intact"
    )


def test_a_cancel_that_came_too_late_is_no_fault() -> None:
    class Slow(MadeUp):
        def cancel_many(self, ids: Any) -> Any:
            self.now += 300 * MS
            return np.zeros(len(ids), bool)

    found = played(Slow())
    assert found.faults == {}
    assert (found.expired, found.late) == (8, 6)


def changed(**columns: Callable[[Any], Any]) -> type[MadeUp]:
    """It changes the first delivery of each poll."""

    class Changed(MadeUp):
        def poll(self, seconds: float) -> Any:
            events = super().poll(seconds)
            for name, change in columns.items():
                events[name][:1] = change(events[name][:1])
            return events

    return Changed


def repeated(times: int) -> type[MadeUp]:
    class Repeated(MadeUp):
        def poll(self, seconds: float) -> Any:
            events = super().poll(seconds)
            self.counts["received"] += (times - 1) * len(events[:1])
            return np.concatenate([events[:1]] * times + [events[1:]])

    return Repeated


class CancelsNothing(MadeUp):
    """Each cancel says True, and the timer fires."""

    def cancel_many(self, ids: Any) -> Any:
        self.counts["cancelled"] += len(ids)
        return np.ones(len(ids), bool)


class LosesCancelled(MadeUp):
    """Each cancel says False, and the timer is gone."""

    def cancel_many(self, ids: Any) -> Any:
        return ~super().cancel_many(ids)

    def stats(self) -> dict[str, int]:
        return self.counts | {"cancelled": 0}


class Miscounts(MadeUp):
    def stats(self) -> dict[str, int]:
        return self.counts | {"scheduled": 11}


class Keeps(MadeUp):
    pending = 2  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("daemon", "faults"),
    [
        (repeated(0), {"lost": 1}),
        (repeated(2), {"doubled": 1, "miscounted": 1}),
        (CancelsNothing, {"doubled": 6, "miscounted": 6}),
        (LosesCancelled, {"lost": 6}),
        (changed(cookie=lambda cookie: cookie + 1), {"lost": 1, "strangers": 1, "miscounted": 1}),
        (changed(cookie=lambda cookie: cookie + 98), {"lost": 1, "strangers": 1, "miscounted": 1}),
        (changed(cookie=lambda cookie: 2**63), {"lost": 1, "strangers": 1, "miscounted": 1}),
        (changed(cookie=lambda cookie: 0), {"lost": 1, "doubled": 1, "miscounted": 1}),
        (changed(fired=lambda fired: fired - MS - 1), {"early": 1}),
        (changed(fired=lambda fired: fired + 20 * MS), {"early": 1}),  # after it was received
        (changed(deadline=lambda deadline: deadline - 1), {"early": 1}),
        (changed(deadline=lambda deadline: deadline + 1), {"deadline_wrong": 1}),
        (changed(payload=lambda payload: b"12345678"), {"payload_wrong": 1}),
        (changed(payload_size=lambda size: size - 1), {"payload_wrong": 1}),
        (changed(timer_id=lambda id: id + 1), {"id_wrong": 1}),
        (Keeps, {"left_pending": 2}),
        (Miscounts, {"miscounted": 3}),
    ],
)
def test_each_fault_is_found_and_said(daemon: type[MadeUp], faults: dict[str, int]) -> None:
    found = played(daemon())
    assert found.faults == faults
    assert "OK" not in found.text()
    for name, count in faults.items():
        assert f"FAILED: {count} {WORDS[name]} ({name})" in found.text()


def test_requests_that_were_never_scheduled_are_missed() -> None:
    assert played(MadeUp(), requests=9).faults == {"unscheduled": 1}


@pytest.mark.parametrize(("late_ms", "kept_up"), [(0, True), (1500, False)])
def test_a_run_that_falls_behind_did_not_keep_up(late_ms: int, kept_up: bool) -> None:
    timers = MadeUp()
    timers.now += late_ms * MS
    found = played(timers)
    assert found.kept_up is kept_up
    assert ("NOT KEPT UP" in found.text()) is not kept_up
