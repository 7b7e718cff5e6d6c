"""Numbers of a purgatory."""

import time

from local_wheel import MS, LocalTimers, LocalWheel
from purgatory_ops import Op, watch_all
from wheeld_client import Purgatory

LONG = 60.0
"""Seconds that a test waits for something before it fails."""


def test_counts(wheel: LocalWheel, timers: LocalTimers) -> None:
    purgatory = Purgatory(timers, "p")
    zero = purgatory.metrics()
    assert {zero[name] for name in ("purgatory_size", "num_delayed", "completed", "expired")} == {0}
    ops = [Op(0.001 if i < 3 else None, i) for i in range(10)]
    watch_all(purgatory, ops, ["a", "b"])
    assert purgatory.try_complete_else_watch(Op(1.0, ready=True), ["a"]) is True
    ops[3].force_complete()
    ops[4].ready = ops[5].ready = True
    purgatory.check_and_complete("a")
    wheel.advance(MS)
    timers.dispatch()
    seen = purgatory.metrics()
    assert seen["purgatory_size"] == purgatory.watched == 8
    assert seen["num_delayed"] == purgatory.num_delayed == 4
    assert seen["completed"] == 4
    assert seen["expired"] == 3
    assert len(purgatory.cancel_for_key("a")) == 4
    seen = purgatory.metrics()
    assert (seen["purgatory_size"], seen["num_delayed"], seen["cancelled"]) == (0, 0, 4)
    assert (seen["completed"], seen["expired"]) == (4, 3)


def test_expiry_rate(wheel: LocalWheel, timers: LocalTimers) -> None:
    purgatory, other = Purgatory(timers, "p"), Purgatory(timers, "q")
    assert purgatory.metrics()["expiry_rate"] == 0
    watch_all(purgatory, [Op(0.001) for _ in range(90)], ["k"])
    watch_all(other, [Op(9.0) for _ in range(90)], ["k"])
    wheel.advance(MS)
    timers.dispatch()
    other.shutdown(complete=True)
    give_up = time.monotonic() + LONG
    while not (rate := purgatory.metrics()["expiry_rate"]):
        assert time.monotonic() < give_up
        time.sleep(0.05)
    assert 0 < rate <= 90
    assert other.metrics()["expiry_rate"] == 0


def test_numbers_of_each_name(timers: LocalTimers) -> None:
    first, second = Purgatory(timers, "p"), Purgatory(timers, "q")
    watch_all(first, [Op(1.0), Op(1.0)], ["k", "l"])
    watch_all(second, [Op(None)], ["k"])
    assert (first.watched, first.num_delayed) == (4, 2)
    assert (second.watched, second.num_delayed) == (1, 1)
    assert first.shutdown(complete=True)
    assert (second.watched, second.num_delayed) == (1, 1)


def test_destructors_that_call_back(timers: LocalTimers) -> None:
    purgatory = Purgatory(timers, "p")
    freed: list[int] = []
    opened: list[bool] = []

    class Last(Op):
        def try_complete(self) -> bool:
            return bool(opened) and self.force_complete()

        def __del__(self) -> None:
            freed.append(self.name)
            for key in range(10 * self.name, 10 * self.name + 20):
                purgatory.cancel_for_key(key)
            purgatory.try_complete_else_watch(Op(1.0), [("new", self.name)])

    for i in range(300):
        purgatory.try_complete_else_watch(Op(1.0, i), [i, i + 1])
    for i in range(30):
        purgatory.try_complete_else_watch(Last(1.0, i), [10 * i + 5, "own", ("other", i)])
    opened.append(True)
    assert purgatory.check_and_complete("own") == 30
    timers.dispatch()
    timers.dispatch()
    assert sorted(freed) == list(range(30))
    left = purgatory.shutdown()
    assert sum(op.name is None for op in left) == 30
    assert (purgatory.watched, purgatory.num_delayed, timers.pending) == (0, 0, 0)
