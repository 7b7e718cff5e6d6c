"""A worker dies while it makes a condition true, or checks its key: nobody sleeps on."""

import mmap
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from children import start_child
from common_fixtures import daemon_process, local_workers
from daemons import Daemon, until
from local_wheel import LocalWheel
from purgatory_crew import LONG, NAME, Crew
from purgatory_ops import Op, WatchView, bucket_of, readable
from wheeld.tables import sharing
from wheeld_client import ClientClosed, Purgatory, Timers, Watermarks, connect
from wheeld_client.purgatory.purgatory import Changing
from wheeld_core import _native

NOTES = _native.NOTES


workers = local_workers(3)


def notes(view: WatchView, row: int = 0) -> tuple[int, int]:
    return int((view.rows["notes"][row] != 0).sum()), int(view.rows["everything"][row])


def watch(purgatory: Purgatory, key: Any) -> Op:
    op = Op(None)
    purgatory.try_complete_else_watch(op, [key])
    purgatory.timers.fileno()
    return op


# -- the block -------------------------------------------------------------------------------------


def test_the_end_of_the_block_checks(purgatories: list[Purgatory], view: WatchView) -> None:
    here, there = watch(purgatories[0], "k"), watch(purgatories[1], "k")
    with purgatories[0].changing("k", "other") as change:
        here.ready = there.ready = True
        assert notes(view) == (2, 0)
        assert not here.is_completed
    assert change.completed == 1
    assert notes(view) == (0, 0)
    purgatories[1].timers.dispatch()
    assert there.is_completed


def test_a_block_that_raises_checks_all_the_same(
    purgatories: list[Purgatory], view: WatchView
) -> None:
    op = watch(purgatories[0], "k")
    with suppress(ZeroDivisionError), purgatories[0].changing("k"):
        op.ready = True
        raise ZeroDivisionError
    assert op.is_completed
    assert notes(view) == (0, 0)


def test_a_check_that_raises(purgatories: list[Purgatory], view: WatchView) -> None:
    bad, good = watch(purgatories[0], "bad"), watch(purgatories[0], "good")
    bad.error = ZeroDivisionError("as it wants")
    with pytest.raises(ZeroDivisionError), purgatories[0].changing("bad", "good"):
        good.ready = True
    assert good.is_completed
    assert notes(view) == (0, 0)


