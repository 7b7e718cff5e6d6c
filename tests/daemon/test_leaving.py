"""Workers die or close: what becomes of their timers by `on_death`, and where groups get theirs."""

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from children import receive
from common_fixtures import daemon_process, shared_daemon
from daemons import Daemon, map_segment, until
from remotes import Remote
from wheeld_client import Timers, WheelError, connect
from wheeld_core import _native, control
from wheeld_core.views import record

CAPACITY = 1024


shared = shared_daemon(payload_bytes=16)


@pytest.fixture
def daemon(shared: Daemon) -> Iterator[Daemon]:
    yield shared
    until(lambda: shared.workers() == {}, "all gone")
    assert shared.status()["pending"] == 0
    with connect(str(shared.directory)) as timers:
        assert capacity_of(timers) == CAPACITY
    until(lambda: shared.workers() == {}, "gone, too")


brief = daemon_process("--keep-for", "300ms")


def capacity_of(timers: Timers) -> int:
    before, ids = timers.pending, []
    while True:
        try:
            ids.append(timers.schedule_many(np.full(64, 1e5)))
        except WheelError:
            break
    while True:
        try:
            ids.append(np.array([timers.schedule(1e5)], np.uint64))
        except WheelError:
            break
    for some in ids:
        assert timers.cancel_many(some).all()
    return before + sum(map(len, ids))


def join(daemon: Daemon, **options: Any) -> Timers:
    return connect(str(daemon.directory), **options)


def state(daemon: Daemon, name: str) -> str | None:
    found: str | None = daemon.workers().get(name, {}).get("state")
    return found


def leave(worker: Remote, how: str) -> None:
    if how == "closed":
        worker.ask("timers.close()")
    worker.kill()


def drop_kept(daemon: Daemon, name: str) -> None:
    join(daemon, worker=name, on_death="drop").close()


# -- keep ------------------------------------------------------------

FILL = """
ids = timers.schedule_many(np.full(200, 1000.0), np.arange(200))
far = timers.schedule(2000.0, 900)
over = timers.schedule_many(np.full(100, 0.0), np.arange(300, 400))
late = timers.schedule_many(np.full(100, 0.4), np.arange(400, 500))
cancelled = timers.schedule_many(np.full(50, 1000.0))
while timers.pending > 351: pass
timers.cancel_many(cancelled).all()
text = timers.schedule(0.4, 600, payload=b"kept payload")
tick = timers.schedule(0.4, 700, interval=1000.0)
"""


@pytest.mark.parametrize("how", ["killed", "closed"])
def test_successor_finds_everything(daemon: Daemon, how: str) -> None:
    """Who comes back under the same name gets what was pending and what was not received, once; ids
    from before hold; and all slots."""
    with Remote(daemon, worker="kept", on_death="keep") as first:
        first.ask(FILL)
        ids, far = first.ask("ids.tolist()"), first.ask("far")
        incarnation = daemon.workers()["kept"]["row"]
        leave(first, how)
    until(lambda: state(daemon, "kept") == "kept", "kept")
    with join(daemon, worker="kept", on_death="keep") as successor:
        assert successor.adopted is True
        assert daemon.workers()["kept"]["row"] == incarnation
        assert all(successor.cancel_many(ids[:100]))
        assert not successor.cancel_many(ids[:100]).any()
        assert successor.reschedule(far, 0.0) is True
        assert successor.reschedule(int(ids[150]), 0.0) is True
        events = receive(successor, 100 + 100 + 1 + 1 + 2)
        cookies = sorted(events["cookie"].tolist())
        assert cookies == sorted([*range(300, 500), 600, 700, 900, 150])
        text = events[events["cookie"] == 600][0]
        assert bytes(text["payload"])[: text["payload_size"]] == b"kept payload"
        assert len(successor.poll(0.05)) == 0
        assert successor.pending == 99 + 1  # and the periodic one
        assert capacity_of(successor) == CAPACITY
        successor.close()
    until(lambda: state(daemon, "kept") == "kept", "kept again")
    drop_kept(daemon, "kept")


def test_events_go_on_while_it_is_away(daemon: Daemon) -> None:
    with join(daemon) as other:
        with Remote(daemon, worker="away", on_death="keep") as first:
            first.ask("timers.schedule_many(np.full(300, 0.05), np.arange(300)) is None")
            first.kill()
        until(lambda: state(daemon, "away") == "kept", "kept")
        other.schedule_many(np.full(200, 0.0), np.arange(300, 500), to="away")
        until(lambda: daemon.status()["pending"] == 0, "all fired")
        with join(daemon, worker="away", on_death="drop") as successor:
            assert successor.adopted is True
            assert sorted(receive(successor, 500)["cookie"].tolist()) == list(range(500))
        until(lambda: other.pending == 0, "loans back")


