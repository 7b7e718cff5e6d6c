"""Clients check what others of the group can write: rings, slots, the words that all share."""

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

from common_fixtures import local_wheel
from distrust import Rings
from local_wheel import DROP, KEEP, MS, LocalTimers, LocalWheel
from programs import SUPPORT
from wheeld_core.views import record

ROUNDS = {"rings": 150, "all": 400}


@pytest.mark.parametrize("how", ["rings", "all"])
def test_garbage(how: str, rng_seed: int) -> None:
    script = str(SUPPORT / "distrust.py")
    command = [sys.executable, script, how, str(rng_seed), str(ROUNDS[how])]
    done = subprocess.run(command, capture_output=True, text=True, timeout=150)
    assert done.returncode == 0, (rng_seed, done.stderr[-3000:])
    assert done.stdout.startswith("well")


wheel = local_wheel(256, payload_bytes=8)


def doubted(timers: LocalTimers) -> int:
    return int(timers._counters()["disbelieved"])


RECORDS = {
    "a slot behind the last": lambda ids: 1 << 32 | 256,
    "the last slot that there could be": lambda ids: 1 << 32 | 2**30 - 1,
    "a tick of a slot behind the last": lambda ids: 1 << 32 | 1 << 30 | 256,
    "a loan of a slot behind the last": lambda ids: 1 << 32 | 2 << 30 | 2**30 - 1,
    "an offer of a slot behind the last": lambda ids: 1 << 32 | 3 << 30 | 2**30 - 1,
    "another timer of its slot": lambda ids: ids["fired"] + (1 << 32),
    "a loan of another timer": lambda ids: (ids["fired"] + (1 << 32)) | 2 << 30,
    "a timer that is armed": lambda ids: ids["armed"],
    "a loan that is armed": lambda ids: ids["armed"] | 2 << 30,
    "a timer that was cancelled": lambda ids: ids["cancelled"],
    "a timer of another worker's": lambda ids: ids["theirs"],
}


@pytest.mark.parametrize("hold", [False, True])
@pytest.mark.parametrize("what", RECORDS)
def test_a_record_that_cannot_be(wheel: LocalWheel, what: str, hold: bool) -> None:
    timers, other = wheel.worker(0), wheel.worker(1)
    ids = {"armed": timers.schedule(100.0, 9), "cancelled": timers.schedule(100.0)}
    timers.cancel(ids["cancelled"])
    ids["theirs"] = other.schedule(0.001)
    ids["fired"] = timers.schedule(0.001, 1, payload=b"12345678")
    for cookie in (2, 3):
        timers.schedule(0.001, cookie)
    wheel.advance(2 * MS)
    ring = Rings(wheel, 0)
    places = ring.events()
    order = ring.comps["cookie"][places].tolist()
    ring.comps["id"][places[1]] = RECORDS[what](ids)
    events = timers.poll(hold=hold)
    assert events["cookie"].tolist() == [order[0], order[2]]
    timers.acknowledge()
    assert doubted(timers) == 1 + hold  # as it is acknowledged, too
    assert timers.cancel(ids["armed"])
    assert other.poll()["timer_id"].tolist() == [ids["theirs"]]


@pytest.mark.parametrize("size", [9, 2**15, 2**16 - 1])
def test_a_payload_that_is_too_long(wheel: LocalWheel, size: int) -> None:
    timers = wheel.worker(0)
    timers.schedule(0.001, 1, payload=b"12345678")
    wheel.advance(2 * MS)
    ring = Rings(wheel, 0)
    ring.comps["payload_size"][ring.events()] = size
    ring.comps["flags"][ring.events()] = 0xFFFF
    events = timers.poll()
    assert (events["payload_size"].tolist(), events["payload"][0].tobytes()) == ([8], b"12345678")


def test_held_records_that_are_overwritten(wheel: LocalWheel) -> None:
    timers = wheel.worker(0)
    armed = timers.schedule(100.0)
    for _ in range(3):
        timers.schedule(0.001)
    wheel.advance(2 * MS)
    ring = Rings(wheel, 0)
    assert len(timers.poll(hold=True)) == 3
    ring.comps["id"][ring.events()] = [armed, 1 << 32 | 2**30 - 1, 1 << 32 | 256]
    timers.acknowledge()
    assert doubted(timers) == 3
    ids = timers.schedule_many([100.0] * 60)
    assert armed not in ids
    assert timers.cancel(armed)


@pytest.mark.parametrize("slot", ["armed", 256, 2**30, 2**32 - 1])
def test_a_return_that_cannot_be(wheel: LocalWheel, slot: Any) -> None:
    timers = wheel.worker(0)
    armed, cancelled = timers.schedule(100.0, 1), timers.schedule(100.0)
    timers.cancel(cancelled)
    wheel.settle()
    ring = Rings(wheel, 0)
    ring.rets[ring.returns()] = armed & 0xFFFFFFFF if slot == "armed" else slot
    timers.poll()
    assert doubted(timers) == 1
    ids = timers.schedule_many([200.0] * 62).tolist()
    assert len({id & 0xFFFFFFFF for id in (armed, *ids)}) == 63
    wheel.advance(150_000 * MS)
    assert timers.poll()["timer_id"].tolist() == [armed]


@pytest.mark.parametrize("word", ["sub_tail", "comp_head", "ret_head"])
@pytest.mark.parametrize("value", [0, 2**63, 2**64 - 1, "far behind", "far ahead"])
def test_positions_that_a_successor_finds(wheel: LocalWheel, word: str, value: Any) -> None:
    wheel.start_rings_at(0, 2**40)
    timers = wheel.worker(0)
    timers.schedule(0.001, 1)
    wheel.advance(2 * MS)
    wheel.depart(0, KEEP)
    wheel.settle()
    fields = record(wheel.worker_memories[0], "worker")
    away = {"far behind": -(2**20), "far ahead": 2**20}
    fields[word] = value if isinstance(value, int) else int(fields[word]) + away[value]
    successor = wheel.successor(0)
    expected = [] if word == "comp_head" else [1]
    assert successor.poll()["cookie"].tolist() == expected
    successor.schedule(0.001, 2)
    wheel.advance(2 * MS)
    assert successor.poll()["cookie"].tolist() == [2]
    for _ in range(300):
        assert successor.cancel(successor.schedule(100.0))
        wheel.settle()
    wheel.depart(0, DROP)
    wheel.settle()


def test_what_is_right_is_believed(wheel: LocalWheel) -> None:
    rng = np.random.default_rng(1)
    made = [wheel.worker(0), wheel.worker(1, "b")]
    count = came = 0
    for turn in range(60):
        for number, timers in enumerate(made):
            to = "b" if turn % 3 == 0 else None
            ids = timers.schedule_many(rng.integers(1, 9, 20) / 1e3, to=to)
            count += 20 - int(timers.cancel_many(ids[:4]).sum())
            if turn % 20 == 10 + number:
                wheel.settle()
                wheel.restart_clock()
        wheel.advance(2 * MS)
        came += sum(len(timers.poll(max_events=30)) for timers in made)
    for _ in range(20):
        wheel.advance(20 * MS)
        came += sum(len(timers.poll()) for timers in made)
    assert (came, [doubted(timers) for timers in made]) == (count, [0, 0])
