"""One key's life in the overflow, driven beside an oracle that knows everything."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pipeline import one_key
from pipeline.one_key import Command, Entry, Expired, HandOut, Output, Rejected, Withdraw
from wheeld_pipeline.overflow.machine import COMMANDS, ENDED, HANDED, WAITING, Rules

RULES = Rules(horizon_ms=100, grace_ms=50, retry_ms=10, remember_ms=300)
START_MS = 1_000_000


class Life(RuleBasedStateMachine):
    """Commands in any order, a wheel that loses, repeats and delays, time that jumps.

    The oracle: what is `wanted` is the last accepted schedule or reschedule that was neither
    cancelled nor seen to fire; everything else follows from that.
    """

    def __init__(self) -> None:
        super().__init__()
        self.entry: Entry | None = None
        self.now_ms = START_MS
        self.wanted: tuple[int, int, bytes | None] | None = None
        self.last: int | None = None
        self.forget_ms: int | None = None
        self.wheel: list[HandOut] = []
        self.said: list[tuple[int, int]] = []
        self.sink: set[int] = set()
        """Generations that expired, since the key was last forgotten."""
        self.handed: dict[int, int] = {}

    @initialize(far=st.integers(1, 500))
    def begin(self, far: int) -> None:
        self.command("schedule", 3, far * 1000, b"first")

    # -- the machine's outputs ------------------------------------------------------------------

    def step(self, done: one_key.Step) -> list[Rejected]:
        self.entry, outputs = done
        for output in outputs:
            self.obey(output)
        return [output for output in outputs if isinstance(output, Rejected)]

    def obey(self, output: Output) -> None:
        if isinstance(output, HandOut):
            assert self.wanted is not None
            assert self.wanted[:2] == output
            assert output.deadline_us <= (self.now_ms + RULES.horizon_ms) * 1000 + 999
            again_ms = self.handed.get(output.generation)
            assert again_ms is None or self.now_ms >= again_ms
            after_ms = max(-(-output.deadline_us // 1000), self.now_ms) + RULES.grace_ms
            self.handed[output.generation] = after_ms
            self.wheel.append(output)
        elif isinstance(output, Withdraw):
            self.wheel = [one for one in self.wheel if one.generation != output.generation]
        elif isinstance(output, Expired):
            assert self.wanted is not None
            assert output.entry.generation == self.wanted[0]
            assert output.entry.payload == self.wanted[2]
            assert output.fired_us >= output.entry.deadline_us == self.wanted[1]
            assert output.entry.generation not in self.sink
            self.sink.add(output.entry.generation)
            self.wanted, self.forget_ms = None, self.now_ms + RULES.remember_ms

    # -- what happens ---------------------------------------------------------------------------

    @rule(
        op=st.sampled_from(COMMANDS),
        sequence=st.integers(0, 40),
        far_us=st.integers(-200_000, 500_000),
        payload=st.sampled_from([None, b"", b"abc"]),
    )
    def command(self, op: str, sequence: int, far_us: int, payload: bytes | None) -> None:
        deadline_us = self.now_ms * 1000 + far_us
        command = Command(op, sequence, deadline_us, "k", 7, payload)
        wanted, last = self.wanted, self.last
        fresh = last is None or sequence > last
        if fresh and op == "schedule":
            self.wanted, self.last = (sequence, deadline_us, payload), sequence
        elif fresh and op == "reschedule" and wanted is not None:
            self.wanted, self.last = (sequence, deadline_us, wanted[2]), sequence
        elif fresh and op == "cancel":
            self.wanted, self.last = None, sequence
            self.forget_ms = self.now_ms + RULES.remember_ms
        rejected = self.step(one_key.obey(self.entry, command, self.now_ms, RULES))
        without_effect = (fresh and op != "schedule" and wanted is None) or (
            last is not None and sequence < last
        )
        assert bool(rejected) == without_effect

    @rule(ms=st.integers(1, 400))
    def time_passes(self, ms: int) -> None:
        self.now_ms += ms

    @rule()
    def spark_looks(self) -> None:
        if self.entry is not None and self.entry.wake_ms <= self.now_ms:
            before = self.entry
            self.step(one_key.wake(before, self.now_ms, RULES))
            if before.phase == ENDED:
                assert self.entry is None
                assert self.forget_ms == before.wake_ms
                self.last = self.forget_ms = None
                self.handed, self.sink = {}, set()

    @precondition(lambda self: self.wheel)
    @rule(data=st.data())
    def wheel_fires(self, data: st.DataObject) -> None:
        handed = data.draw(st.sampled_from(self.wheel))
        if handed.deadline_us <= self.now_ms * 1000:
            self.wheel.remove(handed)
            self.said.append((handed.generation, self.now_ms * 1000))

    @precondition(lambda self: self.said)
    @rule(data=st.data(), twice=st.booleans())
    def wheel_is_heard(self, data: st.DataObject, twice: bool) -> None:
        said = data.draw(st.sampled_from(self.said))
        if not twice:
            self.said.remove(said)
        self.step(one_key.acknowledge(self.entry, *said, self.now_ms, RULES))

    @precondition(lambda self: self.wheel)
    @rule(data=st.data())
    def wheel_refuses(self, data: st.DataObject) -> None:
        handed = data.draw(st.sampled_from(self.wheel))
        self.wheel.remove(handed)
        self.handed.pop(handed.generation, None)
        self.step(one_key.refuse(self.entry, handed.generation, self.now_ms, RULES))

    @rule()
    def wheel_dies(self) -> None:
        self.wheel, self.said = [], []

    @rule(generation=st.integers(0, 40), early_us=st.integers(1, 10_000))
    def wheel_lies(self, generation: int, early_us: int) -> None:
        """A wheel that says something too early, or of a generation that never was, is not
        heard."""
        if self.wanted is not None and self.wanted[0] == generation:
            fired_us = self.wanted[1] - early_us
        else:
            fired_us = self.now_ms * 1000
        before = self.entry
        assert one_key.acknowledge(before, generation, fired_us, self.now_ms, RULES) == (before, [])

    # -- what always holds ----------------------------------------------------------------------

    @invariant()
    def as_wanted(self) -> None:
        phase = ENDED if self.entry is None else self.entry.phase
        assert (self.wanted is not None) == (phase in (WAITING, HANDED))
        if self.entry is not None and self.wanted is not None:
            kept = (self.entry.generation, self.entry.deadline_us, self.entry.payload)
            assert kept == self.wanted
        assert (None if self.entry is None else self.entry.generation) == self.last

    def teardown(self) -> None:
        wanted, ended = self.wanted, set()
        for _ in range(8):
            if self.entry is not None:
                self.now_ms = max(self.now_ms, self.entry.wake_ms)
            self.spark_looks()
            for handed in self.wheel:
                self.now_ms = max(self.now_ms, handed.deadline_us // 1000 + 1)
                fired_us = self.now_ms * 1000
                self.step(
                    one_key.acknowledge(self.entry, handed.generation, fired_us, self.now_ms, RULES)
                )
            self.wheel = []
            ended |= self.sink
        assert self.wanted is None
        assert self.entry is None
        assert wanted is None or wanted[0] in ended


TestLife = Life.TestCase


def scheduled(deadline_ms: int, sequence: int = 1) -> Entry:
    command = Command("schedule", sequence, deadline_ms * 1000, "k", 5, b"data")
    entry, _ = one_key.obey(None, command, START_MS, RULES)
    assert entry is not None
    return entry


def test_a_far_timer_waits_for_its_horizon() -> None:
    entry = scheduled(START_MS + 1000)
    assert (entry.phase, entry.wake_ms) == (WAITING, START_MS + 900)
    assert one_key.wake(entry, START_MS + 899, RULES) == (entry, [])
    handed, done = one_key.wake(entry, START_MS + 900, RULES)
    assert done == [HandOut(1, (START_MS + 1000) * 1000)]
    assert handed is not None
    assert (handed.phase, handed.wake_ms) == (HANDED, START_MS + 1050)


def test_a_near_timer_is_handed_out_at_once() -> None:
    assert scheduled(START_MS + 99).phase == HANDED
    assert scheduled(START_MS - 5000).phase == HANDED


def test_a_cancel_of_a_handed_timer_withdraws_it() -> None:
    entry = scheduled(START_MS + 10)
    ended, done = one_key.obey(entry, Command("cancel", 2, 0, "k"), START_MS, RULES)
    assert done == [Withdraw(1)]
    assert ended is not None
    assert (ended.phase, ended.generation) == (ENDED, 2)
    assert one_key.acknowledge(ended, 1, (START_MS + 10) * 1000, START_MS + 20, RULES)[1] == []


def test_an_early_cancel_holds_against_its_late_schedule() -> None:
    ended, done = one_key.obey(None, Command("cancel", 2, 0, "k"), START_MS, RULES)
    assert isinstance(done[0], Rejected)
    late = Command("schedule", 1, START_MS * 1000, "k")
    assert one_key.obey(ended, late, START_MS, RULES)[0] == ended


def test_a_repeated_command_is_ignored_and_an_older_one_rejected() -> None:
    entry = scheduled(START_MS + 1000, sequence=5)
    again = Command("schedule", 5, (START_MS + 1000) * 1000, "k")
    assert one_key.obey(entry, again, START_MS, RULES) == (entry, [])
    _, done = one_key.obey(entry, again._replace(sequence=4), START_MS, RULES)
    assert isinstance(done[0], Rejected)
    assert "overtaken by 5" in done[0].reason


def test_a_refused_timer_is_handed_out_soon_again() -> None:
    entry = scheduled(START_MS + 39)
    refused, _ = one_key.refuse(entry, 1, START_MS, RULES)
    assert refused is not None
    assert refused.wake_ms == START_MS + RULES.retry_ms
    again, done = one_key.wake(refused, START_MS + RULES.retry_ms, RULES)
    assert done == [HandOut(1, entry.deadline_us)]
    assert again is not None


@pytest.mark.parametrize(
    "module",
    [
        *("machine", "shards", "driver.commands", "columns.store", "checkpoint.log"),
        *("batch.step", "batch.task", "batch.wheels"),
    ],
)
def test_it_loads_no_spark(module: str) -> None:
    program = (
        f"import sys, wheeld_pipeline.overflow.{module} as m; "
        "bad = {'pyspark', 'pyarrow', 'pandas'} & set(sys.modules); sys.exit(str(bad) if bad else "
        "0)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_a_refusal_of_an_older_generation_is_not_heard() -> None:
    entry = scheduled(START_MS + 50, sequence=2)
    assert one_key.refuse(entry, 1, START_MS, RULES) == (entry, [])