def test_many_at_once(purgatories: list[Purgatory], view: WatchView) -> None:
    blocks = [purgatories[0].changing(key) for key in range(NOTES + 5)]
    for block in blocks:
        block.__enter__()
    assert notes(view) == (NOTES, 5)
    with pytest.raises(RuntimeError, match="already entered"):
        blocks[0].__enter__()
    for block in blocks[::2]:
        block.__exit__(None, None, None)
    with purgatories[0].changing("k"):
        assert sum(notes(view)) == NOTES // 2 + 3
    threads = [
        threading.Thread(target=block.__exit__, args=(None, None, None)) for block in blocks[1::2]
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert notes(view) == (0, 0)


def test_a_check_leaves_no_note(purgatories: list[Purgatory], view: WatchView) -> None:
    watch(purgatories[1], "k")
    purgatories[0].check_and_complete("k")
    assert notes(view) == (0, 0)


def test_a_block_that_outlives_its_purgatory(purgatories: list[Purgatory], view: WatchView) -> None:
    block = purgatories[0].changing("k")
    block.__enter__()
    purgatories[0].shutdown()
    with pytest.raises(Exception, match="was shut down"):
        block.__exit__(None, None, None)
    assert notes(view) == (0, 0)


# -- deaths ----------------------------------------------------------------------------------------


def test_who_dies_in_the_block_is_checked_for(
    wheel: LocalWheel, purgatories: list[Purgatory], view: WatchView
) -> None:
    ops = [watch(purgatory, "k") for purgatory in purgatories[1:]]
    others = watch(purgatories[1], "other")
    purgatories[0].changing("k").__enter__()
    for op in ops:
        op.ready = True
    wheel.depart(0)
    assert [readable(purgatory.timers) for purgatory in purgatories[1:]] == [True, True]
    for purgatory in purgatories[1:]:
        purgatory.timers.dispatch()
    assert [op.is_completed for op in ops] == [True, True]
    assert others.tries == 2
    assert notes(view) == (0, 0)


def test_beyond_the_notes_everything_is_looked_at(
    wheel: LocalWheel, purgatories: list[Purgatory], view: WatchView
) -> None:
    ops = {key: watch(purgatories[1], key) for key in range(NOTES + 3)}
    for key in ops:
        purgatories[0].changing(key).__enter__()
    for op in ops.values():
        op.ready = True
    wheel.depart(0)
    assert readable(purgatories[1].timers)
    purgatories[1].timers.dispatch()
    assert all(op.is_completed for op in ops.values())
    assert notes(view) == (0, 0)


def test_who_was_marked_and_not_rung_for(
    wheel: LocalWheel, purgatories: list[Purgatory], view: WatchView
) -> None:
    op, key = Op(None), "k"
    bucket = bucket_of(purgatories[1], view, 1, key)
    purgatories[0].changing(key).__enter__()
    purgatories[1].try_complete_else_watch(op, [key])
    purgatories[1].timers.fileno()
    op.ready = True
    note = view.rows["notes"][0, 0]
    assert int(note) >> 1 & 0xFFFF == bucket
    view.rows["notes"][0, [0, NOTES - 1]] = 0, note
    view.mark(1, bucket)
    view.say(1, bucket)
    assert _native.owed_watchers(wheel.shared("watch")) == [1]
    assert not readable(purgatories[1].timers)
    wheel.depart(0)
    assert readable(purgatories[1].timers)
    purgatories[1].timers.dispatch()
    assert op.is_completed
    assert _native.owed_watchers(wheel.shared("watch")) == []


def test_notes_that_are_none(wheel: LocalWheel, view: WatchView) -> None:
    wheel.worker(0)
    view.rows["notes"][0, :3] = [2**64 - 1, 2, 2**63]
    view.rows["everything"][0] = 2**64 - 1
    wheel.depart(0)
    assert notes(view) == (0, 0)


# -- with a daemon ---------------------------------------------------------------------------------


daemon = daemon_process(max_workers=16)


def changer(crew: Crew, keys: int = 1) -> int:
    def work(timers: Timers, purgatory: Purgatory) -> None:
        with purgatory.changing(*range(keys)):
            for key in range(keys):
                crew.true[key] = 1
            crew.ledger.note("in the block")
            signal.pause()

    pid = crew.start("changer", work)
    crew.await_fact("in the block")
    return pid


def done(crew: Crew, names: list[str], keys: int = 1) -> bool:
    return sum(crew.facts("done").values()) == keys * len(names)


@pytest.mark.parametrize("keys", [1, NOTES + 2])
def test_killed_in_the_block(crew: Crew, keys: int) -> None:
    names = ["a", "b", "c"]
    pids = [crew.watchers(name, list(range(keys))) for name in names]
    crew.kill(changer(crew, keys))
    until(lambda: done(crew, names, keys), "all were told", LONG)
    for pid in pids:
        crew.join(pid)


def test_killed_while_there_was_no_supervisor(daemon: Daemon, crew: Crew) -> None:
    names = ["a", "b"]
    pids = [crew.watchers(name, [0]) for name in names]
    victim = changer(crew)
    daemon.kill()
    crew.kill(victim)
    daemon.start()
    until(lambda: done(crew, names), "all were told", LONG)
    for pid in pids:
        crew.join(pid)


def test_the_next_supervisor_rings_for_who_sleeps_with_a_mark() -> None:
    segments = {k: mmap.mmap(-1, size) for k, size in sharing.sizes(4, 64, 0).items()}
    sharing.create(segments, 4, 64, 7, [])
    view, rung = WatchView(segments["watch"]), list[int]()
    view.rows["tenant"][:3] = [1, 2, 3]
    view.rows["wait_seq"][:4] = [5, 6, 7, 9]
    view.rows["any"][:3] = [1, 1, 0]
    view.rows["notes"][3, 2] = 5 << 1 | 1  # of one that is gone: of bucket 5
    view.directory[5, 0] = 0b0100
    host = sharing.Sharing(segments, 64, lambda: None, rung.append)
    host.resume([0, 1, 2])
    assert rung == [0, 0, 2]
    assert view.marks(2) == {5}
    assert notes(view, 3) == (0, 0)


def test_closed_in_the_block(daemon: Daemon, crew: Crew) -> None:
    pid = crew.watchers("a", [0])
    timers = connect(str(daemon.directory), worker="closes")
    Purgatory(timers, NAME).changing(0).__enter__()
    crew.true[0] = 1
    timers.close()
    crew.join(pid)


def test_forked_in_the_block(daemon: Daemon, crew: Crew) -> None:
    pid, view = crew.watchers("a", [0]), crew.view()
    with connect(str(daemon.directory), worker="forks") as timers:
        row, block = crew.row("forks"), Purgatory(timers, NAME).changing(0)
        block.__enter__()

        def leave() -> None:
            with pytest.raises(Exception, match="parent"):
                block.__exit__(None, None, None)

        child, _ = start_child(leave)
        os.waitpid(child, 0)
        assert notes(view, row) == (1, 0)
        crew.true[0] = 1
        block.__exit__(None, None, None)
        assert notes(view, row) == (0, 0)
    crew.join(pid)


CHECKER = """
import mmap, os, sys
from wheeld_client import Purgatory, Watermarks, connect
daemon, path, how = sys.argv[1:]
with open(path, "r+b") as file:
    flags = mmap.mmap(file.fileno(), 2)
timers = connect(daemon)
words = Watermarks(timers, "words") if how == "advance" else None
purgatory = words.purgatory if words else Purgatory(timers, "words")
print("ready", flush=True)
sys.stdin.readline()
if words:
    flags[0] = 1
    words.advance("k", 1)
else:
    with purgatory.changing("k"):
        flags[0] = 1
        flags[1] = 1
print("returned", flush=True)
sys.stdin.readline()
"""
"""Makes the condition true and is killed meanwhile."""


@pytest.mark.parametrize("how", ["advance", "changing"])
def test_killed_at_any_moment(daemon: Daemon, tmp_path: Path, how: str, rng_seed: int) -> None:
    path, rng = tmp_path / "flags", random.Random(rng_seed)
    path.write_bytes(bytes(2))
    with path.open("r+b") as file:
        flags = mmap.mmap(file.fileno(), 2)
    all_timers = [connect(str(daemon.directory)) for _ in range(6)]
    words = [Watermarks(timers, "words") for timers in all_timers]

    class Wait(Op):
        def try_complete(self) -> bool:
            true = words[0].value("k") > 0 if how == "advance" else bool(flags[1])
            return true and self.force_complete()

    threads = [timers.dispatching() for timers in all_timers]
    for thread in threads:
        thread.start()
    try:
        for _ in range(12):
            flags[0] = flags[1] = 0
            words[0].forget("k")
            ops = [Wait() for _ in words]
            for one, op in zip(words, ops, strict=True):
                one.purgatory.try_complete_else_watch(op, ["k"])
            command = [sys.executable, "-c", CHECKER, str(daemon.directory), str(path), how]
            with subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
            ) as victim:
                assert victim.stdin is not None
                assert victim.stdout is not None
                assert victim.stdout.readline() == "ready\n"
                before = set(daemon.workers())
                victim.stdin.write("\n")
                victim.stdin.flush()
                while not flags[0]:
                    pass
                for _ in range(rng.randrange(3000)):
                    pass
                victim.kill()
            until(lambda before=before: set(daemon.workers()) < before, "departed", LONG)
            true = words[0].value("k") > 0 if how == "advance" else bool(flags[1])
            if true:
                until(lambda ops=ops: all(op.is_completed for op in ops), "told", LONG)
            for one in words:
                one.purgatory.cancel_for_key("k")
    finally:
        for thread in threads:
            thread.stop()
        for timers in all_timers:
            timers.close()


