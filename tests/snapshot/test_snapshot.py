"""Snapshots of a living wheel, and the wheel that is made from one: nothing pending is lost."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from local_wheel import FOREVER, MS, SECOND, LocalWheel, cookies, payloads
from snapshots import Restored, named, snapshot_of, some_timers, take, timer_ids
from wheeld.config.settings import ConfigError, load
from wheeld.snapshot import (
    collect as snapshot_collect,
    file as snapshot_file,
    restore as snapshot_restore,
)
from wheeld.snapshot.collect import collect, comp_head
from wheeld.snapshot.contents import FIELDS, TIMER, TO_GROUP, TO_OWNER, TO_WORKER, Clocks, clock_of
from wheeld.snapshot.restore import apply, plan_restore
from wheeld_client import payload_of
from wheeld_core import _native, packing
from wheeld_core.errors import WheelError
from wheeld_core.views import RegistryView, SlotsView, dtype_of, gathered

MONOTONIC, REALTIME, BOOTTIME = 0, 1, 2


MOVES = np.uint16(packing.FLAGS_MOVES.mask)


def test_a_round_trip_through_a_file(tmp_path: Path) -> None:
    path = tmp_path / "w.snapshot"
    with LocalWheel(payload_bytes=16, start_ns=100 * SECOND) as wheel:
        timers = named(wheel, 0, "web")
        ids = [timers.schedule(1.0 + i, cookie=i, payload=b"p" * i) for i in range(12)]
        timers._schedule_ns(500 * SECOND, REALTIME, 50, payload=b"wall")
        timers._schedule_ns(104 * SECOND, BOOTTIME, 51)
        timers._schedule_ns(FOREVER, MONOTONIC, 52)
        timers.cancel(ids[3])
        wheel.advance(500 * MS)
        snapshot_file.write(path, take(wheel))
    snapshot = snapshot_file.read(path)
    assert (snapshot.name, snapshot.names, snapshot.left_out) == ("test", ("web",), 0)
    with Restored(snapshot, start_ns=7 * SECOND) as again:
        timers = again.workers["web"]
        assert timers.pending == len(snapshot.timers) == 14
        kinds = dict(zip(snapshot.timers["cookie"], clock_of(snapshot.timers), strict=True))
        assert (kinds[0], kinds[50], kinds[51]) == (MONOTONIC, REALTIME, BOOTTIME)
        assert (
            again.slots.slots["flags"][snapshot.timers["slot"]] & ~MOVES == snapshot.timers["flags"]
        ).all()
        again.advance_to(7 * SECOND + 499 * MS)
        assert len(timers.poll()) == 0, "early"
        again.advance_to(7 * SECOND + 5500 * MS)
        events = timers.poll()
        assert cookies(events) == [0, 1, 2, 51, 4, 5]
        assert payloads(events) == [b"", b"p", b"pp", b"", b"pppp", b"ppppp"]
        left = [7 * SECOND + 500 * MS + i * SECOND for i in range(3)]
        assert events["deadline"][:3].tolist() == left
        assert events["timer_id"].tolist()[:3] == ids[:3]
        again.advance_to(500 * SECOND - 1)
        assert cookies(timers.poll()) == [6, 7, 8, 9, 10, 11]
        again.advance_to(500 * SECOND)
        assert payloads(timers.poll()) == [b"wall"]
        assert timers.pending == 1, "the end of time does not come nearer"


BY_NAME = {"target": "a row may be another after a restart, so it is kept as a name"}
"""Fields of a slot that are kept otherwise than as they stand, and why."""


def test_every_field_of_a_slot_is_kept(tmp_path: Path, rng_seed: int) -> None:
    rng, path = np.random.default_rng(rng_seed), tmp_path / "w.snapshot"
    assert {*FIELDS, *BY_NAME} == set(dtype_of("slot").names or ())
    with LocalWheel(payload_bytes=65528, capacity=64) as wheel:
        id = named(wheel, 0, "web").schedule(1.0)
        wheel.settle()
        wheel.slots.slots.setflags(write=True)
        slot = wheel.slots.slots[id & 0xFFFFFFFF : (id & 0xFFFFFFFF) + 1]
        for field in FIELDS:
            slot[field] = rng.integers(0, 256, slot[field].itemsize, np.uint8).view(
                slot.dtype[field]
            )
        slot["deadline"] |= 1 << 61  # not due
        slot["deadline"] &= 2**62 - 1
        period = slot["interval"] & packing.INTERVAL_COUNT.most
        slot["interval"] = packing.interval_word(period, np.array([id >> 32]))
        slot["payload_size"] &= 0x7FFF
        # monotonic; neither private, nor detached, nor with a key that does not name it; the count
        # of moves begins anew
        slot["flags"] &= 0x20
        wheel.scribbled = True
        before = slot.copy()
        snapshot_file.write(path, take(wheel))
    with Restored(snapshot_file.read(path)) as again:
        after = again.slots.slots[id & 0xFFFFFFFF]
        assert after["flags"] == before["flags"][0] | packing.FLAGS_MOVES.mask & id >> 32 << 6
        for field in set(FIELDS) - {"flags"}:
            assert after[field] == before[field][0], field


@pytest.mark.parametrize("start", [0, 1000 * SECOND])
@pytest.mark.parametrize("restore", ["remaining", "wall"])
def test_paused_timers_stay_paused(start: int, restore: str) -> None:
    with LocalWheel(64) as wheel:
        timers = named(wheel, 0, "web")
        once, often = timers.schedule(50.0, 1), timers.schedule(2.5, 2, interval=10.0)
        running = timers.schedule(5000.0, 3)
        wheel.advance(40 * SECOND)
        assert timers.pause(once)
        assert timers.pause(often)
        wheel.advance(60 * SECOND)
        snapshot = take(wheel)
        assert timer_ids(snapshot) == [once, often, running]
    with Restored(snapshot, start, restore=restore) as again:
        timers = again.workers["web"]
        assert cookies(timers.poll()) == []
        again.advance(200 * SECOND)
        assert cookies(timers.poll()) == []
        assert timers.resume(once)
        assert timers.resume(often)
        begun, found = again.now, {}
        while len(found) < 2:
            again.advance(SECOND // 2)
            for event in timers.poll():
                found.setdefault(int(event["cookie"]), int(event["deadline"]) - begun)
        assert found == {1: 10 * SECOND, 2: 5 * SECOND // 2}
        assert timers.pending == 2


def test_in_small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot_collect, "BLOCK_SLOTS", 64)
    monkeypatch.setattr(snapshot_restore, "_PAYLOAD_CHUNK", 7 * 16)
    with LocalWheel(payload_bytes=16) as wheel:
        timers, other = named(wheel, 0, "web"), named(wheel, 1, "other")
        for i in range(500):
            (timers, other)[i % 2].schedule(1.0, cookie=i, payload=b"%d" % i * (i % 4))
        snapshot = take(wheel)
    with Restored(snapshot) as again:
        again.advance(SECOND)
        for i, name in enumerate(["web", "other"]):
            events = again.workers[name].poll()
            assert sorted(cookies(events)) == list(range(i, 500, 2))
            assert payloads(events) == [b"%d" % i * (i % 4) for i in cookies(events)]


def test_ids_stay_valid_and_unique() -> None:
    with LocalWheel(capacity=256, max_workers=2) as wheel:
        timers, other = named(wheel, 0, "web"), wheel.worker(1)
        for _ in range(5):  # slots that were used, and hold nothing now
            for worker in (timers, other):
                for id in [worker.schedule(9.0) for _ in range(30)]:
                    worker.cancel(id)
                wheel.settle()
        ids = [timers.schedule(5.0 + i, cookie=i) for i in range(4)]
        snapshot = take(wheel)
        assert timer_ids(snapshot) == sorted(ids, key=lambda id: id & 0xFFFFFFFF)
        before = (wheel.slots.states >> np.uint64(32)).copy()
    with Restored(snapshot) as again:
        timers = again.workers["web"]
        assert timers.cancel(ids[0])
        assert not timers.cancel(ids[0])
        assert timers.reschedule(ids[1], 1.0)
        again.advance(SECOND)
        assert cookies(timers.poll()) == [1]
        fresh = [timers.schedule(9.0) for _ in range(254)]
        assert timers.pending == 256, "every slot is somebody's"
        assert not set(fresh) & set(ids)
        generations = np.array(fresh, np.uint64) >> np.uint64(32)
        slots = np.array(fresh) & 0xFFFFFFFF
        assert (generations > before[slots]).all(), "an id that was used before"


def test_slots_that_were_never_used_are_not_lost() -> None:
    with LocalWheel(capacity=64) as wheel:
        named(wheel, 0, "web").schedule(1.0)
        snapshot = take(wheel)
    with Restored(snapshot) as again:
        timers = again.workers["web"]
        assert len({timers.schedule(1.0) for _ in range(63)}) == 63
        assert timers.pending == 64


def test_periodic_timers_go_on_along_their_grid() -> None:
    with LocalWheel(start_ns=10 * SECOND) as wheel:
        timers = named(wheel, 0, "web")
        timers.schedule(0.010, cookie=1, interval=0.1)
        timers.schedule(0.010, cookie=2, interval=0.1)
        moved = timers.schedule(0.010, cookie=3, interval=0.1)
        wheel.advance(250 * MS)
        assert len(timers.poll()) == 9
        timers.reschedule(moved, 0.033)
        wheel.settle()
        snapshot = take(wheel)
        by_cookie = dict(zip(snapshot.timers["cookie"], snapshot.timers["deadline"], strict=True))
        at = 10 * SECOND
        assert by_cookie == {1: at + 310 * MS, 2: at + 310 * MS, 3: at + 283 * MS}
        wheel.advance(80 * MS)  # one more tick of each, unread
        unread = take(wheel)
        assert set(unread.timers["deadline"]) == {at + 310 * MS, at + 283 * MS}
        published = take(wheel, with_heads=False)
        assert set(published.timers["deadline"]) == {at + 410 * MS, at + 383 * MS}
        timers.reschedule(moved, 0.005)
        assert at + 335 * MS in take(wheel).timers["deadline"], "the new grid, not the unread tick"
    with Restored(snapshot, start_ns=at) as again:
        timers = again.workers["web"]
        again.advance(59 * MS)
        assert cookies(timers.poll()) == [3]
        again.advance(101 * MS)
        assert cookies(timers.poll()) == [1, 2, 3, 1, 2]


def test_what_fired_and_was_not_received_comes_again() -> None:
    """Unread expirations are pending, received ones are not; without heads, what is published is
    taken for received."""
    with LocalWheel(capacity=4096) as wheel:
        timers = named(wheel, 0, "web")
        for first in range(0, 3000, 500):
            timers.schedule_many([0.001] * 500, cookies=np.arange(first, first + 500))
            wheel.settle()
        wheel.advance(2 * MS)
        room = 1 << int(wheel.view.header["comp_bits"])
        assert set(take(wheel).timers["cookie"]) == set(range(3000))
        assert len(take(wheel, with_heads=False).timers) == 3000 - room
        got = timers.poll(max_events=100)
        snapshot = take(wheel)
        assert set(snapshot.timers["cookie"]) == set(range(3000)) - set(cookies(got))
        assert (snapshot.timers["deadline"] == MS).all()
    with Restored(snapshot, start_ns=SECOND, misfire="skip") as again:
        timers, came = again.workers["web"], []
        assert again.plan.skipped == 0, "it was due before the host went down"
        again.advance(1 * MS)
        while len(events := timers.poll()):
            came += cookies(events)
            again.settle()
        assert sorted(came) == sorted(set(range(3000)) - set(cookies(got)))


def test_a_slot_that_is_given_back_during_the_look() -> None:
    with LocalWheel() as wheel:
        timers = named(wheel, 0, "web")
        id = timers.schedule(0.001, cookie=1)
        wheel.advance(2 * MS)
        wheel.slots.slots["deadline"][id & 0xFFFFFFFF] = 99  # a move that lost against the clock

        class Head:
            def reshape(self, shape: int) -> npt.NDArray[Any]:
                old = comp_head(wheel.worker_memories[0]).copy()
                timers.poll()
                wheel.slots.slots["cookie"][id & 0xFFFFFFFF] = 2
                return old.reshape(shape)

        registry = RegistryView(wheel.registry_memory)
        now = Clocks.of_virtual(wheel.now)
        taken = collect(wheel.view, wheel.slots, registry, now, heads={0: Head()}).timers
        assert (taken["cookie"].tolist(), taken["deadline"].tolist()) == ([1], [MS])


def test_targets_come_back_by_name() -> None:
    with LocalWheel(max_workers=8) as wheel:
        timers, _ = named(wheel, 0, "web"), wheel.worker(1, "unnamed")
        reader, gone = named(wheel, 2, "reader"), named(wheel, 3, "gone")
        for cookie, to in enumerate(["reader", "unnamed", "gone", None, "reader", "reader"]):
            timers.schedule(0.005 if cookie > 3 else 1.0, cookie=cookie, to=to)
        _native.name_group(wheel.registry_memory, 3, "pool")
        grouped = timers.schedule(1.0, cookie=6)
        wheel.slots.slots["target"][grouped & 0xFFFFFFFF] = 3 << 12 | 0xFFF
        wheel.advance(10 * MS)
        assert cookies(reader.poll(max_events=1)) == [4]
        gone.close()
        assert wheel.settle() == [3]
        snapshot = take(wheel)
    to = dict(zip(snapshot.timers["cookie"], snapshot.timers["to"], strict=True))
    assert to == {
        0: TO_WORKER, 1: TO_OWNER, 2: TO_OWNER, 3: TO_OWNER, 5: TO_WORKER, 6: TO_GROUP,
    }  # fmt: skip
    assert (set(snapshot.names), snapshot.groups) == ({"web", "reader"}, ("pool",))
    with Restored(snapshot) as again:
        assert again.plan.workers == sorted(["web", "reader"], key=snapshot.names.index)
        row = 3
        member = named(again, row, "member")
        member.poll()
        again.clock.presence(row, True, 1 << 5)
        assert cookies(again.workers["reader"].poll()) == [5]
        again.advance(1 * SECOND)
        assert cookies(again.workers["reader"].poll()) == [0]
        assert cookies(again.workers["web"].poll()) == [1, 2, 3]
        assert cookies(member.poll()) == [6]


@pytest.mark.parametrize(
    ("state", "on_death", "is_named", "taken"),
    [(1, 0, 1, 1), (2, 0, 1, 1), (4, 1, 1, 1), (3, 0, 1, 0), (3, 1, 1, 1), (3, 2, 1, 1),
     (2, 0, 0, 0), (4, 1, 0, 0), (0, 0, 1, 0)],
)  # fmt: skip
def test_whose_timers_are_taken(state: int, on_death: int, is_named: int, taken: int) -> None:
    with LocalWheel() as wheel:
        timers = named(wheel, 0, "web")
        timers.schedule(1.0)
        row = wheel.row(0)
        row["state"], row["on_death"], row["named"] = state, on_death, is_named
        snapshot = take(wheel)
        assert (len(snapshot.timers), snapshot.left_out) == (taken, 1 - taken)
        row["incarnation"] = 77  # the next tenant of the row: not its timers
        assert len(take(wheel).timers) == 0


def test_a_row_that_is_filled_during_the_look(monkeypatch: pytest.MonkeyPatch) -> None:
    with LocalWheel() as wheel:
        timers, _ = named(wheel, 0, "web"), named(wheel, 1, "reader")
        timers.schedule(1.0, to="reader")
        registry = RegistryView(wheel.registry_memory)
        torn, after = registry.rows.copy(), registry.rows.copy()
        torn["name"][1] = after["name"][1] = b"other"
        after["incarnation"][1] = 9
        looks = [torn]

        def look(array: npt.NDArray[Any], index: npt.NDArray[np.intp]) -> npt.NDArray[Any]:
            if array is not registry.rows:
                return gathered(array, index)
            return looks.pop() if looks else after

        monkeypatch.setattr(snapshot_collect, "gathered", look)
        now = Clocks.of_virtual(0)
        snapshot = collect(wheel.view, wheel.slots, registry, now)
        assert (snapshot.names, snapshot.timers["to"].tolist()) == (("web",), [TO_OWNER])


def test_an_empty_wheel() -> None:
    with LocalWheel() as wheel:
        snapshot = take(wheel)
        assert (len(snapshot.timers), snapshot.names) == (0, ())
    with Restored(snapshot) as again:
        assert again.plan.workers == []
        assert not again.slots.states.any()


def test_scribbled_slots_do_no_harm(tmp_path: Path, rng_seed: int) -> None:
    rng = np.random.default_rng(rng_seed)
    with LocalWheel(payload_bytes=8) as wheel:
        timers = named(wheel, 0, "web")
        ids = [timers.schedule(1.0) for _ in range(500)]
        wheel.settle()
        noise = rng.integers(0, 256, wheel.slots.slots.nbytes, np.uint8)
        wheel.slots.slots.view(np.uint8)[:] = noise
        # private timers are in no snapshot, nor those whose key does not name them
        wheel.slots.slots["flags"] &= 0xFFE3
        wheel.slots.owners[0] = 2**64 - 1
        wheel.slots.owners[1] = 0xFFFF
        snapshot_file.write(tmp_path / "s", take(wheel))
    snapshot = snapshot_file.read(tmp_path / "s")
    assert set(timer_ids(snapshot)) == {id for id in ids if id & 0xFFFFFFFF >= 128}


def test_private_timers_are_in_no_snapshot() -> None:
    with LocalWheel(payload_bytes=8) as wheel:
        timers = named(wheel, 0, "web")
        timers.call_later(1.0, print)
        id = timers.schedule(1.0)
        timers.call_later(0.0, print)
        wheel.settle()
        assert timer_ids(take(wheel)) == [id]


def test_restoring_needs_fresh_segments_and_rows_for_the_owners() -> None:
    clocks = Clocks.of_virtual(0)
    plan = plan_restore(snapshot_of(some_timers(3), clocks), clocks, 1024, 8)
    with LocalWheel(payload_bytes=8) as wheel:
        with pytest.raises(WheelError, match=r"'w' .* no row"):
            apply(plan, wheel.slots, wheel.view, {})
        assert not wheel.slots.states.any()
        named(wheel, 0, "w").schedule(1.0)
        with pytest.raises(WheelError, match="fresh"):
            apply(plan, wheel.slots, wheel.view, {"w": (0, 1)})


def test_states_are_written_last() -> None:
    clocks = Clocks.of_virtual(0)
    plan = plan_restore(snapshot_of(some_timers(3), clocks), clocks, 1024, 0)
    with LocalWheel() as wheel:
        seen: list[bool] = []

        class Spy(SlotsView):
            def __getattribute__(self, name: str) -> object:
                if name != "states":
                    seen.append(bool(wheel.slots.states.any()))
                return super().__getattribute__(name)

        apply(plan, Spy(wheel.slots_memory, 1024, 0), wheel.view, {"w": (0, 1)})
        assert not any(seen)
        assert (wheel.slots.states[:3] == (1 << 32 | 1)).all()
        assert wheel.slots.slots.dtype != TIMER


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"snapshot_every": "2h"}, ("snapshot_every", "'2h'", "3600s", "'10s'")),
        ({"snapshot_every": "1ms"}, ("snapshot_every", "10ms")),
        ({"snapshot_every": 5}, ("snapshot_every", "str")),
        ({"restore": "later"}, ("restore", "'later'", "'remaining' or 'wall'")),
        ({"misfire": "drop"}, ("misfire", "'drop'", "'fire' or 'skip'")),
        ({"state_dir": ""}, ("state_dir", "directory")),
    ],
)
def test_bad_options(values: dict[str, object], words: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as caught:
        load(values)
    assert all(word in str(caught.value) for word in words), caught.value


def test_good_options() -> None:
    assert load({}).snapshot_every_ns == 10 * SECOND
    assert load({"snapshot_every": "1h"}).snapshot_every_ns == 3600 * SECOND
    assert load({"restore": "wall", "misfire": "skip", "state_dir": "x"}).state_dir == "x"


SIZES = (0, 5, 16, 17, 200, 9, 60_000, 1)


@pytest.mark.parametrize("room", [0, 16, 256])
def test_payloads_of_the_heap_are_kept(tmp_path: Path, room: int) -> None:
    path = tmp_path / "w.snapshot"
    texts = [bytes([number]) * size for number, size in enumerate(SIZES)]
    with LocalWheel(payload_bytes=16, heap_chunks=8) as wheel:
        timers = named(wheel, 0, "web")
        for number, text in enumerate(texts):
            timers.schedule(0.001 if number % 2 else 50.0, number, payload=text)
        wheel.advance(2 * MS)  # half of them have fired, and are not read
        snapshot_file.write(path, take(wheel))
    snapshot = snapshot_file.read(path)
    assert snapshot.sizes().tolist() == list(SIZES)
    with Restored(snapshot, payload_bytes=room, heap_chunks=8) as again:
        timers = again.workers["web"]
        again.advance(60 * SECOND)
        found = {int(event["cookie"]): payload_of(event) for event in timers.poll()}
        assert found == dict(enumerate(texts))
        assert timers.stats()["payload_bytes"] == 0


def test_a_heap_that_is_too_small_for_the_snapshot() -> None:
    with LocalWheel(heap_chunks=8) as wheel:
        timers = named(wheel, 0, "web")
        for _ in range(5):
            timers.schedule(50.0, payload=bytes(59_000))
        snapshot = take(wheel)
    with pytest.raises(WheelError, match=r"295,000 bytes of payloads.*--payload-heap"):
        Restored(snapshot, heap_chunks=4)
    with pytest.raises(WheelError, match=r"payload of 59000 bytes.*--max-payload 59000"):
        Restored(snapshot)
