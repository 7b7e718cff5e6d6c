"""key_until="acknowledged": a key stays taken until the event of its timer is acknowledged."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from test_keys_survive import closed, killed, restarted, stopped_and_started, supervisor_dies

import wheeld
from children import receive
from common_fixtures import daemon_process, embedded
from daemons import LONG, Daemon, until
from remotes import Remote
from wheeld_client import KeyInUse, Timers, connect, payload_of

FAR = 1000.0
serving = daemon_process(max_workers=8, capacity=4096)
virtual = embedded("function", virtual_clock=True, capacity=4096, keep_for="10s")

HELD: dict[str, Any] = {"key": "k", "key_until": "acknowledged"}
RECEIVERS: list[dict[str, Any]] = [
    {},
    {"to": "a"},
    {"to": "group:web"},
    {"to": "group:web", "detached": True},
    {"to": "a", "detached": True, "payload": bytes(500)},
]


def taken(timers: Timers, id: int) -> None:
    """Nobody gets the key of the timer `id`, which has fired; nor ends it, nor moves it."""
    for conflict in ("raise", "replace", "later", "earlier"):
        with pytest.raises(KeyInUse, match="until its event is acknowledged") as refused:
            timers.schedule(FAR, key="k", on_conflict=conflict)
        assert refused.value.id == id
        with pytest.raises(KeyInUse):
            timers.schedule_many([FAR, FAR], keys=["other", "k"], on_conflict=conflict)
    assert timers.schedule(FAR, key="k", on_conflict="keep") == id
    assert timers.find("other") is None
    assert not timers.cancel(key="k")
    assert not timers.reschedule(key="k", delay=1.0)
    found = timers.find("k")
    assert found is not None
    assert (found.id, found.key) == (id, "k")


@pytest.mark.parametrize("receiver", RECEIVERS)
def test_taken_until_then(virtual: str, receiver: dict[str, Any]) -> None:
    with connect(virtual, worker="a", group="web") as a, connect(virtual, worker="b") as b:
        id = a.schedule(1.0, 7, **HELD, **receiver)
        assert b.reschedule(key="k", delay=2.0)
        assert b.schedule(1.0, key="k", on_conflict="later") == id, "it is pending, as any other"
        wheeld.advance(virtual, 2.0)
        taken(b, id)
        (event,) = a.poll(1.0, hold=True)
        assert event["timer_id"] == id
        taken(b, id)
        assert a.nack(event, 5.0)
        found = b.find("k")
        assert found is not None
        assert found.remaining == 5.0
        wheeld.advance(virtual, 5.0)
        (event,) = a.poll(1.0, hold=True)
        taken(a, id)
        assert a.acknowledge(event) == 1
        assert b.find("k") is None
        assert b.schedule(FAR, key="k") != id
        assert a.stats()["payload_bytes"] == 0


@pytest.mark.parametrize("hold", [False, True])
def test_all_at_once(virtual: str, hold: bool) -> None:
    with connect(virtual) as timers:
        timers.schedule_many([1.0] * 3, keys=[1, 2, 3], key_until="acknowledged")
        wheeld.advance(virtual, 1.0)
        assert len(timers.poll(1.0, hold=hold)) == 3
        if hold:
            assert None not in timers.find_many([1, 2, 3])
            timers.acknowledge()
        assert timers.find_many([1, 2, 3]) == [None] * 3


def test_replaced_while_it_is_pending(virtual: str) -> None:
    with connect(virtual, worker="a") as a, connect(virtual, worker="b") as b:
        first = a.schedule(1.0, **HELD)
        second = b.schedule(2.0, **HELD, on_conflict="replace")
        third = a.schedule(3.0, key="k", on_conflict="replace")
        assert len({first, second, third}) == 3
        wheeld.advance(virtual, 4.0)
        assert a.poll(1.0)["timer_id"].tolist() == [third]
        assert not len(b.poll())
        assert a.find("k") is None


def test_a_slot_keeps_nothing_for_its_next_timer(virtual: str) -> None:
    with connect(virtual) as timers:
        for turn in range(300):
            plain = timers.schedule(1.0, key=("plain", turn))
            timers.schedule(1.0, key=("held", turn), key_until="acknowledged")
            wheeld.advance(virtual, 1.0)
            assert len(receive(timers, 2)) == 2
            assert timers.find_many([("plain", turn), ("held", turn)]) == [None, None]
            assert plain not in timers.schedule_many([FAR], keys=[("plain", turn)])
            assert timers.cancel(key=("plain", turn))


def test_who_holds_it_for_too_long(virtual: str) -> None:
    with connect(virtual, group="web") as hangs, connect(virtual, group="web") as other:
        hangs.poll()
        id = hangs.schedule(1.0, **HELD, to="group:web")
        wheeld.advance(virtual, 1.0)
        (event,) = hangs.poll(1.0, hold=True, visibility=10.0)
        other.poll()
        wheeld.advance(virtual, 10.1)
        (again,) = other.poll(1.0, hold=True)
        assert hangs.acknowledge(event) == 0
        taken(hangs, id)
        assert other.acknowledge(again) == 1
        assert hangs.find("k") is None


def test_nobody_comes_for_it(virtual: str) -> None:
    with connect(virtual) as maker:
        id = maker.schedule(1.0, **HELD, to="group:web")
        detached = maker.schedule(1.0, key=1, key_until="acknowledged", to="b", detached=True)
        wheeld.advance(virtual, 9.0)
        taken(maker, id)
        assert maker.schedule(FAR, key=1, on_conflict="keep") == detached
        wheeld.advance(virtual, 3.0)
        until(lambda: maker.find_many(["k", 1]) == [None, None], "dropped after --keep-for")


@pytest.mark.parametrize("ends", [killed, closed])
@pytest.mark.parametrize("read", [False, True])
@pytest.mark.parametrize("policy", ["drop", "keep"])
def test_its_worker_ends(
    serving: Daemon, policy: str, read: bool, ends: Callable[[Remote], None]
) -> None:
    at = str(serving.directory)
    with connect(at) as other:
        with Remote(serving, worker="a", on_death=policy) as a:
            a.ask("timers.schedule(0.0, key='k', key_until='acknowledged')")
            if read:
                assert a.ask("len(timers.poll(10.0, hold=True))") == 1
            until(lambda: serving.status()["pending"] == 0, "it has fired")
            ends(a)
        if policy == "drop":
            until(lambda: other.find("k") is None, "at once")
            return
        assert other.find("k") is not None
        with connect(at, worker="a") as successor:
            (event,) = successor.poll(10.0, hold=True)
            taken(other, int(event["timer_id"]))
            assert successor.acknowledge(event) == 1
            assert other.find("k") is None


@pytest.mark.parametrize("happens", [supervisor_dies, restarted, stopped_and_started])
def test_what_ends_beside_it(serving: Daemon, happens: Callable[[Daemon], None]) -> None:
    at = str(serving.directory)
    with connect(at) as maker:
        id = maker.schedule(0.0, **HELD, to="group:web", detached=True)
    until(lambda: serving.status()["pending"] == 0, "it has fired")
    happens(serving)
    with connect(at, group="web", reconnect_for=LONG) as web:
        taken(web, id)
        (event,) = web.poll(10.0, hold=True)
        taken(web, id)
        assert web.acknowledge(event) == 1
        assert web.find("k") is None


def test_a_snapshot_has_it(wheel_server: wheeld.ForkServer, tmp_path: Path) -> None:
    options = {"state_dir": str(tmp_path / "state"), "name": "kept"}
    with wheel_server.embedded(**options) as daemon:
        with connect(daemon) as maker:
            maker.schedule(0.0, 7, **HELD, to="group:web", detached=True, payload=bytes(100))
            maker.schedule(0.0, 8, to="group:web", detached=True)
            until(lambda: maker.pending == 0, "both have fired")
        time.sleep(0.2)  # its slots are nobody's then, or not yet: both must do
    with wheel_server.embedded(**options) as daemon, connect(daemon, group="web") as web:
        until(lambda: web.find("k") is not None, "the clock has met it")
        taken(web, web._find("k"))
        events = receive(web, 2, hold=True)
        assert sorted(events["cookie"].tolist()) == [7, 8]
        assert events["attempts"].tolist() == [1, 1]
        (event,) = events[events["cookie"] == 7]
        assert payload_of(event) == bytes(100)
        taken(web, int(event["timer_id"]))
        assert web.acknowledge(event) == 1
        assert web.find("k") is None


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"key_until": "acknowledged"}, "give key="),
        ({"key": "k", "key_until": "acked"}, "expected 'fired'"),
        ({"key": "k", "key_until": None}, "expected 'fired'"),
    ],
)
def test_bad_options(virtual: str, options: dict[str, Any], words: str) -> None:
    with connect(virtual) as timers:
        with pytest.raises(ValueError, match=words):
            timers.schedule(1.0, **options)
        with pytest.raises(ValueError, match="give key="):
            timers.schedule_many([1.0], key_until="acknowledged")
        assert timers.pending == 0


def test_what_comes_too_late_is_done(virtual: Any) -> None:
    """It is dropped before anybody could acknowledge it."""
    with connect(virtual) as timers:
        timers.schedule(0.0, grace=1.0, grace_drop=True, **HELD)
        virtual.advance(10)
        assert len(timers.poll(hold=True)) == 0
        assert timers.find("k") is None
