"""Payloads of any size: in the heap, back exactly, and nothing left of them in the end."""

from __future__ import annotations

import asyncio
import copy
import multiprocessing
import os
import pickle
import signal
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import wheeld
from common_fixtures import local_wheel
from daemons import status_of, until
from local_wheel import DROP, KEEP, MS, LocalTimers, LocalWheel
from wheeld_client import PayloadHeapFull, PayloadTooLarge, WheelFull, connect, payload_of
from wheeld_client.aio.timers import AsyncTimers
from wheeld_core import _native
from wheeld_core.views import beside_of

SIZES = (1, 7, 8, 63, 64, 100, 112, 113, 4096, 59_392, 59_393, 65_536)


def text(size: int, seed: int = 0) -> bytes:
    return np.random.default_rng(size + seed).bytes(size)


wheel = local_wheel(1024, heap_chunks=64)


def heap(timers: Any) -> int:
    found: int = timers.stats()["payload_bytes"]
    return found


@pytest.mark.parametrize("room", [0, 16])
def test_every_size_comes_back(room: int) -> None:
    with LocalWheel(1024, payload_bytes=room, heap_chunks=64) as wheel:
        timers = wheel.worker(0)
        for number, size in enumerate(SIZES):
            timers.schedule(0.001, number, payload=text(size))
        assert heap(timers) == sum(size for size in SIZES if size > room)
        wheel.advance(2 * MS)
        events = timers.poll()
        found = {int(event["cookie"]): payload_of(event) for event in events}
        assert found == {number: text(size) for number, size in enumerate(SIZES)}
        assert events["payload_size"].tolist() == [len(payload_of(event)) for event in events]
        assert heap(timers) == 0


def test_batches(wheel: LocalWheel, timers: LocalTimers) -> None:
    given = [text(7 * number % 300, number) for number in range(200)]
    ids = timers.schedule_many(np.full(200, 0.001), np.arange(200, dtype="u8"), payloads=given)
    assert heap(timers) == sum(map(len, given))
    timers.cancel_many(ids[::2])
    assert heap(timers) == sum(map(len, given[1::2]))
    wide = timers.schedule_many([0.001] * 3, 1000, payloads=np.array([b"a" * 99] * 3))
    assert timers.cancel(int(wide[0]))
    wheel.advance(2 * MS)
    events = timers.poll()
    kept = {int(e["cookie"]): payload_of(e) for e in events if e["cookie"] < 200}
    assert kept == {number: given[number] for number in range(1, 200, 2)}
    assert [payload_of(e) for e in events if e["cookie"] == 1000] == [b"a" * 99] * 2
    assert heap(timers) == 0


def test_a_cancel_frees_at_once(wheel: LocalWheel, timers: LocalTimers) -> None:
    other = wheel.worker(1)
    mine, theirs = (timers.schedule(9.0, payload=text(5000)) for _ in range(2))
    wheel.settle()
    assert timers.cancel(mine)
    assert heap(timers) == 5000
    assert other.cancel(theirs)
    assert heap(timers) == 0


def test_the_receiver_gets_it(wheel: LocalWheel, timers: LocalTimers) -> None:
    other = wheel.worker(1, "other")
    timers.schedule(0.001, payload=text(70_000 - 5000), to="other")
    wheel.advance(2 * MS)
    (event,) = other.poll()
    assert payload_of(event) == text(65_000)
    wheel.settle()
    assert heap(timers) == 0


def test_each_tick_brings_it(wheel: LocalWheel, timers: LocalTimers) -> None:
    timer = timers.schedule(0.001, payload=text(300), interval=0.001)
    for _ in range(3):
        wheel.advance(MS)
        (event,) = timers.poll()
        assert payload_of(event) == text(300)
        assert heap(timers) == 300
    wheel.advance(MS)
    timers.cancel(timer)
    assert len(timers.poll()) == 0
    assert heap(timers) == 0


def test_a_slot_is_used_again(wheel: LocalWheel, timers: LocalTimers) -> None:
    for turn in range(3000):
        timers.schedule(0.001, turn, payload=text(1 + turn % 150))
        if turn % 50 == 49:
            wheel.advance(2 * MS)
            for event in timers.poll():
                assert payload_of(event) == text(1 + int(event["cookie"]) % 150)
    assert heap(timers) == 0


