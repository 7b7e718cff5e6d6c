"""A client moves to the next daemon in the middle of a block of `changing`: it is noted there."""

import signal
from collections.abc import Iterator

import pytest

from common_fixtures import daemon_process
from daemons import Daemon, until
from purgatory_crew import LONG, NAME, Crew
from wheeld_client import ClientClosed, Purgatory, Timers, connect
from wheeld_client.purgatory.changing import Changing

daemon = daemon_process(max_workers=16)


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