def connect_mover(daemon: Daemon) -> Timers:
    return connect(
        str(daemon.directory), worker="moves", reconnect_for=LONG, on_reconnect=lambda event: None
    )


@pytest.fixture
def mover(daemon: Daemon) -> Iterator[Timers]:
    with connect_mover(daemon) as timers:
        yield timers


def move(daemon: Daemon, timers: Timers) -> None:
    daemon.stop()
    daemon.start()
    timers.schedule(1000.0)


def noted(crew: Crew) -> int:
    row = crew.view().rows[crew.row("moves")]
    return int((row["notes"] != 0).sum()) + int(row["everything"])


def test_killed_in_the_block_after_a_move(daemon: Daemon, crew: Crew) -> None:
    def work(timers: Timers, purgatory: Purgatory) -> None:
        moving = connect_mover(daemon)
        with Purgatory(moving, "moves").changing(1), Purgatory(moving, NAME).changing(0):
            crew.ledger.note("in the block")
            until(lambda: crew.flags[0], "another daemon", LONG)
            moving.schedule(1000.0)
            crew.true[0] = 1
            crew.ledger.note("moved")
            signal.pause()

    victim = crew.start("changer", work)
    crew.await_fact("in the block")
    daemon.stop()
    daemon.start()
    watcher = crew.watchers("a", [0])
    crew.flags[0] = 1
    crew.await_fact("moved")
    crew.kill(victim)
    crew.join(watcher)


def test_a_block_has_its_notes_once(daemon: Daemon, crew: Crew, mover: Timers) -> None:
    purgatory = Purgatory(mover, NAME)
    with purgatory.changing("over"):
        pass
    with purgatory.changing("a", "b"):
        with purgatory.changing("c"):
            move(daemon, mover)
            assert noted(crew) == 3
            move(daemon, mover)
            assert noted(crew) == 3
        assert noted(crew) == 2
    assert noted(crew) == 0
    move(daemon, mover)
    assert noted(crew) == 0


def test_a_block_of_a_purgatory_that_was_shut_down(
    daemon: Daemon, crew: Crew, mover: Timers
) -> None:
    gone, stays = Purgatory(mover, "gone"), Purgatory(mover, "stays")
    block = gone.changing("a").__enter__()
    with stays.changing("b"):
        gone.shutdown()
        move(daemon, mover)
        assert noted(crew) == 1
        with pytest.raises(ClientClosed, match="was shut down"):
            block.__exit__(None, None, None)
    assert noted(crew) == 0


def test_the_block_ends_while_its_notes_are_written_anew(
    daemon: Daemon, crew: Crew, mover: Timers
) -> None:
    class Slow(Purgatory):
        block: Changing | None = None

        def _change(self, key: object) -> tuple[int, int]:
            note = super()._change(key)
            if key == "b" and self.block is not None:
                self.block.__exit__(None, None, None)
            return note

    purgatory = Slow(mover, NAME)
    block = purgatory.changing("a", "b", "c").__enter__()
    purgatory.block = block
    move(daemon, mover)
    assert noted(crew) == 0
