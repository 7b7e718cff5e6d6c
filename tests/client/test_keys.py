"""Timers by key: one of each, whoever asks, and free in the instant in which it ends."""

from __future__ import annotations

from typing import Any

import pytest

from common_fixtures import local_wheel
from local_wheel import DROP, KEEP, MS, SECOND, LocalTimers, LocalWheel
from wheeld_core.errors import KeyInUse

KEYS: list[Any] = [
    "", "name", "é" * 17, b"", b"\0bytes", 0, -1, 2**63, -(2**200), (), ("a", 1, b"c"), "x" * 1000,
]  # fmt: skip


wheel = local_wheel(payload_bytes=16)


@pytest.fixture
def workers(wheel: LocalWheel) -> list[LocalTimers]:
    return [wheel.worker(row, f"w{row}") for row in range(3)]


def keys_of(timers: LocalTimers) -> list[Any]:
    return [timers._key_of(int(event["timer_id"])) for event in timers.poll(0.0)]


@pytest.mark.parametrize("key", KEYS)
def test_a_key_goes_there_and_back(wheel: LocalWheel, workers: list[LocalTimers], key: Any) -> None:
    a, b, _ = workers
    id = a.schedule(1.0, key=key)
    assert b._find(key) == id
    assert b._key_of(id) == key
    wheel.advance(2 * SECOND)
    assert b._find(key) == 0, "free before anybody has read the event"
    again = b.schedule(1.0, key=key)
    assert keys_of(a) == [key]
    assert a._find(key) == again


def test_keys_of_different_types_are_different(workers: list[LocalTimers]) -> None:
    keys: list[Any] = ["1", b"1", 1, ("1",), (1,), ("1", ""), ("", "1"), ("a", "b"), ("ab",)]
    ids = [workers[0].schedule(1.0, key=key) for key in keys]
    assert [workers[1]._find(key) for key in keys] == ids


@pytest.mark.parametrize(
    ("bad", "error"),
    [
        (True, TypeError),
        ((1, False), TypeError),
        (1.5, TypeError),
        (("a", ("b",)), TypeError),
        ([], TypeError),
        ("x" * 1024, ValueError),
        ("\ud800", ValueError),
        (("a", "\udfff"), ValueError),
        (("x" * 600, "y" * 600), ValueError),
    ],
)
def test_bad_keys(workers: list[LocalTimers], bad: Any, error: type[Exception]) -> None:
    for call in (
        lambda: workers[0].schedule(1.0, key=bad),
        lambda: workers[0].cancel(key=bad),
        lambda: workers[0].reschedule(delay=1.0, key=bad),
    ):
        with pytest.raises(error, match=r"^key .*: got|is too long"):
            call()
    assert workers[0].pending == 0


def test_conflicts(wheel: LocalWheel, workers: list[LocalTimers]) -> None:
    a, b, _ = workers
    id = a.schedule(2.0, 1, key="k")
    with pytest.raises(KeyInUse) as refused:
        b.schedule(1.0, key="k")
    assert refused.value.id == id
    assert isinstance(refused.value, ValueError)
    assert b.schedule(1.0, 2, key="k", on_conflict="keep") == id
    assert b.schedule(1.0, 2, key="k", on_conflict="later") == id
    wheel.advance(1500 * MS)
    assert len(a.poll(0.0)) == 0, "it stays at 2 s"
    assert b.schedule(1.0, 2, key="k", on_conflict="later") == id
    wheel.advance(500 * MS)
    assert len(a.poll(0.0)) == 0, "it is at 2.5 s"
    assert b.schedule(0.1, 2, key="k", on_conflict="earlier") == id
    wheel.advance(100 * MS)
    assert a.poll(0.0)["cookie"].tolist() == [1]
    with pytest.raises(ValueError, match=r"on_conflict='never': expected 'raise'"):
        b.schedule(1.0, key="k", on_conflict="never")  # type: ignore[typeddict-item]
    with pytest.raises(ValueError, match="give key="):
        b.schedule(1.0, on_conflict="keep")


