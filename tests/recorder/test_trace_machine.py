"""The trace beside the wheel's oracle: random calls, and every event is recorded as it was."""

from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import invariant, rule, run_state_machine_as_test

from local_wheel import MS
from trace_rows import PERIODIC, assert_accounted, assert_stories, new_rows
from wheel_machine import WheelMachine
from wheel_oracle import Armed, Event, Oracle


@dataclass
class Recorder(Oracle):
    """An oracle that keeps what fired, and what was cancelled."""

    fired: list[tuple[int, int, Event]] = field(default_factory=list)
    """Owner, target, event."""
    cancelled: Counter[int] = field(default_factory=Counter)
    moved: Counter[int] = field(default_factory=Counter)

    def _fire(self, timer: Armed, at: int) -> None:
        super()._fire(timer, at)
        self.fired.append((timer.owner, timer.target, self.unread[timer.target][-1]))

    def cancel(self, id: int) -> bool:
        won = super().cancel(id)
        self.cancelled[id] += won
        return won

    def reschedule(self, id: int, delay: int) -> bool:
        won = super().reschedule(id, delay)
        self.moved[id] += won
        return won


class TracedMachine(WheelMachine):
    """Promise: every beginning, change and end is recorded once, as it was handed out."""

    make_oracle = Recorder

    @rule()
    def restart(self) -> None:
        self.move_to(self.oracle.now)  # a new clock may be a tick late with what is due at once
        self.wheel.restart_clock()

    @invariant()
    def accounts_add_up(self) -> None:
        if hasattr(self, "oracle"):
            self.rows = [*getattr(self, "rows", []), *new_rows(self.wheel)]
            assert_accounted(self.wheel, self.rows)

    def end(self) -> None:
        super().end()
        self.accounts_add_up()
        rows, recorder = self.rows, self.oracle
        assert isinstance(recorder, Recorder)
        assert_stories(rows)
        assert self.wheel.trace.pending == 0
        expired = [
            (
                row.worker,
                row.worker if row.receiver is None else row.receiver,
                (row.id, row.cookie, row.deadline, row.time, row.missed),
                row.payload,
            )
            for row in rows
            if row.kind == "expired"
        ]
        assert sorted(expired) == sorted(
            (owner, target, event[:5], len(event[5])) for owner, target, event in recorder.fired
        )
        ended = +recorder.cancelled + Counter(recorder.armed.keys())  # these by the last look
        assert Counter(row.id for row in rows if row.kind == "cancelled") == ended
        moved: Counter[int] = Counter()
        for row in rows:
            if row.kind == "rescheduled":
                moved[row.id] += row.count
        assert moved == +recorder.moved
        assert {row.flags & 3 for row in rows} <= {0}
        assert all(row.pending >= 0 and row.kind != "dropped" for row in rows)
        assert not any(row.missed and not row.flags & PERIODIC for row in rows)


@pytest.mark.parametrize(
    ("tick", "bits", "position"), [(MS, 6, 0), (1, 3, 2**64 - 200), (3600 * 10**9, 6, 2**32 - 200)]
)
def test_the_trace_agrees_with_the_oracle(tick: int, bits: int, position: int) -> None:
    machine = type(
        f"Traced{tick}x{bits}",
        (TracedMachine,),
        {"tick": tick, "bits": bits, "more": {"trace": 12, "trace_at": position}},
    )
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=20,
            stateful_step_count=40,
            deadline=None,
            print_blob=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
