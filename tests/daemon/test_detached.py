"""Detached timers belong to no worker: they outlive who made them, and wait for their receiver."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_keys_survive import (
    clock_dies,
    closed,
    killed,
    restarted,
    stopped_and_started,
    supervisor_dies,
)

import wheeld
from children import receive
from common_fixtures import daemon_process, embedded
from daemons import LONG, Daemon, until
from remotes import Remote
from wheeld_client import DetachedFull, KeyInUse, connect, payload_of, pending_timers

FAR = 1000.0
serving = daemon_process(max_workers=8, capacity=4096)
virtual = embedded("function", virtual_clock=True, capacity=4096, keep_for="10s")
small = embedded("function", virtual_clock=True, capacity=1024, detached_capacity=3)


def advance(daemon: str, seconds: float) -> None:
    wheeld.advance(daemon, seconds)


@pytest.mark.parametrize("ends", [killed, closed])
@pytest.mark.parametrize("policy", ["drop", "keep", "reroute"])
def test_it_outlives_its_worker(
    serving: Daemon, policy: str, ends: Callable[[Remote], None]
) -> None:
    options = {"group": "g"} if policy == "reroute" else {}
    with Remote(serving, worker="a", on_death=policy, **options) as a:
        long = "payload=bytes(1000)"
        a.ask(f"timers.schedule(1000.0, 1, to='group:web', detached=True, key='k', {long})")
        a.ask("timers.schedule(1000.0, 2, to='bridge', detached=True, keep=True)")
        a.ask("timers.schedule(0.0, 3, to='group:web', detached=True)")
        until(lambda: serving.workers()["(detached)"]["pending"] == 2, "two are the wheel's")
        assert serving.workers()["a"]["pending"] == 0
        ends(a)
    until(lambda: "a" not in serving.workers() or policy != "drop", "a has gone")
    at = str(serving.directory)
    with connect(at, group="web") as web, connect(at, worker="bridge") as bridge:
        assert receive(web, 1)["cookie"].tolist() == [3], "it has waited"
        found = web.find("k")
        assert found is not None
        assert (found.worker, found.to, found.payload) == (None, "group:web", bytes(1000))
        assert web.reschedule(delay=0.0, key="k")
        (event,) = receive(web, 1)
        assert (event["cookie"], payload_of(event)) == (1, bytes(1000))
        found = pending_timers(at)
        assert [found.workers.get(int(one["owner"])) for one in found.timers] == [None]
        assert bridge.reschedule(int(found.timers["timer_id"][0]), 0.0)
        assert receive(bridge, 1)["cookie"].tolist() == [2]
    until(lambda: serving.status()["pending"] == 0, "nothing is left")


def test_one_member_drains_what_nobody_kept(virtual: str) -> None:
    with connect(virtual) as maker:
        maker.schedule_many([1.0] * 2000, to="group:web", detached=True)
    advance(virtual, 2.0)
    with connect(virtual, group="web") as web:
        sizes = [len(receive(web, 1))]
        while sum(sizes) < 2000:
            sizes.append(len(receive(web, 1)))
    assert max(sizes) > 100, "not a few at a time"


@pytest.mark.parametrize("left", ["by nobody", "by a kept member"])
def test_a_member_that_is_never_idle_gets_what_was_kept(virtual: str, left: str) -> None:
    with connect(virtual) as maker, connect(virtual, group="web", worker="a", on_death="keep") as a:
        if left == "by nobody":
            a.close()
        assert left == "by nobody" or not len(a.poll())  # a member, whose ring gets it
        maker.schedule(1.0, 42, to="group:web", detached=True)
        advance(virtual, 2.0)
    with connect(virtual, group="web", worker="b") as busy:
        busy.schedule_many([0.5] * 30, 7)
        advance(virtual, 1.0)
        got: list[int] = []
        for _ in range(60):
            got += busy.poll(max_events=1)["cookie"].tolist()  # and finds something each time
            busy.schedule(0.001, 7)
            advance(virtual, 0.01)
        assert 42 in got


def test_a_member_that_is_full_is_there(virtual: str) -> None:
    with connect(virtual) as maker:
        maker.schedule(1.0, 42, to="group:web", detached=True)
    advance(virtual, 2.0)
    with connect(virtual, group="web") as full:
        full.schedule_many([0.0] * 2000, 7)
        advance(virtual, 0.1)
        assert len(full.poll(max_events=1)) == 1  # a member, with more than its ring holds
        full.schedule_many([0.0] * 10, 7)
        advance(virtual, 20.0)  # longer than --keep-for
        got: list[int] = []
        while len(events := full.poll()):
            got += events["cookie"].tolist()
            advance(virtual, 0.001)
    assert got.count(42) == 1


@pytest.mark.parametrize("happens", [clock_dies, supervisor_dies, restarted, stopped_and_started])
def test_what_ends_beside_it(serving: Daemon, happens: Callable[[Daemon], None]) -> None:
    at = str(serving.directory)
    with connect(at) as maker:
        ids = maker.schedule_many([0.0, 0.0, FAR], [1, 2, 3], to="group:web", detached=True)
    until(lambda: serving.status()["pending"] == 1, "two have fired")
    happens(serving)
    with connect(at, group="web", reconnect_for=LONG) as web:
        assert sorted(receive(web, 2)["cookie"].tolist()) == [1, 2]
        assert web.reschedule(int(ids[2]), 0.0)
        assert receive(web, 1)["cookie"].tolist() == [3]


def test_a_snapshot_has_it_under_no_workers_name(
    wheel_server: wheeld.ForkServer, tmp_path: Path
) -> None:
    options = {"state_dir": str(tmp_path / "state"), "name": "kept"}
    with wheel_server.embedded(**options) as daemon, connect(daemon) as unnamed:
        unnamed.schedule(FAR, 1, to="group:web", detached=True, keep=True, key="k")
        unnamed.schedule(FAR, 2, to="bridge", detached=True)
        unnamed.schedule(FAR, 3)  # which ends with its worker
    with (
        wheel_server.embedded(**options) as daemon,
        connect(daemon, group="web") as web,
        connect(daemon, worker="bridge") as bridge,
    ):
        found = pending_timers(daemon).timers
        assert sorted(found["cookie"].tolist()) == [1, 2]
        assert web.reschedule_many(found["timer_id"], [0.0, 0.0]).all()
        assert receive(web, 1)["cookie"].tolist() == [1]
        assert receive(bridge, 1)["cookie"].tolist() == [2]


def test_an_end_waits_for_its_receiver(virtual: str) -> None:
    with connect(virtual) as maker:
        for keep in (False, True):
            maker.schedule(1.0, keep, to="group:web", detached=True, keep=keep)
            maker.schedule(1.0, 2 + keep, to="bridge", detached=True, keep=keep)
        maker.schedule(1.0, 4, to="group:web", detached=True, interval=1.0)
        advance(virtual, 1.0)
        assert not len(maker.poll()), "it is not the one"
        advance(virtual, 9.0)
        with connect(virtual, worker="bridge") as bridge:
            assert sorted(receive(bridge, 2)["cookie"].tolist()) == [2, 3]
        advance(virtual, 2.0)
        with connect(virtual, group="web") as web:
            assert receive(web, 1)["cookie"].tolist() == [1], "the others were dropped"
            assert not len(web.poll())
        assert maker.pending == 0


@pytest.mark.parametrize("interval", [None, 100.0])
def test_a_busy_member_is_a_receiver(virtual: str, interval: float | None) -> None:
    """A busy member never asks for more, and nothing is dropped beside it."""
    with connect(virtual) as maker:
        maker.schedule(1.0, 7, to="group:web", detached=True, interval=interval)
    advance(virtual, 1.0)
    with connect(virtual, group="web") as web:
        web.schedule_many([0.0] * 2, [1, 2])
        advance(virtual, 0.0)
        assert web.poll(max_events=1)["cookie"].tolist() == [1]
        advance(virtual, 11.0)
        assert receive(web, 2)["cookie"].tolist() == [2, 7]


def test_a_periodic_one_goes_on(virtual: str) -> None:
    with connect(virtual) as maker:
        maker.schedule(1.0, to="group:web", detached=True, interval=1.0, keep=True)
    advance(virtual, 3.5)
    with connect(virtual, group="web") as web:
        (event,) = receive(web, 1)
        assert (event["deadline"], event["missed"]) == (1_000_000_000, 2)
        advance(virtual, 0.5)
        (event,) = receive(web, 1)
        assert (event["deadline"], event["missed"]) == (4_000_000_000, 0)


def test_given_back(virtual: str) -> None:
    with connect(virtual, group="web") as web:
        web.schedule(1.0, 7, to="group:web", payload=b"p", key="k")
        advance(virtual, 1.0)
        for attempt in (1, 2, 3):
            (event,) = web.poll(1.0, hold=True)
            assert (event["cookie"], payload_of(event)) == (7, b"p")
            assert (event["attempts"], event["deadline"]) == (attempt, event["fired"])
            assert web.nack(event, 5.0)
            assert not web.nack(event), "once"
            assert web.acknowledge(event) == 0
            found = web.find("k")
            assert found is not None
            assert found.id == event["timer_id"]
            advance(virtual, 4.9)
            assert not len(web.poll(hold=True)), "early"
            advance(virtual, 0.1)
        (event,) = web.poll(1.0, hold=True)
        assert web.acknowledge(event) == 1
        assert web.acknowledge(event) == 0
        advance(virtual, FAR)
        assert not len(web.poll())
        assert web.pending == 0


def test_given_back_without_a_key_that_another_took(virtual: str) -> None:
    with connect(virtual, group="web") as web:
        first = web.schedule(1.0, 1, to="group:web", key="k")
        advance(virtual, 1.0)
        (event,) = web.poll(1.0, hold=True)
        second = web.schedule(FAR, 2, to="group:web", key="k")
        assert web.nack(event, 1.0)
        advance(virtual, 1.5)
        assert web.poll(1.0, hold=True)["timer_id"].tolist() == [first]
        assert web.acknowledge(first) == 1
        found = web.find("k")
        assert found is not None
        assert found.id == second


def test_who_gives_back_what_is_nobodys_owns_it(virtual: str) -> None:
    with connect(virtual, group="web") as web:
        web.poll()
        with connect(virtual) as maker:
            maker.schedule(1.0, 7, to="group:web")
            advance(virtual, 1.0)
            (event,) = web.poll(1.0, hold=True)
        assert web.nack(event, 5.0)
        advance(virtual, 5.0)
        (event,) = web.poll(1.0, hold=True)
        assert (event["cookie"], event["attempts"]) == (7, 2)
        web.acknowledge()


def test_who_hangs_loses_it(virtual: str) -> None:
    with connect(virtual, group="web") as hangs, connect(virtual, group="web") as other:
        hangs.poll()
        hangs.schedule(1.0, 7, to="group:web", payload=bytes(500))
        advance(virtual, 1.0)
        (event,) = hangs.poll(1.0, hold=True, visibility=10.0)
        other.poll()
        advance(virtual, 9.9)
        assert not len(other.poll(hold=True)), "it is in time"
        advance(virtual, 0.2)
        (again,) = other.poll(1.0, hold=True)
        assert (again["timer_id"], again["attempts"]) == (event["timer_id"], 2)
        assert hangs.acknowledge(event) == 0
        assert not hangs.nack(event)
        assert other.acknowledge(again) == 1
        with pytest.raises(ValueError, match="hold=True"):
            other.poll(visibility=1.0)
        assert hangs.stats()["payload_bytes"] == 0


def test_no_crash_loop_fills_the_wheel(small: str) -> None:
    with connect(small) as maker:
        ids = maker.schedule_many([FAR] * 3, to="group:web", detached=True)
    with connect(small) as maker:
        with pytest.raises(DetachedFull, match="--detached-capacity"):
            maker.schedule(FAR, to="group:web", detached=True)
        maker.schedule(FAR)
        assert maker.cancel(int(ids[0]))
        maker.schedule(1.0, to="group:web", detached=True)
        with pytest.raises(DetachedFull):
            maker.schedule_many([1.0], to="group:web", detached=True)


def test_what_was_acknowledged_takes_no_room(small: str) -> None:
    """The clock has not looked since, and has nothing to do."""
    with connect(small) as maker, connect(small, group="web") as web:
        maker.schedule_many([0.0] * 3, to="group:web", detached=True)
        advance(small, 1.0)
        assert len(receive(web, 3, hold=True)) == 3
        with pytest.raises(DetachedFull):
            maker.schedule(FAR, to="group:web", detached=True)
        web.acknowledge()
        maker.schedule_many([FAR] * 3, to="group:web", detached=True)


@pytest.mark.parametrize("left", ["one by one", "with all", "by death"])
def test_an_event_that_is_held_for_long_stops_nothing(small: str, left: str) -> None:
    """It keeps from others no slot (1,024), no place in its worker's ring (1,024), and none among
    the detached (3)."""
    options: Any = {"worker": "web", "group": "web", "on_death": "reroute"}
    with connect(small, group="web") as maker:
        with connect(small, **options) as web:
            assert not len(web.poll())  # it is a member from here on
            maker.schedule(0.0, 42, to="group:web", detached=True)
            advance(small, 1.0)
            [held] = web.poll(hold=True)
            for number in range(2100):
                maker.schedule(0.0, number, to="group:web", detached=True)
                advance(small, 0.001)
                [event] = web.poll(hold=True)
                assert event["cookie"] == number
                assert web.acknowledge(event) == 1
            with pytest.raises(ValueError, match="1 completions are held"):
                web.poll()
            if left == "one by one":
                assert web.acknowledge(held) == 1
            elif left == "with all":
                web.acknowledge()
            if left != "by death":
                assert not len(web.poll())
                assert web.acknowledge(held) == 0
        advance(small, 1.0)
        assert maker.poll()["cookie"].tolist() == [42] * (left == "by death")


def test_a_call_that_arms_nothing_needs_no_room(small: str) -> None:
    where: Any = {"to": "group:web", "detached": True}
    with connect(small) as maker:
        ids = maker.schedule_many([FAR] * 3, keys=["a", "b", "c"], **where)
        for conflict in ("keep", "later", "earlier"):
            assert maker.schedule(FAR, key="a", on_conflict=conflict, **where) == ids[0]
            again = maker.schedule_many([FAR] * 2, keys=["b", "c"], on_conflict=conflict, **where)
            assert again.tolist() == ids[1:].tolist()
        with pytest.raises(KeyInUse):
            maker.schedule(FAR, key="a", **where)
        for conflict in ("raise", "keep", "replace"):
            with pytest.raises(DetachedFull):
                maker.schedule(FAR, key="d", on_conflict=conflict, **where)
        with pytest.raises(DetachedFull):
            maker.schedule_many([FAR] * 2, keys=["a", "d"], on_conflict="keep", **where)
        assert maker.find("d") is None
        assert maker.cancel_many(ids).all()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"detached": True}, "needs to="),
        ({"keep": True, "to": "group:g"}, "detached=True"),
        ({"detached": True, "to": "group:"}, "1 to 59 bytes"),
        ({"detached": True, "to": "group:=b"}, "reserved"),
        ({"detached": True, "to": "(detached)"}, "reserved"),
        ({"detached": True, "to": "x" * 70}, "1 to 6"),
    ],
)
def test_bad_options(virtual: str, options: dict[str, Any], words: str) -> None:
    with connect(virtual) as timers:
        with pytest.raises(ValueError, match=words):
            timers.schedule(1.0, **options)
        assert timers.pending == 0


@pytest.mark.parametrize("ends", [killed, closed])
def test_a_worker_with_an_address_ends(serving: Daemon, ends: Callable[[Remote], None]) -> None:
    """Its groups are others by then than at its hello."""
    with Remote(serving, worker="a") as a, connect(str(serving.directory)) as timers:
        timers.schedule(1000.0, to="a", detached=True)
        ends(a)
        until(lambda: "a" not in serving.workers(), "it is free of its row, as any other")
    with connect(str(serving.directory), worker="a") as again:
        assert again.pending == 0, "the wheel's"