def test_kept_over_deaths_of_the_daemon(brief: Daemon) -> None:
    brief.stop()
    brief.start(keep_for="60s")
    with Remote(brief, worker="kept", on_death="keep") as first:
        first.ask("timers.schedule_many(np.full(100, 1000.0), np.arange(100)).tolist()")
        first.ask("timers.schedule_many(np.full(100, 0.0), np.arange(100, 200)).tolist()")
        first.kill()
    until(lambda: state(brief, "kept") == "kept", "kept")
    brief.kill_clock()
    brief.kill()
    brief.start(keep_for="60s")
    assert state(brief, "kept") == "kept"
    with join(brief, worker="kept") as successor:
        assert successor.adopted is True
        assert sorted(receive(successor, 100)["cookie"].tolist()) == list(range(100, 200))
        assert successor.pending == 100
        assert capacity_of(successor) == CAPACITY


def test_not_back_in_time(brief: Daemon) -> None:
    """After --keep-for its timers are dropped, its row and slots are free; a later worker of that
    name is a new one."""
    with Remote(brief, worker="late", on_death="keep") as first:
        first.ask("timers.schedule_many(np.full(500, 1000.0)).tolist()")
        first.kill()
    until(lambda: state(brief, "late") == "kept", "kept")
    assert brief.status()["pending"] == 500
    until(lambda: state(brief, "late") is None, "dropped")
    assert brief.status()["pending"] == 0
    with join(brief, worker="late", on_death="drop") as again:
        assert again.adopted is False
        assert capacity_of(again) == CAPACITY
    assert "no successor within 300ms" in brief.said()


def test_a_successor_is_the_only_one(daemon: Daemon) -> None:
    with Remote(daemon, worker="one", on_death="keep") as first:
        first.kill()
    until(lambda: state(daemon, "one") == "kept", "kept")
    with join(daemon, worker="one") as successor:
        with pytest.raises(ValueError, match=r"one.*already connected"):
            join(daemon, worker="one", on_death="keep")
        successor.schedule(0.0, 5)
        assert receive(successor, 1)["cookie"].tolist() == [5]


# -- reroute ------------------------------------------------------------


@pytest.mark.parametrize("how", ["killed", "closed"])
def test_members_inherit(daemon: Daemon, how: str) -> None:
    with join(daemon, group="web") as a, join(daemon, group="web") as b, join(daemon) as other:
        with Remote(daemon, on_death="reroute", group="web") as gone:
            gone.ask("timers.schedule_many(np.full(300, 0.5), np.arange(300)).tolist()")
            gone.ask("timers.schedule_many(np.full(200, 0.0), np.arange(300, 500)).tolist()")
            ids = gone.ask("timers.schedule_many(np.full(100, 1000.0)).tolist()")
            leave(gone, how)
        got: list[int] = []
        until(lambda: _collect(got, a, b, other) == 500, "all 500")
        assert sorted(got) == list(range(500))
        assert len(other.poll()) == 0
        assert other.cancel_many(ids).all()
        until(lambda: len(daemon.workers()) == 3, "gone")
        assert a.pending + b.pending == 0


def _collect(got: list[int], *workers: Timers) -> int:
    for timers in workers:
        got += timers.poll(0.01)["cookie"].tolist()
    return len(got)


def test_last_member(daemon: Daemon) -> None:
    with Remote(daemon, on_death="reroute", group="solo") as gone:
        gone.ask("timers.schedule_many(np.full(100, 0.0), np.arange(100)).tolist()")
        gone.ask("timers.schedule_many(np.full(100, 1000.0), np.arange(100, 200)).tolist()")
        gone.kill()
    until(lambda: [w["state"] for w in daemon.workers().values()] == ["kept"], "kept")
    with join(daemon) as stranger:
        assert len(stranger.poll(0.1)) == 0
        with join(daemon, group="solo") as successor:
            assert sorted(receive(successor, 100)["cookie"].tolist()) == list(range(100))
            until(lambda: successor.pending == 100, "inherited")
            until(lambda: len(daemon.workers()) == 2, "the dead one is gone")


def test_nobody_joins_in_time(brief: Daemon) -> None:
    with Remote(brief, on_death="reroute", group="g") as gone:
        gone.ask("timers.schedule_many(np.full(100, 1000.0)).tolist()")
        gone.kill()
    until(lambda: brief.workers() == {}, "dropped")
    assert brief.status()["pending"] == 0
    with join(brief, group="g") as late:
        assert late.pending == 0
        assert capacity_of(late) == CAPACITY


