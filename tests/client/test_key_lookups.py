"""Timers looked up by key, one or many: their records, and batches that meet keys in use."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from common_fixtures import local_wheel
from local_wheel import MS, SECOND, LocalTimers, LocalWheel
from wheeld_client import KeyInUse, TimerRecord, WheelFull

wheel = local_wheel(payload_bytes=16)


@pytest.fixture
def workers(wheel: LocalWheel) -> list[LocalTimers]:
    return [wheel.worker(0, "a"), wheel.worker(1, "b"), wheel.worker(2, "c", group="web")]


def test_a_record_says_all_that_was_scheduled(
    wheel: LocalWheel, workers: list[LocalTimers]
) -> None:
    a, b, _ = workers
    assert b.find("k") is None
    assert b.remaining("k") is None
    id = a.schedule(2.0, 7, key=("k", 1), payload=b"bytes", to="group:web")
    wheel.advance(500 * MS)
    assert b.find(("k", 1)) == TimerRecord(
        id, ("k", 1), 2 * SECOND, 1.5, "a", "group:web", None, 7, b"bytes"
    )
    assert b.remaining(key=("k", 1)) == 1.5
    other = b.schedule(1.0, key="plain", to="a", interval=0.25)
    assert a.find("plain") == TimerRecord(other, "plain", 1500 * MS, 1.0, "b", "a", 0.25, 0, b"")
    wheel.advance(1100 * MS)
    assert a.remaining("plain") == pytest.approx(0.15), "its next tick"
    own = a.schedule(1.0, key=b"own", payload=b"")
    assert b.find(key=b"own") == TimerRecord(
        own, b"own", wheel.now + SECOND, 1.0, "a", None, None, 0, b""
    )


def test_a_record_names_the_rows_worker_of_now(
    wheel: LocalWheel, workers: list[LocalTimers]
) -> None:
    a, _, c = workers
    for name in ("b", "later"):
        b = wheel.worker(1, name) if name != "b" else workers[1]
        for worker, by in ((b, name), (c, "c"), (b, name)):
            worker.schedule(1.0, key="k", on_conflict="replace")
            found = a.find("k")
            assert found is not None
            assert found.worker == by
        wheel.depart(1)
        wheel.advance(MS)
        assert a.find("k") is None


def test_a_key_of_a_subclass_comes_back_plain(workers: list[LocalTimers]) -> None:
    class Text(str):
        pass

    workers[0].schedule(1.0, key="k")
    found = workers[1].find(Text("k"))
    assert found is not None
    assert type(found.key) is str
    assert [type(one.key) for one in workers[1].find_many([Text("k"), "k"]) if one] == [str, str]


def test_a_record_follows_moves_and_ends(wheel: LocalWheel, workers: list[LocalTimers]) -> None:
    a, b, _ = workers
    a.schedule(1.0, key="k")
    b.reschedule(delay=3.0, key="k")
    assert a.remaining("k") == 3.0
    a.pause(key="k")
    wheel.advance(SECOND)
    assert b.remaining("k") == 3.0, "what is left of a paused timer"
    a.resume(key="k")
    wheel.advance(3 * SECOND)
    assert b.find("k") is None
    (event,) = a.poll(0.0)
    assert a.key_of(event) == "k"
    a.schedule(1.0)
    wheel.advance(SECOND)
    assert a.key_of(a.poll(0.0)[0]) is None


def test_many_are_found_and_cancelled(workers: list[LocalTimers]) -> None:
    a, b, _ = workers
    ids = a.schedule_many([1.0, 2.0, 3.0], [1, 2, 3], keys=["x", 5, ("y", b"z")])
    found = b.find_many([5, "none", ("y", b"z")])
    assert [record and record.id for record in found] == [ids[1], None, ids[2]]
    assert b.cancel_many(keys=["x", "none", 5]).tolist() == [True, False, True]
    assert [record is None for record in b.find_many(["x", 5, ("y", b"z")])] == [True, True, False]
    assert b.find_many(np.array([5])) == [None]
    assert a.pending == 1


def test_a_batch_with_a_key_in_use_does_nothing(
    wheel: LocalWheel, workers: list[LocalTimers]
) -> None:
    a, b, _ = workers
    id = a.schedule(1.0, 1, key=3)
    with pytest.raises(KeyInUse) as refused:
        b.schedule_many([0.0] * 5, keys=range(5))
    assert refused.value.id == id
    assert b._counters()["scheduled"] == 0, "those before it were not armed, and cancelled then"
    wheel.settle()
    assert (b.pending, len(b.poll(0.0))) == (0, 0)
    with pytest.raises(KeyInUse, match="key 'twice' is there twice"):
        b.schedule_many([1.0, 1.0], keys=["twice", "twice"])
    assert b.pending == 0
    assert b.find("twice") is None


@pytest.mark.parametrize(
    ("conflict", "cookies", "dues"),
    [
        ("keep", [1, 2, 9], [1.0, 3.0, 2.0]),
        ("replace", [9, 9, 9], [2.0, 2.0, 2.0]),
        ("later", [1, 2, 9], [2.0, 3.0, 2.0]),
        ("earlier", [1, 2, 9], [1.0, 2.0, 2.0]),
    ],
)
def test_conflicts_of_a_batch(
    workers: list[LocalTimers], conflict: Any, cookies: list[int], dues: list[float]
) -> None:
    a, b, _ = workers
    before = [a.schedule(1.0, 1, key="k1"), a.schedule(3.0, 2, key="k2")]
    ids = b.schedule_many([2.0] * 3, 9, keys=["k1", "k2", "k3"], on_conflict=conflict)
    records = a.find_many(["k1", "k2", "k3"])
    assert [record.id for record in records if record] == ids.tolist()
    assert [record.cookie for record in records if record] == cookies
    assert [record.remaining for record in records if record] == dues
    assert (ids[:2].tolist() == before) is (conflict != "replace")
    assert a.pending + b.pending == 3


def test_payloads_of_a_batch(workers: list[LocalTimers]) -> None:
    a, b, _ = workers
    a.schedule_many([1.0, 1.0], keys=["x", "y"], payloads=[b"", b"long"], to="b")
    a.schedule_many([1.0, 1.0], keys=["p", "q"], payloads=np.array([b"ab", b"cd"]))
    found = b.find_many(["x", "y", "p", "q"])
    assert [record.payload for record in found if record] == [b"", b"long", b"ab", b"cd"]


def test_a_full_wheel_leaves_what_was_there(wheel: LocalWheel, workers: list[LocalTimers]) -> None:
    a, b, _ = workers
    a.schedule_many([5.0] * 600, keys=range(600))
    with pytest.raises(WheelFull):
        b.schedule_many([1.0] * 600, 1, keys=range(300, 900), on_conflict="replace")
    assert b.pending == 0
    assert all(record and record.remaining == 5.0 for record in a.find_many(range(600)))
    ids = b.schedule_many([6.0] * 600, keys=range(600), on_conflict="later")
    assert len(set(ids.tolist())) == 600, "to move them needs no slots"


def test_bad_arguments(workers: list[LocalTimers]) -> None:
    a = workers[0]
    for call in (a.find_many, lambda keys: a.cancel_many(keys=keys)):
        for keys in ("name", 5):
            with pytest.raises(TypeError, match="sequence of keys"):
                call(keys)  # type: ignore[operator]
        with pytest.raises(TypeError, match="got a bool"):
            call([1, True])  # type: ignore[operator]
    with pytest.raises(ValueError, match="got 1, expected 2"):
        a.schedule_many([1.0, 1.0], keys=["one"])
    with pytest.raises(ValueError, match="on_conflict='never': expected"):
        a.schedule_many([1.0], keys=["k"], on_conflict="never")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="give keys="):
        a.schedule_many([1.0], on_conflict="keep")
    for wrong in ({}, {"ids": [1], "keys": ["k"]}):
        with pytest.raises(TypeError, match="ids or keys"):
            a.cancel_many(**wrong)
    with pytest.raises(TypeError, match="key_of\\(\\) takes one expiration"):
        a.key_of(5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="needs the argument 'key'"):
        a.find()  # type: ignore[call-arg]
    assert a.pending == 0
