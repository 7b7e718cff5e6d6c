"""A state machine: pools beside a plain model, over workers that come, go and die."""

import warnings
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from local_wheel import LocalWheel
from pool_ops import die, words_of
from wheeld_client import ClientClosed, MemoryPool
from wheeld_core.views import PoolsView

ROWS = 3
SPECS = (("lenient", 1000, 400, False), ("strict", 1000, 700, True), ("tiny", 1, 1, False))

rows = st.integers(0, ROWS - 1)
pools = st.integers(0, len(SPECS) - 1)
picks = st.integers(0, 2**16)


@dataclass
class Loan:
    """A buffer and whose it is: `life` counts a row's workers; bytes of another life are back."""

    buffer: Any
    row: int
    pool: int
    life: int
    size: int


class Model:
    def __init__(self, size: int, strict: bool) -> None:
        self.size, self.strict = size, strict
        self.out = [0] * ROWS
        self.allocations = self.refusals = self.timeouts = 0
        self.dry = False

    def fits(self, size: int) -> bool:
        free = self.size - sum(self.out)
        return free >= size if self.strict else free >= 1


class PoolMachine(RuleBasedStateMachine):
    """Every call, in any order, from any worker."""

    def __init__(self) -> None:
        super().__init__()
        self.wheel = LocalWheel(64, ROWS, pools=SPECS)
        self.models = [Model(size, strict) for _, size, _, strict in SPECS]
        self.lives = [0] * ROWS
        self.loans: list[Loan] = []
        self.timers: list[Any] = [None] * ROWS
        self.pools: list[list[MemoryPool]] = [[] for _ in range(ROWS)]
        for row in range(ROWS):
            self.connect(row)

    def connect(self, row: int) -> None:
        self.lives[row] += 1
        self.timers[row] = self.wheel.worker(row)
        self.pools[row] = [MemoryPool(self.timers[row], spec[0]) for spec in SPECS]

    def pick(self, pick: int) -> Loan:
        return self.loans[pick % len(self.loans)]

    def back(self, loan: Loan) -> None:
        model = self.models[loan.pool]
        if loan.life == self.lives[loan.row]:
            model.out[loan.row] -= loan.size
            model.dry = False
        self.loans.remove(loan)

    @rule(row=rows, pool=pools, size=st.integers(1, 700), wait=st.booleans())
    def allocate(self, row: int, pool: int, size: int, wait: bool) -> None:
        model, one = self.models[pool], self.pools[row][pool]
        size = min(size, SPECS[pool][2])
        fits = model.fits(size)
        buffer = None
        if not wait:
            buffer = one.try_allocate(size)
            model.refusals += not fits
        elif fits:
            buffer = one.allocate(size, 0)
        else:
            with pytest.raises(TimeoutError):
                one.allocate(size, 0)
            model.timeouts += 1
        assert (buffer is not None) == fits
        model.dry = not fits
        if buffer is not None:
            assert len(buffer) == size
            model.allocations += 1
            model.out[row] += size
            memoryview(buffer)[size - 1] = row
            self.loans.append(Loan(buffer, row, pool, self.lives[row], size))
        assert one.wait_available(0, size) == model.fits(size)

    @precondition(lambda self: self.loans)
    @rule(pick=picks, how=st.sampled_from(["pool", "buffer", "with", "other object"]))
    def release(self, pick: int, how: str) -> None:
        loan = self.pick(pick)
        alive = loan.life == self.lives[loan.row]
        assert memoryview(loan.buffer)[loan.size - 1] == loan.row
        if how == "with":
            with loan.buffer:
                pass
        elif how == "buffer" or not alive:
            loan.buffer.release()
        elif how == "pool":
            self.pools[loan.row][loan.pool].release(loan.buffer)
        else:
            MemoryPool(self.timers[loan.row], SPECS[loan.pool][0]).release(loan.buffer)
        self.back(loan)
        with pytest.raises(ValueError, match="already"):
            loan.buffer.release()

    @precondition(lambda self: self.loans)
    @rule(pick=picks, row=rows, pool=pools)
    def release_elsewhere(self, pick: int, row: int, pool: int) -> None:
        loan = self.pick(pick)
        if (row, pool) != (loan.row, loan.pool) or loan.life != self.lives[row]:
            with pytest.raises(ValueError, match="not of this one"):
                self.pools[row][pool].release(loan.buffer)
            assert not loan.buffer.released

    @precondition(lambda self: self.loans)
    @rule(pick=picks)
    def drop(self, pick: int) -> None:
        loan = self.pick(pick)
        self.back(loan)
        with pytest.warns(ResourceWarning):
            loan.buffer = None

    @rule(row=rows, close=st.booleans())
    def leave(self, row: int, close: bool) -> None:
        if close:
            self.timers[row].close()
            with pytest.raises(ClientClosed):
                self.pools[row][0].try_allocate(1)
            self.wheel.settle()
        else:
            die(self.wheel, row)
        for model in self.models:
            model.dry = model.dry and model.out[row] == 0
            model.out[row] = 0
        self.connect(row)

    @invariant()
    def agree(self) -> None:
        view = PoolsView(self.wheel.shared("pools"))
        for index, model in enumerate(self.models):
            used = sum(model.out)
            assert (int(words_of(self.wheel, index)["dry_since"]) != 0) == model.dry
            assert used <= model.size - 1 + SPECS[index][2]
            assert not model.strict or used <= 1000
            for row in range(ROWS):
                stats = self.pools[row][index].stats()
                assert 0 <= stats.pop("depleted_percent") <= 100
                assert stats.pop("depleted_seconds") >= 0
                assert stats == {
                    "size": model.size,
                    "used": used,
                    "available": model.size - used,
                    "outstanding": model.out[row],
                    "allocations": model.allocations,
                    "refusals": model.refusals,
                    "waits": model.timeouts,
                    "timeouts": model.timeouts,
                }
            assert view.out()[index][:ROWS].tolist() == model.out
            assert view.used()[index] == used
        assert not view.waiters.any()

    def teardown(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            self.loans.clear()
        self.wheel.close()


PoolMachine.TestCase.settings = settings(
    max_examples=60, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck)
)
TestPoolMachine = PoolMachine.TestCase
