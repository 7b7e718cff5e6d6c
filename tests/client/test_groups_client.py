"""Groups and deaths as `connect` is told them, and the receivers of `to=`."""

from typing import Any

import pytest

from common_fixtures import fake_supervisor
from fake_supervisor import StandIn
from wheeld_client import AsyncTimers, connect

daemon = fake_supervisor()


def test_hello_carries_the_options(daemon: StandIn) -> None:
    with connect(daemon.name, worker="w", on_death="reroute", group="web") as timers:
        assert (timers.worker, timers.on_death, timers.group) == ("w", "reroute", "web")
        assert timers.adopted is False
    with connect(daemon.name) as timers:
        assert (timers.on_death, timers.group) == ("drop", None)
    first, second = daemon.heard("hello")
    assert (first["worker"], first["on_death"], first["group"]) == ("w", "reroute", "web")
    assert (second["on_death"], second["group"]) == ("drop", None)


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "policy": ({"on_death": "explode"}, "on_death='explode'.*drop, keep, reroute"),
    "policy type": ({"on_death": None}, "on_death=None"),
    "keep": ({"on_death": "keep"}, "keep.*worker="),
    "keep in a group": ({"on_death": "keep", "group": "g"}, "keep.*worker="),
    "reroute": ({"on_death": "reroute", "worker": "w"}, "reroute.*group="),
    "after fork": ({"after_fork": "panic"}, "after_fork='panic'.*raise, reconnect"),
    "group empty": ({"group": ""}, "1 to 59 bytes"),
    "group long": ({"group": "ä" * 30}, "1 to 59 bytes"),
    "group NUL": ({"group": "a\0b"}, "1 to 59 bytes"),
    "group type": ({"group": 3}, "group name 3"),
    "reconnect": ({"reconnect_for": -1.0}, "reconnect_for"),
    "reconnect nan": ({"reconnect_for": float("nan")}, "reconnect_for"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_options(daemon: StandIn, case: str) -> None:
    options, words = BAD[case]
    with pytest.raises(ValueError, match=words):
        connect(daemon.name, **options)
    with pytest.raises(ValueError, match=words):
        AsyncTimers(daemon.name, **options)
    assert daemon.messages == []


def test_to_a_group(daemon: StandIn) -> None:
    daemon.name_group(0, "web")
    daemon.name_group(63, "n" * 59)
    with connect(daemon.name) as timers:
        timers.schedule(1.0, to="group:web")
        assert daemon.targets() == [0xFFF]
        timers.schedule_at(1.0, to="group:" + "n" * 59)
        assert sorted(daemon.targets()) == [0xFFF, 63 << 12 | 0xFFF]
        timers.schedule_many([1.0, 2.0], to="group:web")
        assert daemon.targets().count(0xFFF) == 3


@pytest.mark.parametrize("name", ["", "we", "webb", "web\0", "nobody", "group:web"])
def test_unknown_group(daemon: StandIn, name: str) -> None:
    daemon.name_group(2, "web")
    with connect(daemon.name, worker="web") as timers:
        with pytest.raises(ValueError, match="group") as caught:
            timers.schedule(1.0, to=f"group:{name}")
        assert repr(f"group:{name}") in str(caught.value)
        assert timers.pending == 0


def test_to_a_kept_worker(daemon: StandIn) -> None:
    with connect(daemon.name) as timers, connect(daemon.name, worker="kept"):
        daemon.set_row_state(1, 4)
        timers.schedule(1.0, to="kept")
        assert [target & 0xFFF for target in daemon.targets()] == [2]
        daemon.set_row_state(1, 3)
        with pytest.raises(ValueError, match="no worker of that name"):
            timers.schedule(1.0, to="kept")
        daemon.set_row_state(1, 2)


def test_goodbye_stands_in_the_segment(daemon: StandIn) -> None:
    timers = connect(daemon.name)
    memory = daemon.worker_memories[0]
    assert daemon.worker_header(0)["goodbye"] == 0
    daemon.kill()
    timers.close()
    daemon.worker_memories[0] = memory
    assert daemon.worker_header(0)["goodbye"] == 1