def test_a_member_that_comes_during_the_sweep(daemon: Daemon) -> None:
    for turn in range(8):
        with Remote(daemon, on_death="reroute", group="relay") as gone:
            gone.ask(f"timers.schedule_many(np.full(300, 1000.0), np.full(300, {turn})).tolist()")
            gone.process.kill()
            with join(daemon, group="relay") as successor:
                successor.poll()
                until(lambda: successor.pending == 300, "inherited", 30.0)


# -- to a group ------------------------------------------------------------


def test_a_waiting_member_first(daemon: Daemon) -> None:
    with (
        Remote(daemon, group="pool") as waiting,
        join(daemon, group="pool") as busy,
        join(daemon) as sender,
    ):
        row = next(w["row"] for w in daemon.workers().values() if w["pid"] == waiting.pid)
        memory = map_segment(daemon.segment(f"worker-{row}"), _native.KIND_WORKER)
        head = record(memory, "worker")
        for number in range(20):
            waiting.tell("receive(1)")
            until(lambda: int(head["wait_seq"]) & 1, "waiting")
            sender.schedule(0.0, number, to="group:pool")
            assert waiting.answer() == [number]
        assert len(busy.poll()) == 0


def deal(daemon: Daemon, sender: Timers, count: int) -> None:
    before = daemon.status()["counters"]["fired"]
    sender.schedule_many(np.full(count, 0.0), np.arange(count), to="group:turns")
    until(lambda: daemon.status()["counters"]["fired"] >= before + count, "dealt")
    sender.schedule(0.0)  # what the pass before this one had dealt is published
    receive(sender, 1)


def shares(members: list[Timers], count: int) -> list[list[int]]:
    got: list[list[int]] = [[] for _ in members]

    def all_came() -> bool:
        for part, member in zip(got, members, strict=True):
            part.extend(member.poll()["cookie"].tolist())
        return sum(map(len, got)) >= count

    until(all_came, f"{count} events")
    return got


def test_in_turn(daemon: Daemon) -> None:
    with join(daemon) as sender:
        members = [join(daemon, group="turns") for _ in range(3)]
        for member in members:
            member.poll()  # from here on it is one
        deal(daemon, sender, 300)
        got = shares(members, 300)
        assert sorted(number for part in got for number in part) == list(range(300))
        assert [len(part) for part in got] == [100, 100, 100]
        members.pop().close()
        deal(daemon, sender, 100)
        assert [len(part) for part in shares(members, 100)] == [50, 50]
        for member in members:
            member.close()
        sender.schedule(0.0, 9, to="group:turns")  # nobody is left: back to who sent it
        assert receive(sender, 1)["cookie"].tolist() == [9]


def test_unknown_group(daemon: Daemon) -> None:
    with join(daemon) as timers:
        for call in (
            lambda: timers.schedule(1.0, to="group:nobody"),
            lambda: timers.schedule_many([1.0], to="group:nobody"),
            lambda: timers.schedule_at(1.0, to="group:nobody"),
        ):
            with pytest.raises(ValueError, match="group:nobody"):
                call()
        assert timers.pending == 0


# -- arguments ------------------------------------------------------------

WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "policy": ({"on_death": "explode"}, "expected one of drop, keep, reroute"),
    "keep": ({"on_death": "keep"}, "needs a worker name"),
    "reroute": ({"on_death": "reroute"}, "needs a group"),
    "group": ({"group": ""}, "1 to 59 bytes"),
    "group type": ({"group": 7}, "1 to 59 bytes"),
    "name": ({"worker": ""}, "1 to 63 bytes"),
    "name type": ({"worker": [1]}, "1 to 63 bytes"),
    "surrogate": ({"worker": "\ud800"}, "expected printable characters"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_arguments_of_other_clients(daemon: Daemon, case: str) -> None:
    fields, words = WRONG[case]
    connection = control.Connection(daemon.directory)
    layout = {"layout": _native.LAYOUT_VERSION, "fingerprint": _native.FINGERPRINT}
    with contextlib.closing(connection):
        with pytest.raises(ValueError, match=words):
            connection.request("hello", **{"worker": None, **layout, **fields})
        assert connection.request("status")["status"]["workers"] == []


@pytest.mark.parametrize("how", ["killed", "closed"])
def test_nobody_waits_for_a_reader(daemon: Daemon, how: str) -> None:
    with join(daemon, worker="reader") as reader:
        for number in range(8):
            sender = Remote(daemon, worker="sender")
            sender.ask(f"timers.schedule(0, {number}, to='reader')")
            until(lambda n=number: daemon.workers()["reader"]["unread"] > n, "sent")
            leave(sender, how)
            join(daemon, worker="sender").close()
        assert not reader.backlogged
        assert reader.poll()["cookie"].tolist() == list(range(8))
