"""The wheel and a sorted-list oracle, as a state machine of random calls."""

from typing import ClassVar

import numpy as np
from hypothesis import assume, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from local_wheel import FOREVER, MS, YEAR, LocalWheel, payloads
from wheel_oracle import Armed, Event, Oracle, seconds_to_ns

WORKERS = 3
PAYLOAD_BYTES = 16
MOST = 400
"""Timers and unread events at once: below every ring's size, so that no backlog begins."""

rows = st.integers(0, WORKERS - 1)
cookie_values = st.one_of(st.integers(0, 9), st.integers(0, 2**64 - 1))
payload_values = st.binary(max_size=PAYLOAD_BYTES)
picks = st.integers(0, 10**6)


class WheelMachine(RuleBasedStateMachine):
    """Promise: each timer fires once, in its tick or as soon as it is asked for, never early, and
    `pending` is exact, whatever is called in whatever order."""

    tick = MS
    bits = 6
    more: ClassVar[dict[str, int]] = {}
    """Other settings of the wheel."""
    make_oracle = Oracle

    @initialize(start=st.one_of(st.just(0), st.integers(0, 2**61)))
    def begin(self, start: int) -> None:
        self.wheel = LocalWheel(
            1024, WORKERS, self.tick, self.bits, PAYLOAD_BYTES, start_ns=start, **self.more
        )
        self.workers = [self.wheel.worker(row) for row in range(WORKERS)]
        self.oracle = self.make_oracle(self.tick, start, unread={r: [] for r in range(WORKERS)})
        self.ever: list[int] = [0, 1, 2**64 - 1]

    def delay_ns(self, data: st.DataObject) -> int:
        levels = -(-63 // self.bits)
        span = self.tick << self.bits * data.draw(st.integers(0, min(levels, 9)), "level")
        near = span * data.draw(st.integers(1, 3), "times") + data.draw(
            st.sampled_from([0, -1, 1, -self.tick, self.tick]), "off"
        )
        choice = data.draw(
            st.one_of(
                st.sampled_from([0, 1, near, near, near, FOREVER, 10**21]),
                st.integers(0, 300 * self.tick),
                st.integers(0, 100 * YEAR),
            ),
            "delay",
        )
        return max(0, choice)

    def id_of_any(self, pick: int, armed: bool) -> int:
        pool = list(self.oracle.armed) if armed and self.oracle.armed else self.ever
        return pool[pick % len(pool)]

    def crowded(self, more: int = 1) -> bool:
        unread = sum(map(len, self.oracle.unread.values()))
        return len(self.oracle.armed) + unread + more > MOST

    def remember(self, timer: Armed) -> None:
        self.oracle.schedule(timer)
        self.ever.append(timer.id)

    # -- rules ------------------------------------------------------------

    @rule(data=st.data(), row=rows, to=rows, cookie=cookie_values, payload=payload_values)
    def schedule(self, data: st.DataObject, row: int, to: int, cookie: int, payload: bytes) -> None:
        assume(not self.crowded())
        delay = self.delay_ns(data) / 1e9
        target = None if to == row else f"w{to}"
        id = self.workers[row].schedule(delay, cookie, payload=payload, to=target)
        due = min(self.oracle.now + seconds_to_ns(delay), FOREVER)
        self.remember(Armed(id, row, to, due, self.oracle.now, cookie=cookie, payload=payload))

    @rule(data=st.data(), row=rows, count=st.integers(0, 40), cookie=cookie_values)
    def schedule_many(self, data: st.DataObject, row: int, count: int, cookie: int) -> None:
        assume(not self.crowded(count))
        base = self.delay_ns(data)
        delays = [(base + i * self.tick // 3) / 1e9 for i in range(count)]
        ids = self.workers[row].schedule_many(delays, cookie)
        for id, delay in zip(ids.tolist(), delays, strict=True):
            due = min(self.oracle.now + seconds_to_ns(delay), FOREVER)
            self.remember(Armed(id, row, row, due, self.oracle.now, cookie=cookie))

    @rule(data=st.data(), row=rows, to=rows, interval=st.integers(1, 500))
    def schedule_periodic(self, data: st.DataObject, row: int, to: int, interval: int) -> None:
        assume(not self.crowded() and self.oracle.shortest_interval() is None)
        delay, period = self.delay_ns(data) / 1e9, max(1, interval * self.tick // 100) / 1e9
        id = self.workers[row].schedule(delay, 5, interval=period, to=f"w{to}")
        due = min(self.oracle.now + seconds_to_ns(delay), FOREVER)
        self.remember(
            Armed(id, row, to, due, self.oracle.now, max(1, seconds_to_ns(period)), cookie=5)
        )

    @rule(row=rows, pick=picks, armed=st.booleans())
    def cancel(self, row: int, pick: int, armed: bool) -> None:
        id = self.id_of_any(pick, armed)
        assert self.workers[row].cancel(id) is self.oracle.cancel(id)

    @rule(row=rows, chosen=st.lists(st.tuples(picks, st.booleans()), max_size=20))
    def cancel_many(self, row: int, chosen: list[tuple[int, bool]]) -> None:
        ids = [self.id_of_any(pick, armed) for pick, armed in chosen]
        won = self.workers[row].cancel_many(np.array(ids, np.uint64))
        assert won.tolist() == [self.oracle.cancel(id) for id in ids]

    @rule(data=st.data(), row=rows, pick=picks, armed=st.booleans())
    def reschedule(self, data: st.DataObject, row: int, pick: int, armed: bool) -> None:
        id = self.id_of_any(pick, armed)
        timer = self.oracle.armed.get(id)
        delay = self.delay_ns(data) / 1e9
        if timer and timer.interval:
            delay = max(delay, 1e-6)  # a new first tick, after the last one
        won = self.workers[row].reschedule(id, delay)
        assert won is self.oracle.reschedule(id, seconds_to_ns(delay))

    @rule(data=st.data(), row=rows, chosen=st.lists(st.tuples(picks, st.booleans()), max_size=20))
    def reschedule_many(
        self, data: st.DataObject, row: int, chosen: list[tuple[int, bool]]
    ) -> None:
        ids = [self.id_of_any(pick, armed) for pick, armed in chosen]
        base = self.delay_ns(data)
        delays = [max(base + i * self.tick // 3, 1000) / 1e9 for i in range(len(ids))]
        won = self.workers[row].reschedule_many(np.array(ids, np.uint64), delays)
        wanted = [
            self.oracle.reschedule(id, seconds_to_ns(delay))
            for id, delay in zip(ids, delays, strict=True)
        ]
        assert won.tolist() == wanted

    @rule(data=st.data())
    def advance(self, data: st.DataObject) -> None:
        now, upcoming = self.oracle.now, self.oracle.next_fire()
        target = now + self.delay_ns(data)
        if upcoming is not None and data.draw(st.booleans(), "to the next fire"):
            target = upcoming - data.draw(st.sampled_from([1, 0]), "before")
        interval = self.oracle.shortest_interval()
        if interval is not None:  # not thousands of ticks in one step
            first = max(now, upcoming or 0)
            target = min(target, first + 50 * max(interval, self.tick))
        self.move_to(max(now, min(target, 2**62)))

    def move_to(self, target: int) -> None:
        self.wheel.advance_to(target)
        self.oracle.advance_to(target)
        if self.crowded(MOST // 2):
            for row in range(WORKERS):
                self.poll(row, None)

    @rule(row=rows, most=st.one_of(st.none(), st.integers(1, 5)))
    def poll(self, row: int, most: int | None) -> None:
        events = self.workers[row].poll(0.0, most)
        texts = payloads(events)
        got: list[Event] = [
            (*(int(v) for v in event.tolist()[:5]), text)  # type: ignore[misc]
            for event, text in zip(events, texts, strict=True)
        ]
        expected = self.oracle.unread[row]
        if most is None:
            assert sorted(got) == sorted(expected), (got, expected)
        assert len(got) <= (len(expected) if most is None else most)
        fired = [event[3] for event in got]
        assert fired == sorted(event[3] for event in expected)[: len(got)]
        for event in got:
            expected.remove(event)

    # -- what always holds ------------------------------------------------------------

    @invariant()
    def pending_is_exact(self) -> None:
        if hasattr(self, "workers"):
            for row, worker in enumerate(self.workers):
                assert worker.pending == self.oracle.pending(row)

    @invariant()
    def wheel_is_whole(self) -> None:
        if hasattr(self, "wheel"):
            self.wheel.clock.check()

    def teardown(self) -> None:
        if hasattr(self, "wheel"):
            with self.wheel:
                if hasattr(self, "oracle"):
                    self.end()

    def end(self) -> None:
        self.move_to(self.oracle.now)
        for row in range(WORKERS):
            self.poll(row, None)
        rest = np.array(list(self.oracle.armed), np.uint64)
        assert self.workers[0].cancel_many(rest).all()
        self.wheel.settle()
        assert self.wheel.clock.check() == 0
        assert self.wheel.counter("dropped") == self.wheel.counter("redirected") == 0
        assert not self.wheel.view.ports["offences"].any()
