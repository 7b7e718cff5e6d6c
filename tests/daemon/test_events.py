"""`wheeld events` and `wheeld drain`: what was dropped, and why, and what was handed over."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from typing import Any

import pytest

from children import receive
from commands import badly, well
from common_fixtures import daemon_process
from daemons import LONG, PROGRAM, Daemon, until
from remotes import Remote
from wheeld.resources.events import LONGEST, MOST, Events, Kind
from wheeld_client import connect
from wheeld_core import control
from wheeld_core.errors import NameInUse

daemon = daemon_process(keep_for="1h", capacity=4096)
hasty = daemon_process(keep_for="200ms")


def told(daemon: Daemon, *more: str) -> list[dict[str, Any]]:
    line = well("events", "--json", "--name", str(daemon.directory), *more)
    found: list[dict[str, Any]] = json.loads(line)["events"]
    return found


def one(daemon: Daemon, kind: Kind, worker: str | None = None) -> dict[str, Any]:
    about = ("--worker", worker) if worker else ()
    found = until(lambda: told(daemon, "--kind", kind, *about), f"an event {kind}")
    assert len(found) == 1, found
    return dict(found[0])


# -- the ring ----------------------------------------------------------------------------------


def test_the_ring_has_an_end() -> None:
    events = Events()
    for number in range(MOST + 7):
        events.note(Kind.REFUSAL, f"number {number}")
    found = events.as_dict()
    assert found["forgotten"] == 7
    assert [one["text"] for one in found["events"]] == [f"number {7 + i}" for i in range(MOST)]


def test_repetitions_push_nothing_out() -> None:
    events = Events()
    events.note(Kind.DEATH, "died", "w", dropped=3)
    for _ in range(5000):
        events.note(Kind.REFUSAL, "x" * 9999)
    death, refusal = events.as_dict()["events"]
    assert (death["worker"], death["dropped"], death["times"]) == ("w", 3, 1)
    assert (refusal["times"], len(refusal["text"])) == (5000, LONGEST)
    assert refusal["at"] <= refusal["until"]


# -- what a daemon tells -----------------------------------------------------------------------


def test_a_death_says_what_was_dropped_and_why(daemon: Daemon) -> None:
    assert well("events", "--name", str(daemon.directory)) == "no events\n"
    with Remote(daemon, worker="w") as worker:
        worker.ask("timers.schedule_many(np.full(5, 1000.0)).tolist()")
        worker.kill()
    death = one(daemon, Kind.DEATH)
    assert (death["worker"], death["dropped"]) == ("w", 5)
    assert "died; 5 timers were dropped: its on_death is 'drop'" in death["text"]
    assert "death      worker w (pid " in well("events", "--name", str(daemon.directory))


def test_a_good_bye_without_anything_is_no_event(daemon: Daemon) -> None:
    with connect(str(daemon.directory)) as timers:
        timers.schedule(0.0)
        receive(timers, 1)
    with connect(str(daemon.directory), worker="forgets") as timers:
        timers.schedule(1000.0)
    dropped = one(daemon, Kind.DROPPED)
    assert (dropped["worker"], dropped["dropped"]) == ("forgets", 1)
    assert [event["kind"] for event in told(daemon)] == ["dropped"]


def test_a_successor_that_does_not_come(hasty: Daemon) -> None:
    with connect(str(hasty.directory), worker="w", on_death="keep") as timers:
        timers.schedule(1000.0)
    assert "its timers are kept for 200ms" in one(hasty, Kind.DEPARTURE)["text"]
    assert (
        "had no successor within 200ms; 1 timers were dropped" in (one(hasty, Kind.DROPPED)["text"])
    )


def test_clocks_evictions_and_refusals(daemon: Daemon) -> None:
    clock = daemon.kill_clock()
    assert f"the clock (pid {clock}) died" in one(daemon, Kind.CLOCK)["text"]
    with Remote(daemon, worker="w") as worker:
        with pytest.raises(NameInUse):
            connect(str(daemon.directory), worker="w")
        refusal = one(daemon, Kind.REFUSAL)
        assert refusal["worker"] == "w"
        assert f"hello of pid {os.getpid()}" in refusal["text"]
        daemon.command("evict", "w")
        assert worker.process.wait(LONG) == -signal.SIGKILL
    assert "evicted" in one(daemon, Kind.EVICTION)["text"]
    assert one(daemon, Kind.DEATH)["worker"] == "w"


def test_which_events(daemon: Daemon) -> None:
    name = ("--name", str(daemon.directory))
    for number in range(3):
        with pytest.raises(ValueError, match="unknown request"):
            control.ask(daemon.directory, f"nonsense {number}")  # type: ignore[arg-type]
    assert len(told(daemon, "--limit", "2")) == 2
    assert told(daemon, "--kind", "death") == []
    assert told(daemon, "--worker", "nobody") == []
    assert "expected one of death, departure" in badly("events", "--kind", "x", *name, code=2)


# -- drain -------------------------------------------------------------------------------------


def test_a_drained_worker_hands_over_to_its_group(daemon: Daemon) -> None:
    place = ("--name", str(daemon.directory))
    with (
        Remote(daemon, worker="old", group="web") as old,
        connect(str(daemon.directory), worker="new", group="web") as new,
    ):
        old.ask("len(timers.poll(0))")
        new.poll(0)
        old.ask("timers.schedule_many(np.full(5, 1.5), np.arange(5)).tolist()")
        found = json.loads(well("drain", "old", "--json", *place))
        assert found == {
            "worker": "old", "pid": old.process.pid, "on_death": "reroute", "groups": ["web"],
            "others": ["new"],
        }  # fmt: skip
        new.schedule_many([0.0] * 200, [100] * 200, to="group:web")
        receive(new, 200)
        assert old.ask("len(timers.poll(0))") == 0, "nothing new"
        assert "has not ended: stop it" in badly("drain", "old", "--wait", "0s", *place)
        old.kill()
        assert "its group has its timers" in one(daemon, Kind.DEATH)["text"]
        assert sorted(receive(new, 5)["cookie"].tolist()) == list(range(5))
    assert one(daemon, Kind.DEATH)["dropped"] == 0


def test_drain_waits_and_says_what_came_of_it(daemon: Daemon) -> None:
    place = ("--name", str(daemon.directory))
    with connect(str(daemon.directory), worker="named") as named:
        named.schedule(1000.0)
        found = json.loads(well("drain", "named", "--json", *place))
        assert (found["on_death"], found["groups"]) == ("keep", [])
    assert "are kept" in one(daemon, Kind.DEPARTURE)["text"]
    assert "'named' is not connected; connected: none" in badly("drain", "named", *place)
    assert "'x' is not known" in badly("drain", "x", *place)
    with connect(str(daemon.directory), worker="named", on_death="drop") as again:
        assert again.adopted
        assert daemon.status()["pending"] == 1


def test_drain_waits_for_the_end(daemon: Daemon) -> None:
    line = [*PROGRAM, "drain", "w", "--wait", "60s", "--name", str(daemon.directory)]
    with Remote(daemon, worker="w") as worker:
        worker.ask("timers.schedule(1000.0)")
        waits = subprocess.Popen(line, stdout=subprocess.PIPE, text=True)
        one(daemon, Kind.DRAIN)
        worker.ask("timers.close()")
        said, _ = waits.communicate(timeout=LONG)
    assert waits.returncode == 0
    assert "are kept for a successor of its name" in said
    assert "said good-bye; its timers are kept for 1h" in said


def test_one_that_cannot_hand_over_says_so(daemon: Daemon) -> None:
    with connect(str(daemon.directory)) as timers:
        said = well("drain", timers.worker, "--name", str(daemon.directory))
        assert "are dropped: it has no name and no group" in said


def test_the_next_clock_knows_who_is_drained(daemon: Daemon) -> None:
    with (
        connect(str(daemon.directory), worker="old", group="web") as old,
        connect(str(daemon.directory), worker="new", group="web") as new,
    ):
        old.poll(0), new.poll(0)
        well("drain", "old", "--name", str(daemon.directory))
        daemon.kill_clock()
        new.schedule_many([0.0] * 200, to="group:web")
        receive(new, 200)
        assert len(old.poll(0)) == 0