def test_held_events(wheel: LocalWheel) -> None:
    first = wheel.worker(0)
    for number in range(4):
        first.schedule(0.001, number, payload=text(200, number))
    wheel.advance(2 * MS)
    assert [payload_of(e) for e in first.poll(hold=True)] == [text(200, n) for n in range(4)]
    assert heap(first) == 800
    wheel.depart(0, KEEP)
    wheel.settle()
    second = wheel.successor(0)
    assert [payload_of(e) for e in second.poll(hold=True)] == [text(200, n) for n in range(4)]
    second.acknowledge()
    assert heap(second) == 0


def test_it_ends_with_its_worker(wheel: LocalWheel) -> None:
    first, second = wheel.worker(0), wheel.worker(1)
    for number in range(20):
        first.schedule(0.001 if number % 2 else 9.0, payload=text(1000))
    wheel.advance(2 * MS)
    assert heap(second) == 20_000
    wheel.depart(0, DROP)
    wheel.settle()
    assert heap(second) == 0


def test_too_large_for_one(timers: LocalTimers) -> None:
    with pytest.raises(PayloadTooLarge, match=r"65537 bytes; this wheel holds 65536 .*max-payload"):
        timers.schedule(1.0, payload=bytes(65_537))
    with pytest.raises(PayloadTooLarge, match="nothing of the batch"):
        timers.schedule_many([1.0, 1.0], payloads=[b"x", bytes(65_537)])
    assert (timers.pending, heap(timers)) == (0, 0)


def test_too_much_for_all(wheel: LocalWheel, timers: LocalTimers) -> None:
    ids = [timers.schedule(9.0, payload=bytes(59_000)) for _ in range(64)]
    assert issubclass(PayloadHeapFull, WheelFull)
    for block in (True, False):
        with pytest.raises(PayloadHeapFull, match=r"payload heap is full: .*--payload-heap"):
            timers.schedule(9.0, payload=b"one more", block=block)
    with pytest.raises(PayloadHeapFull):
        timers.schedule_many([9.0] * 2, payloads=[b"one more"] * 2)
    assert timers.pending == 64
    assert timers.schedule(9.0)  # without a payload
    timers.cancel(ids.pop())
    wheel.settle()
    half = [timers.schedule(9.0, payload=bytes(29_000)) for _ in range(2)]
    with pytest.raises(PayloadHeapFull):
        timers.schedule_many([9.0] * 3, payloads=[bytes(29_000)] * 3)
    assert heap(timers) == 63 * 59_000 + 2 * 29_000
    timers.cancel_many([*ids, *half])
    assert heap(timers) == 0


def test_with_a_key(wheel: LocalWheel, timers: LocalTimers) -> None:
    timers.schedule(9.0, key="k", payload=text(500))
    timers.schedule(0.001, key="k", on_conflict="replace", payload=text(600))
    assert heap(timers) == 600
    timers.schedule(5.0, key="k", on_conflict="keep", payload=text(700))
    assert heap(timers) == 600
    wheel.advance(2 * MS)
    (event,) = timers.poll()
    assert (timers._key_of(int(event["timer_id"])), payload_of(event)) == ("k", text(600))
    timers.schedule(9.0, key="k", payload=text(800))
    assert timers.cancel(key="k")
    assert heap(timers) == 0


def test_with_a_grace(wheel: LocalWheel, timers: LocalTimers) -> None:
    timers.schedule(0.001, payload=text(500), grace=10.0)
    wheel.advance(2 * MS)
    (event,) = timers.poll()
    assert (bool(event["late"]), payload_of(event)) == (False, text(500))


# -- beside the events -----------------------------------------------------------------------------


def polled(wheel: LocalWheel, timers: LocalTimers, count: int = 4) -> Any:
    for number in range(count):
        timers.schedule(0.001, number, payload=text(100, number))
    wheel.advance(2 * MS)
    return timers.poll()


