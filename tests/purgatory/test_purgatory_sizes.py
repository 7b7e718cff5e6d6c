"""Purgatories in `wheeld status`: sizes by name, of all workers and of each."""

import json
import mmap
import signal
from typing import Any

import pytest

from commands import well
from common_fixtures import daemon_process, local_wheel
from daemons import Daemon, until
from local_wheel import LocalWheel
from purgatory_crew import NAME, Crew
from purgatory_ops import Op
from wheeld.tables import sharing
from wheeld_client import Purgatory, Timers, connect
from wheeld_core import _native
from wheeld_core.views.purgatories import Size, SizesView

wheel = local_wheel(max_workers=2)


@pytest.fixture
def view(wheel: LocalWheel) -> SizesView:
    return SizesView(wheel.shared("watch"))


def test_each_change_is_told(wheel: LocalWheel, view: SizesView) -> None:
    timers = wheel.worker(1)
    purgatory = Purgatory(timers, "fetch")
    assert view.of(1) == {"fetch": Size(0, 0)}
    ops = [Op(None) for _ in range(5)]
    for number, op in enumerate(ops):
        purgatory.try_complete_else_watch(op, ["a", ("b", number)])
        assert view.of(1) == {"fetch": Size(number + 1, 2 * number + 2)}
    ops[0].force_complete()
    ops[1].cancel()
    ops[2].ready = True
    purgatory.check_and_complete("a")
    assert view.of(1)["fetch"].delayed == purgatory.num_delayed == 2
    assert view.of(1)["fetch"].watched == 4
    assert len(purgatory.cancel_for_key("a")) == 2
    assert view.of(1)["fetch"].delayed == 0
    purgatory.shutdown()
    assert view.of(1) == view.of(0) == {}


def test_names(wheel: LocalWheel, view: SizesView) -> None:
    timers = wheel.worker(0)
    purgatories = [Purgatory(timers, f"{i}" + "\u00e4" * 40) for i in range(_native.SIZES + 1)]
    assert list(view.of(0)) == [f"{i}" + "\u00e4" * (31 - i // 10) for i in range(10)] + [
        f"{i}" + "\u00e4" * 30 + "\ufffd" for i in range(10, _native.SIZES)
    ]
    for purgatory in purgatories:
        purgatory.try_complete_else_watch(Op(None), ["k"])
    assert set(view.of(0).values()) == {Size(1, 1)}
    purgatories[3].shutdown()
    assert len(view.of(0)) == _native.SIZES - 1
    last = Purgatory(timers, "last")
    assert view.of(0)["last"] == Size(0, 0)
    for purgatory in (*purgatories, last):
        purgatory.shutdown()
    assert view.of(0) == {}


def test_row_that_was_taken_back(wheel: LocalWheel, view: SizesView) -> None:
    purgatory = Purgatory(wheel.worker(0), "fetch")
    op = Op(None)
    purgatory.try_complete_else_watch(op, ["k"])
    _native.seat_watcher(wheel.shared("watch"), 0, 77)
    assert view.of(0) == {}
    view.lines["name"][0, 0], view.lines["made"][0, 0] = b"another", 3
    view.lines["delayed"][0, 0], view.lines["watched"][0, 0] = 5, 0
    op.cancel()
    purgatory.try_complete_else_watch(Op(None), ["k"])
    purgatory.shutdown()
    assert view.of(0) == {"another": Size(5, 0)}


def test_what_a_killed_supervisor_left() -> None:
    segments = {k: mmap.mmap(-1, size) for k, size in sharing.sizes(4, 64, 0).items()}
    sharing.create(segments, 4, 64, 7, [])
    host = sharing.Sharing(segments, 64, lambda: None, lambda row: None)
    host.sizes.lines["made"][2, 5] = 1
    host.resume([0])
    assert not host.sizes.lines["made"].any()


# -- with a daemon ---------------------------------------------------------------------------------


daemon = daemon_process(max_workers=16)


def told(daemon: Daemon) -> dict[str, Any]:
    where = ("--name", daemon.name, "--runtime-dir", str(daemon.base))
    found: dict[str, Any] = json.loads(well("status", "--json", *where))
    return found


def test_of_two_processes_and_after_a_death(daemon: Daemon, crew: Crew) -> None:
    def wait(timers: Timers, purgatory: Purgatory) -> None:
        for key in range(3):
            purgatory.try_complete_else_watch(Op(3600.0), [key, "all"])
        crew.ledger.note("they wait")
        signal.pause()

    with connect(str(daemon.directory), worker="here") as timers:
        mine, other = Purgatory(timers, NAME), Purgatory(timers, "second\n")
        mine.try_complete_else_watch(Op(None), ["k"])
        pid = crew.start("there", wait)
        crew.await_fact("they wait")
        status = told(daemon)
        assert status["purgatories"] == [
            {"name": NAME, "delayed": 4, "watched": 7, "workers": 2},
            {"name": "second\n", "delayed": 0, "watched": 0, "workers": 1},
        ]
        assert {worker["name"]: worker["purgatories"] for worker in status["workers"]} == {
            "here": {NAME: {"delayed": 1, "watched": 1}, "second\n": {"delayed": 0, "watched": 0}},
            "there": {NAME: {"delayed": 3, "watched": 6}},
        }
        lines = well("status", "--name", daemon.name, "--runtime-dir", str(daemon.base))
        assert f"    {NAME:<28} 4 operations waiting, 7 watches, in 2 workers\n" in lines
        assert "    second\ufffd" in lines
        crew.kill(pid)
        until(lambda: len(told(daemon)["workers"]) == 1, "gone")
        assert told(daemon)["purgatories"][0] == {
            "name": NAME, "delayed": 1, "watched": 1, "workers": 1,
        }  # fmt: skip
        mine.shutdown()
        other.shutdown()
        assert told(daemon)["purgatories"] == []
