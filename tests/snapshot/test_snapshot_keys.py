"""Timers of a snapshot have their keys again, in a directory that hashes them otherwise."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from local_wheel import MS, SECOND, LocalTimers, LocalWheel, cookies
from snapshots import Restored, directory_of, named, snapshot_of, some_timers, take
from wheeld.snapshot import file as snapshot_file
from wheeld.snapshot.contents import Clocks, Snapshot
from wheeld.snapshot.keys import KEYED
from wheeld.snapshot.restore import apply, plan_restore
from wheeld_core.errors import KeyInUse, WheelError
from wheeld_core.views import DirectoryView

KEYS: list[Any] = ["", "name", b"bytes", 7, -(2**200), ("job", 1), "x" * 1000]
NEW_SEED = {"token": 12345}


def keys_of(timers: LocalTimers) -> list[Any]:
    return [timers._key_of(int(event["timer_id"])) for event in timers.poll()]


def through_a_file(path: Path, snapshot: Snapshot) -> Snapshot:
    snapshot_file.write(path, snapshot)
    return snapshot_file.read(path)


def test_keys_come_back(tmp_path: Path) -> None:
    with LocalWheel() as wheel:
        timers = named(wheel, 0, "web")
        ids = [timers.schedule(1.0 + i, key=key) for i, key in enumerate(KEYS)]
        timers.schedule(1.0, 9)
        wheel.settle()
        snapshot = through_a_file(tmp_path / "s", take(wheel))
    with Restored(snapshot, capacity=2048, **NEW_SEED) as again:
        web, other = again.workers["web"], again.worker(3)
        for id, key in zip(ids, KEYS, strict=True):
            assert other._find(key) == id
            assert other._key_of(id) == key
            with pytest.raises(KeyInUse):
                other.schedule(1.0, key=key)
        assert other.cancel(key=KEYS[1])
        new = other.schedule(9.0, key=KEYS[2], on_conflict="replace")
        assert other.reschedule(delay=8.5, key=KEYS[3])
        again.advance(8 * SECOND)
        assert keys_of(web) == [KEYS[0], None, *KEYS[4:]]
        assert [other._find(key) for key in KEYS] == [0, 0, new, ids[3], 0, 0, 0]
        again.advance(SECOND)
        assert keys_of(web) == [KEYS[3]]
        assert keys_of(other) == [KEYS[2]]


def test_an_unread_event_has_its_key_and_does_not_take_it() -> None:
    with LocalWheel() as wheel:
        timers = named(wheel, 0, "web")
        timers.schedule(1.0, 1, key="k")
        timers.schedule(1.0, 2, key="free")
        wheel.advance(2 * SECOND)
        timers.schedule(9.0, 3, key="k")
        wheel.settle()
        snapshot = take(wheel)
    with Restored(snapshot, **NEW_SEED) as again:
        web = again.workers["web"]
        assert web._find("free") == 0, "as it was when it fired"
        assert web.cancel(key="k")
        again.advance(SECOND)
        assert sorted(keys_of(web)) == ["free", "k"]


def test_a_periodic_timer_with_an_unread_tick_keeps_its_key() -> None:
    with LocalWheel() as wheel:
        id = named(wheel, 0, "web").schedule(1.0, key="k", interval=1.0)
        wheel.advance(SECOND)
        snapshot = take(wheel)
    with Restored(snapshot, start_ns=SECOND, **NEW_SEED) as again:
        web = again.workers["web"]
        for _ in range(3):
            assert web._find("k") == id
            assert keys_of(web) == ["k"]
            again.advance(SECOND)


def test_one_that_was_replaced_is_in_no_snapshot() -> None:
    with LocalWheel() as wheel:
        timers = named(wheel, 0, "web")
        old = timers.schedule(5.0, 1, key="k")
        timers.schedule(5.0, 2, key="k", on_conflict="replace")
        slot = old & 0xFFFFFFFF  # a worker that dies before it cancels leaves it so
        wheel.slots.states.setflags(write=True)
        wheel.slots.states[slot] = wheel.slots.states[slot] & ~np.uint64(0xFF) | np.uint64(1)
        wheel.scribbled = True
        assert take(wheel).timers["cookie"].tolist() == [2]


def keyed(cookies: list[int], keys: list[bytes], **values: Any) -> Snapshot:
    timers = some_timers(len(cookies), cookie=cookies, deadline=SECOND, flags=KEYED)
    sizes = np.array([len(key) for key in keys], "<u2")
    together = np.frombuffer(b"".join(keys), "u1")
    return snapshot_of(timers, Clocks.of_virtual(0), key_sizes=sizes, keys=together, **values)


def test_of_two_with_one_key_the_later_is_armed() -> None:
    snapshot = keyed([1, 2, 3, 4], [b"sa", b"sb", b"sa", b"sa"])
    with Restored(snapshot, **NEW_SEED) as again:
        assert again.plan.doubled == 2
        web = again.workers["w"]
        assert web.pending == 2
        again.advance(SECOND)
        assert cookies(web.poll()) == [2, 4]
        assert len(web.schedule_many(np.full(64, 1.0))) == 64, "their slots are not lost"


def test_keys_of_skipped_timers_go_with_them() -> None:
    snapshot = keyed([1, 2, 3], [b"sa", b"sbb", b"sccc"])
    snapshot.timers["deadline"] = [SECOND, 9 * SECOND, SECOND]
    clocks = Clocks(0, 0, 0, "b"), Clocks(5 * SECOND, 5 * SECOND, 5 * SECOND, "b")
    snapshot = Snapshot(**{**vars(snapshot), "clocks": clocks[0]})
    plan = plan_restore(snapshot, clocks[1], 1024, 8, "wall", "skip")
    assert plan.keys.tolist() == [b"sbb"]
    assert plan.claims.tolist() == [True]


def test_a_file_from_before_there_were_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It counts none; and its bit was another one's."""
    snapshot = keyed([1], [b"sa"])
    header = snapshot_file._header

    def earlier(of: Snapshot) -> dict[str, Any]:
        found = header(of)
        del found["counts"]["keys"], found["counts"]["key_sizes"]
        return json.loads(json.dumps(found))  # type: ignore[no-any-return]

    monkeypatch.setattr(snapshot_file, "_header", earlier)
    nothing = {"key_sizes": np.empty(0, "<u2"), "keys": np.empty(0, "u1")}
    snapshot_file.write(tmp_path / "s", Snapshot(**{**vars(snapshot), **nothing}))
    with Restored(snapshot_file.read(tmp_path / "s")) as again:
        again.advance(SECOND + MS)
        assert cookies(again.workers["w"].poll()) == [1]


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"key_sizes": np.array([2, 3], "<u2")}, "a size for each key"),
        ({"key_sizes": np.array([2000], "<u2")}, "keys that fit"),
        ({"key_sizes": np.array([3], "<u2")}, "as many bytes of keys"),
    ],
)
def test_files_that_do_not_add_up(changed: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Snapshot(**{**vars(keyed([1], [b"sa"])), **changed}).check()


def test_no_room_for_the_keys() -> None:
    plan = plan_restore(keyed([1], [b"sa"]), Clocks.of_virtual(0), 1024, 8)
    with LocalWheel(payload_bytes=8) as wheel:
        DirectoryView(wheel.keys_memory).sets["tags"] = 2
        with pytest.raises(WheelError, match="no room for the keys of the snapshot's 1 timers"):
            apply(plan, wheel.slots, wheel.view, {"w": (0, 1)}, keys=directory_of(wheel))
        assert not wheel.slots.states.any(), "nothing is armed"
        wheel.slots.owners[:] = 0