def test_copies_of_the_array_have_it(wheel: LocalWheel, timers: LocalTimers) -> None:
    events = polled(wheel, timers)
    mine = events["cookie"] == 2
    for part in (
        events[2:3], events[mine], events[[2]], events[::-1][1:2], events.copy()[2:3],
        copy.deepcopy(events)[2:3], pickle.loads(pickle.dumps(events))[2:3],
        np.concatenate([events[:1], events[2:]])[1:2], np.sort(events, order="cookie")[2:3],
    ):  # fmt: skip
        assert [payload_of(event) for event in part] == [text(100, 2)]
    assert payload_of(list(events)[2]) == text(100, 2)


def test_joined_with_others(wheel: LocalWheel, timers: LocalTimers) -> None:
    first = polled(wheel, timers)
    timers.schedule(0.001, 9)
    wheel.advance(2 * MS)
    plain = timers.poll()
    assert type(plain) is np.ndarray
    joined = np.concatenate([plain, first, polled(wheel, timers, 2)])
    assert [payload_of(event) for event in joined[1:]] == [text(100, n) for n in (0, 1, 2, 3, 0, 1)]


def test_a_record_without_its_array(wheel: LocalWheel, timers: LocalTimers) -> None:
    event = polled(wheel, timers)[0]
    assert payload_of(event) == text(100)
    lost = event.copy()
    with pytest.raises(LookupError, match=r"payload of 100 bytes.*ask payload_of\(\) before"):
        payload_of(lost)
    assert beside_of(lost, "payload") is None


def test_fields_are_plain_arrays(wheel: LocalWheel, timers: LocalTimers) -> None:
    events = polled(wheel, timers)
    assert type(events["cookie"]) is np.ndarray
    assert type(np.isin(events["cookie"], [1])) is np.ndarray


# -- a daemon as it comes --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def daemon() -> Iterator[str]:
    with wheeld.embedded(max_payload="1M", payload_heap="32M") as daemon:
        yield daemon


def test_a_default_daemon() -> None:
    with wheeld.embedded() as daemon, connect(daemon) as timers:
        timers.schedule(0.0, payload=text(64))
        assert payload_of(timers.poll(60.0)[0]) == text(64)
        with pytest.raises(PayloadTooLarge):
            timers.schedule(0.0, payload=bytes(65_537))


def test_the_heap_grows(daemon: str) -> None:
    with connect(daemon) as timers:
        sizes = [1_000_000, 3, 500_000, 900_000] * 4
        ids = [timers.schedule(60.0, payload=bytes(size)) for size in sizes]
        found = status_of(daemon)["payload_heap"]
        assert found["bytes"] == heap(timers) == sum(sizes)
        assert sum(sizes) < found["memory"] <= found["memory_at_most"] == 32 << 20
        with pytest.raises(PayloadHeapFull):
            timers.schedule_many(np.full(30, 60.0), payloads=[bytes(1_000_000)] * 30)
        assert heap(timers) == sum(sizes)
        timers.cancel_many(ids)
        assert heap(timers) == 0


def test_on_an_event_loop(daemon: str) -> None:
    async def main() -> list[bytes]:
        async with AsyncTimers(daemon) as timers:
            for number in range(300):
                await timers.patiently(timers.schedule, 0.0, payload=text(3000, number))
            found: list[bytes] = []
            async for event in timers:
                found.append(payload_of(event))
                if len(found) == 300:
                    break
            return found

    assert sorted(asyncio.run(main())) == sorted(text(3000, number) for number in range(300))


def arm_and_wait(daemon: str, armed: Any) -> None:
    with connect(daemon) as timers:
        for number in range(100):
            timers.schedule(0.0 if number % 2 else 60.0, payload=text(5000))
        armed.set()
        signal.pause()


def test_a_killed_worker_leaves_nothing(daemon: str) -> None:
    spawn = multiprocessing.get_context("spawn")
    with connect(daemon) as timers:
        armed = spawn.Event()
        process = spawn.Process(target=arm_and_wait, args=(daemon, armed))
        process.start()
        assert armed.wait(60.0)
        assert heap(timers) == 500_000
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        process.join()
        until(lambda: heap(timers) == 0, "its payloads are gone")


def test_constants() -> None:
    assert _native.CHUNK_BYTES == 65_536
    assert _native.MAX_PAYLOAD == 16 << 20
