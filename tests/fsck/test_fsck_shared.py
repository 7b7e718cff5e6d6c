"""fsck of watched keys and memory pools: what is right is clean, what moves is not damage, and a
repair mends what it found."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from daemons import Daemon as RealDaemon, until
from fsck_damage import CASES
from fsck_wheels import FullWheel, Local, check, damaged, remains
from local_wheel import LocalWheel
from remotes import Remote
from shared_words import STEPS, Shared
from wheeld.fsck import run as fsck
from wheeld.tables.registry import RowState
from wheeld_core import _native

FOR_GOOD = "more_than_there_is"
"""Workers have more of a strict pool than there is: that ends when they give it back."""
OURS = {
    name: case for name, case in CASES.items() if case[0] in ("watch", "words", "leases", "pools")
}
BITS = 64


@pytest.mark.parametrize("name", sorted(set(OURS) - {FOR_GOOD}))
def test_repair_mends_it(name: str, daemon_name: str, runtime_dir: Path) -> None:
    with FullWheel() as wheel:
        OURS[name][2](wheel)
        with remains(wheel, daemon_name, runtime_dir) as left:
            words = Shared(*(left.memories[kind] for kind in ("watch", "pools", "keys")))
            kept = words.watch.directory[:, 0] & np.uint64(3)
            assert left.report().damage
            report = fsck.run(str(left.directory), repair=True)
            assert damaged(report) == {}
            assert damaged(left.report()) == {}
            assert (words.watch.directory[:, 0] == kept).all()
            if name not in ("less_than_nothing", "more_than_can_be"):
                assert words.used()[0] == (200 if name.startswith("reaping") else 450)
            total = words.pools.out()[:, :-1].sum(axis=1).tolist()
            assert words.used() == total


def test_repair_of_what_is_whole(daemon_name: str, runtime_dir: Path) -> None:
    with FullWheel() as wheel, remains(wheel, daemon_name, runtime_dir) as left:
        words = Shared(*(left.memories[kind] for kind in ("watch", "pools", "keys")))
        before = bytes(left.memories["watch"]), bytes(left.memories["pools"])
        assert damaged(fsck.run(str(left.directory), repair=True)) == {}
        words.pools.ledgers["wake"] = 0
        assert before == (bytes(left.memories["watch"]), bytes(left.memories["pools"]))


@pytest.mark.parametrize("step", STEPS)
def test_a_worker_killed_in_a_change_is_no_damage(wheel: FullWheel, step: str) -> None:
    wheel.words.change(0, 40, upto=step)
    assert damaged(check(wheel)) == {}
    wheel.words.change(1, -10)
    assert damaged(check(wheel)) == {}
    wheel.words.change(1, -10, upto=step)
    assert damaged(check(wheel)) == {}


@pytest.mark.parametrize("state", [RowState.DYING, RowState.ATTACHING])
def test_what_the_next_supervisor_clears_is_no_damage(wheel: FullWheel, state: RowState) -> None:
    wheel.row(3)["state"], wheel.row(3)["incarnation"], wheel.row(3)["name"] = state, 9, b"c"
    wheel.words.use(3, bytes=5)
    wheel.words.pools.pools["tickets"] += 5
    wheel.words.pools.pools["used"][1] -= 0  # `small` is strict:
    wheel.words.change(1, -100, 1)
    assert damaged(check(wheel)) == {}
    wheel.words.watch.rows["tenant"][3] = 9
    wheel.words.pools.ledgers["tenant"][:, 3] = 9
    assert damaged(check(wheel)) == {}


def test_kept_rows_have_nothing(wheel: FullWheel) -> None:
    wheel.row(1)["state"] = RowState.KEPT
    found = damaged(check(wheel))
    assert set(found) == {"watch", "pools", "leases"}
    assert found["leases"] == ["b (row 1): waits for a lease, but no worker is there"]
    assert any("b (row 1): watches 2 buckets (3, 9000), but no worker" in t for t in found["watch"])
    assert any("b (row 1) has 200 bytes, but no worker is there" in t for t in found["pools"])
    assert any("b (row 1) waits for memory, but no worker is" in t for t in found["pools"])
    _native.seat_watcher(wheel.shared("watch"), 1, 0)
    _native.seat_borrower(wheel.shared("pools"), 1, 0)
    _native.seat_keys(wheel.keys_memory, wheel.max_workers, wheel.view.capacity, 1, False)
    assert damaged(check(wheel)) == {}
    _native.seat_watcher(wheel.shared("watch"), 1, 2)
    _native.seat_borrower(wheel.shared("pools"), 1, 2)
    assert damaged(check(wheel)) == {}


@pytest.mark.parametrize("upto", ["marked", *STEPS])
def test_bytes_on_their_way_back_of_a_living_wheel(wheel: FullWheel, upto: str) -> None:
    wheel.row(0)["state"] = RowState.DYING
    wheel.words.reap(0, upto)
    assert damaged(fsck.examine(Local(wheel, racing=True), "local")) == {}
    assert list(damaged(check(wheel))) == ["pools"]


def test_only_what_stays_is_reported(wheel: FullWheel) -> None:
    class Moving(Local):
        step = 1

        def memories(self) -> Any:
            wheel.words.change(0, 1 * self.step)
            wheel.words.change(0, -1 * self.step)
            return super().memories()

    moving = Moving(wheel, racing=True)
    wheel.words.pools.pools["used"][0] -= 1 << 26
    assert fsck.examine(moving, "local").damage == 0
    moving.step = 0
    assert fsck.examine(Local(wheel, racing=True), "local").damage == 1


@pytest.mark.parametrize("workers", [1, 63, 64, 65, 130])
def test_tables_of_every_size(workers: int) -> None:
    with LocalWheel(max_workers=workers, pools=(("p", 1000, 10, False),)) as wheel:
        words = Shared(*map(wheel.shared, ("watch", "pools", "keys")))
        for row in {0, workers - 1}:
            wheel.worker(row, f"w{row}")
            words.watch_bucket(row, 77)
            words.change(row, 5)
        assert damaged(check(wheel)) == {}
        if workers % BITS:
            words.watch_bucket(workers, 77)
            assert list(damaged(check(wheel))) == ["watch"]


# -- a running daemon ------------------------------------------------------------------------------


@pytest.fixture
def daemon(runtime_dir: Path, daemon_name: str) -> Iterator[RealDaemon]:
    with RealDaemon(runtime_dir, daemon_name) as daemon:
        yield daemon.start("--pool", "p=1M")


def test_a_running_daemon_whose_pool_moves_is_clean(daemon: RealDaemon) -> None:
    with Remote(daemon, worker="a"), Remote(daemon, worker="b"):
        words, over = Shared.of(daemon), threading.Event()

        def borrow() -> None:
            size = 1
            while not over.is_set():
                for row in (0, 1):
                    words.change(row, size)
                for row in (1, 0):
                    words.change(row, -size)
                size = size % 1000 + 1

        thread = threading.Thread(target=borrow)
        thread.start()
        try:
            for _ in range(10):
                report = fsck.run(str(daemon.directory))
                assert damaged(report) == {}
                assert report.live
        finally:
            over.set()
            thread.join()
        assert damaged(fsck.run(str(daemon.directory))) == {}
        words.watch_bucket(40, 5)
        words.change(41, 64)
        found = damaged(fsck.run(str(daemon.directory)))
        assert list(found) == ["watch", "pools"]
        assert found["pools"] == ["pool p: row 41 has 64 bytes, but no worker is there"]


def test_repair_while_a_worker_lives(daemon: RealDaemon) -> None:
    with Remote(daemon, worker="a") as a:
        words = Shared.of(daemon)
        words.change(0, 64)
        daemon.kill()
        words.watch_bucket(9, 5)
        words.change(9, 32)
        words.pools.pools["used"][0] += 1 << 26
        assert list(damaged(fsck.run(str(daemon.directory)))) == ["watch", "pools"]
        found = damaged(fsck.run(str(daemon.directory), repair=True))
        text = "pool p: 65 bytes are out by its own count, 64 by the ledgers"
        assert found == {"pools": [text]}
        a.kill()
        assert damaged(fsck.run(str(daemon.directory), repair=True)) == {}
        assert words.used() == [64]
        daemon.start("--pool", "p=1M")
        until(lambda: daemon.workers() == {}, "cleared")
        assert words.used() == [0]