def test_a_replaced_timer_never_fires(wheel: LocalWheel, workers: list[LocalTimers]) -> None:
    a, b, c = workers
    a.schedule(1.0, 1, key="k", payload=b"old", to="w2")
    new = b.schedule(1.0, 2, key="k", payload=b"new", on_conflict="replace")
    assert a._find("k") == new
    assert a.pending == 0
    wheel.advance(2 * SECOND)
    assert [len(each.poll(0.0)) for each in (a, c)] == [0, 0]
    assert b.poll(0.0)["cookie"].tolist() == [2]


def test_a_periodic_timer_keeps_its_key(wheel: LocalWheel, workers: list[LocalTimers]) -> None:
    a, b, _ = workers
    id = a.schedule(1.0, key=("job", 1), interval=1.0)
    for _ in range(3):
        wheel.advance(SECOND)
        assert keys_of(a) == [("job", 1)]
        assert b._find(("job", 1)) == id
    assert b.cancel(key=("job", 1))
    assert not b.cancel(key=("job", 1))
    assert b.schedule(1.0, key=("job", 1))


def test_a_periodic_timer_is_compared_by_its_next_tick(
    wheel: LocalWheel, workers: list[LocalTimers]
) -> None:
    a, b, _ = workers
    id = a.schedule(1.0, key="k", interval=4.0)
    wheel.advance(SECOND)
    assert len(a.poll(0.0)) == 1
    assert b.schedule(2.0, key="k", on_conflict="later") == id
    wheel.advance(3 * SECOND)
    assert len(a.poll(0.0)) == 0, "it stays at 5 s"
    assert b.schedule(0.5, key="k", on_conflict="earlier") == id
    wheel.advance(500 * MS)
    assert len(a.poll(0.0)) == 1, "it is at 4.5 s"


def test_any_worker_moves_and_cancels(wheel: LocalWheel, workers: list[LocalTimers]) -> None:
    a, b, _ = workers
    a.schedule(1.0, key="k")
    assert b.reschedule(delay=5.0, key="k")
    wheel.advance(2 * SECOND)
    assert len(a.poll(0.0)) == 0
    assert b.cancel(None, key="k")
    wheel.advance(9 * SECOND)
    assert len(a.poll(0.0)) == 0
    assert not b.reschedule(delay=1.0, key="k")
    for call in (a.cancel, lambda **k: a.reschedule(delay=1.0, **k)):
        with pytest.raises(TypeError, match="an id or a key"):
            call()
        with pytest.raises(TypeError, match="an id or a key"):
            call(id=5, key="k")


@pytest.mark.parametrize("leave", [DROP, KEEP])
def test_a_death(wheel: LocalWheel, workers: list[LocalTimers], leave: int) -> None:
    a, b, _ = workers
    id = a.schedule(1.0, key="k")
    wheel.settle()
    wheel.depart(0, leave)
    wheel.settle()
    if leave == DROP:
        assert b._find("k") == 0
        assert b.schedule(1.0, key="k")
    else:
        assert b._find("k") == id
        with pytest.raises(KeyInUse):
            b.schedule(1.0, key="k")
    wheel.restart_clock()
    wheel.advance(2 * SECOND)
    assert b._find("k") == 0
    assert keys_of(b) == (["k"] if leave == DROP else [])


def test_many_more_keys_than_places(workers: list[LocalTimers], wheel: LocalWheel) -> None:
    a, b, _ = workers
    for turn in range(200):
        ids = [a.schedule(0.01, key=(turn, n)) for n in range(500)]
        assert b._find((turn, 499)) == ids[-1]
        assert a.cancel_many(ids[:250]).all()
        wheel.advance(20 * MS)
        assert sorted(key[1] for key in keys_of(a)) == list(range(250, 500))
