"""Timers by key outlive what ends around them: one timer of each key, and one key of each timer."""

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest

from children import receive
from common_fixtures import daemon_process
from daemons import LONG, Daemon, end_of, until
from remotes import Remote
from wheeld_client import Timers, connect
from wheeld_core.errors import KeyInUse

daemon = daemon_process(max_workers=8, capacity=4096)

FAR = 1000.0


def clock_dies(daemon: Daemon) -> None:
    daemon.kill_clock()


def supervisor_dies(daemon: Daemon) -> None:
    daemon.kill()
    daemon.start()


def restarted(daemon: Daemon) -> None:
    done = daemon.command("restart")
    assert done.returncode == 0, done.stderr + daemon.said()


def stopped_and_started(daemon: Daemon) -> None:
    assert daemon.command("stop", "--keep").returncode == 0
    assert daemon.wait() == 0
    daemon.start()


def fires_once(timers: Timers, key: Any, receiver: Timers) -> int:
    """Have the key's timer fire now; its id."""
    assert timers.reschedule(delay=0.0, key=key)
    (event,) = receive(receiver, 1)
    assert timers._find(key) == 0
    assert receiver._key_of(int(event["timer_id"])) == key
    return int(event["timer_id"])


@pytest.mark.parametrize("happens", [clock_dies, supervisor_dies, restarted, stopped_and_started])
def test_what_ends_without_a_worker(daemon: Daemon, happens: Callable[[Daemon], None]) -> None:
    at = str(daemon.directory)
    with (
        connect(at, worker="a", reconnect_for=LONG) as a,
        connect(at, worker="b", reconnect_for=LONG) as b,
    ):
        long = "x" * 1000
        ids = {key: a.schedule(FAR, key=key) for key in ("stays", "moved", "cancelled", long)}
        ids[("job", 1)] = b.schedule(FAR, key=("job", 1), interval=FAR)
        replaced = b.schedule(FAR, key="stays", on_conflict="replace")
        for _ in range(2):
            happens(daemon)
            assert (a._find("stays"), b._find("stays")) == (replaced, replaced)
            assert {key: b._find(key) for key in ids} == {**ids, "stays": replaced}
            for key in ids:
                with pytest.raises(KeyInUse):
                    a.schedule(FAR, key=key)
            assert b.schedule(2 * FAR, key="moved", on_conflict="later") == ids["moved"]
            assert a.pending + b.pending == 5
        replaced = a.schedule(FAR, key="stays", on_conflict="replace")
        assert fires_once(b, "stays", a) == replaced
        assert fires_once(b, long, a) == ids[long]
        assert b.cancel(key="cancelled")
        assert a.schedule(FAR, key="cancelled") != ids["cancelled"]
        assert b.reschedule(delay=0.0, key=("job", 1))
        assert receive(b, 1)["timer_id"].tolist() == [ids["job", 1]]
        assert a._find(("job", 1)) == ids["job", 1], "it goes on"
        assert len(a.poll(0.0)) == len(b.poll(0.0)) == 0


def killed(remote: Remote) -> None:
    wait = end_of(remote.process.pid)
    os.kill(remote.process.pid, signal.SIGKILL)
    wait()


def closed(remote: Remote) -> None:
    remote.ask("timers.close()")


@pytest.mark.parametrize("ends", [killed, closed])
@pytest.mark.parametrize("policy", ["drop", "keep", "reroute"])
def test_a_worker_ends(daemon: Daemon, policy: str, ends: Callable[[Remote], None]) -> None:
    at = str(daemon.directory)
    options = {"group": "g"} if policy == "reroute" else {}
    with (
        Remote(daemon, worker="a", on_death=policy, **options) as a,
        connect(at, worker="b", **options) as b,
    ):
        b.poll(0.0)  # so that a group knows it as one that receives
        id = int(a.ask("timers.schedule(1000.0, key='k')"))
        other = b.schedule(FAR, key="b's")
        ends(a)
        until(lambda: "a" not in daemon.workers() or policy == "keep", "a has gone")
        if policy == "drop":
            until(lambda: b._find("k") == 0, "free")
            again = b.schedule(FAR, key="k")
            assert fires_once(b, "k", b) == again != id
        else:
            assert b._find("k") == id
            with pytest.raises(KeyInUse):
                b.schedule(FAR, key="k")
            assert b.schedule(2 * FAR, key="k", on_conflict="later") == id
            if policy == "reroute":
                assert fires_once(b, "k", b) == id
            else:
                with connect(at, worker="a") as successor:
                    assert fires_once(b, "k", successor) == id
        assert b._find("b's") == other
        assert len(b.poll(0.0)) == 0


def test_workers_die_while_they_claim_one_key(daemon: Daemon) -> None:
    """Whoever dies, wherever: there is one timer of the key, or none, and nothing else is left."""
    options: dict[str, Any] = {"on_death": "reroute", "group": "g"}
    claim = "while True: timers.schedule(1000.0, key='k', on_conflict='replace')"
    with connect(str(daemon.directory), worker="own", **options) as own:
        own.poll(0.0)
        for _ in range(5):
            claimers = [Remote(daemon, **options) for _ in range(3)]
            for claimer in claimers:
                claimer.tell(claim)
            for claimer in claimers:
                found = own._find("k")
                until(lambda found=found: own._find("k") not in (0, found), "claims")
                killed(claimer)
                claimer.process.stdin.close()  # type: ignore[union-attr]
                claimer.process.stdout.close()  # type: ignore[union-attr]
                claimer.process.wait()
            until(lambda: list(daemon.workers()) == ["own"], "all have gone")
            until(lambda: own.pending <= 1, "what was replaced has ended")
            last = own.schedule(FAR, key="k", on_conflict="replace")
            assert fires_once(own, "k", own) == last
            until(lambda: daemon.status()["pending"] == 0, "nothing is left")
            assert len(own.poll(0.0)) == 0
