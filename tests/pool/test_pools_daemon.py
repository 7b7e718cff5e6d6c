"""The daemon's part in the memory pools: a worker's bytes go back when it is gone, whoever is
killed meanwhile, once; a living worker keeps its own."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from commands import badly, well
from common_fixtures import daemon_process
from daemons import Daemon, status_of, stopped, until
from remotes import Remote
from shared_words import STEPS, Shared
from wheeld import embedded
from wheeld_client import connect
from wheeld_core.errors import WheelError

POOLS = ("--pool", "requests=64K", "--pool", "small=1000,strict,largest=100")
NOBODY: dict[str, Any] = {}


daemon = daemon_process(started=False, max_workers=70)


def seat(shared: Shared, row: int) -> tuple[int, int, int]:
    tenants = shared.pools.ledgers["tenant"][:, row]
    return (int(shared.watch.rows["tenant"][row]), *map(int, tenants))


# -- departures --------------------------------------------------------------------------------


def die(daemon: Daemon, worker: Remote) -> None:
    worker.kill()


def close(daemon: Daemon, worker: Remote) -> None:
    worker.ask("timers.close()")


def hang_up(daemon: Daemon, worker: Remote) -> None:
    worker.tell("os._exit(0)")


def be_evicted(daemon: Daemon, worker: Remote) -> None:
    daemon.view().ports["offences"][0] = 1000
    assert worker.process.wait(60) == -signal.SIGKILL


def be_damaged(daemon: Daemon, worker: Remote) -> None:
    os.truncate(daemon.segment_path("worker-0"), 0)
    daemon.kill_clock()
    assert worker.process.wait(60) == -signal.SIGKILL


DEPARTURES = {each.__name__: each for each in (die, close, hang_up, be_evicted, be_damaged)}


@pytest.mark.parametrize("how", DEPARTURES)
def test_nothing_of_a_worker_stays(daemon: Daemon, how: str) -> None:
    """However it goes: its bytes are back, its bits and marks are gone, its place in the queue too;
    the log and the status have the bytes. The other worker keeps all that it has."""
    daemon.start(*POOLS, evict_after=900)
    with Remote(daemon, worker="a") as a, Remote(daemon, worker="b"):
        shared = Shared.of(daemon)
        shared.use(0)
        shared.use(1, bytes=30)
        before = shared.traces(1)
        DEPARTURES[how](daemon, a)
        until(lambda: list(daemon.workers()) == ["b"], "gone")
        assert shared.traces(0) == NOBODY
        assert shared.traces(1) == before
        assert shared.used() == [30, 30]
        assert daemon.status()["pool_bytes_returned"] == 200
    assert daemon.said().count("worker a left: 200 bytes were returned to the pools") == 1


@pytest.mark.parametrize("policy", ["keep", "reroute"])
def test_timers_wait_and_memory_does_not(daemon: Daemon, policy: str) -> None:
    """A worker whose timers are kept gives its memory back at once; its successor begins with
    nothing, and what that one has is its own."""
    daemon.start(*POOLS)
    options = {"keep": {"on_death": "keep"}, "reroute": {"on_death": "reroute", "group": "g"}}
    with Remote(daemon, worker="a", **options[policy]) as a:
        a.ask("timers.schedule(1000.0)")
        shared = Shared.of(daemon)
        shared.use(0)
        a.kill()
        until(lambda: [w["state"] for w in daemon.status()["workers"]] == ["kept"], "kept")
        assert (shared.traces(0), shared.used()) == (NOBODY, [0, 0])
    with Remote(daemon, worker="a", **options[policy]) as a:
        row = daemon.workers()["a"]["row"]
        assert row == 0 or policy == "reroute"
        assert len(set(seat(shared, row))) == 1
        assert seat(shared, row)[0] > 0
        shared.use(row, bytes=7)
        assert shared.used() == [7, 7]
        a.ask("timers.close()")
    until(lambda: shared.used() == [0, 0], "back")
    assert daemon.said().count("bytes were returned") == 2


def test_a_row_has_one_worker_at_a_time(daemon: Daemon) -> None:
    daemon.start(*POOLS)
    shared = Shared.of(daemon)
    shared.use(0)
    for _ in range(3):
        with connect(str(daemon.directory), worker="a"):
            incarnation = int(daemon.registry().rows["incarnation"][0])
            assert seat(shared, 0) == (incarnation, incarnation, incarnation)
            assert set(shared.traces(0)) == {"watcher", "borrower"}
            assert shared.used() == [0, 0]
            shared.use(0)
        until(lambda: daemon.workers() == {}, "gone")
        assert shared.traces(0) == NOBODY
    assert daemon.status()["pool_bytes_returned"] == 4 * 200


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("after", [0, 3, 4])
def test_killed_in_the_middle_of_a_change(daemon: Daemon, step: str, after: int) -> None:
    daemon.start(*POOLS)
    shared = Shared.of(daemon)
    with connect(str(daemon.directory), worker="b"):
        shared.change(0, 500)
        for last in (77, -10 * min(after, 1)):
            with Remote(daemon, worker="a") as a:
                for _ in range(after):
                    shared.change(1, 10)
                shared.change(1, last, upto=step)
                a.kill()
                until(lambda: list(daemon.workers()) == ["b"], "gone")
            assert shared.traces(1) == NOBODY
            assert shared.used()[0] == 500
    until(lambda: daemon.workers() == {}, "gone")
    assert shared.used()[0] == 0


# -- death of the supervisor -------------------------------------------------------------------


def worker_first(daemon: Daemon, worker: Remote) -> None:
    with stopped(daemon.pid):
        worker.kill()
        os.kill(daemon.pid, signal.SIGKILL)
    daemon.wait()


def supervisor_first(daemon: Daemon, worker: Remote) -> None:
    daemon.kill()
    worker.kill()


def closed_meanwhile(daemon: Daemon, worker: Remote) -> None:
    daemon.kill()
    worker.ask("timers.close()")


def after_the_restart(daemon: Daemon, worker: Remote) -> None:
    daemon.kill()
    daemon.start(*POOLS)
    assert daemon.workers()["a"]["pool_bytes"] == {"requests": 100, "small": 100}
    worker.kill()


def segment_lost(daemon: Daemon, worker: Remote) -> None:
    daemon.kill()
    daemon.segment_path("worker-0").unlink()
    daemon.start(*POOLS)
    assert worker.process.wait(60) == -signal.SIGKILL


ENDS = {
    each.__name__: each
    for each in (worker_first, supervisor_first, closed_meanwhile, after_the_restart, segment_lost)
}


@pytest.mark.parametrize("how", ENDS)
def test_nothing_stays_whoever_was_killed(daemon: Daemon, how: str) -> None:
    """Supervisor and worker die in any order: when a supervisor is there again nothing is left of
    the dead worker, and the living one has what it had."""
    daemon.start(*POOLS)
    with Remote(daemon, worker="a") as a, Remote(daemon, worker="b"):
        shared = Shared.of(daemon)
        shared.use(0)
        shared.use(1, bytes=30)
        before = shared.traces(1)
        ENDS[how](daemon, a)
        if daemon.process is None or daemon.process.poll() is not None:
            daemon.start(*POOLS)
        until(lambda: list(daemon.workers()) == ["b"], "gone")
        assert shared.traces(0) == NOBODY
        assert shared.traces(1) == before
        assert shared.used() == [30, 30]
    until(lambda: daemon.workers() == {}, "gone, too")
    assert shared.used() == [0, 0]


@pytest.mark.parametrize("upto", ["marked", *STEPS, "emptied"])
def test_supervisor_killed_while_it_returned_bytes(daemon: Daemon, upto: str) -> None:
    daemon.start(*POOLS)
    with Remote(daemon, worker="a") as a, Remote(daemon, worker="b"):
        shared = Shared.of(daemon)
        shared.change(1, 400)
        shared.change(0, 100)
        worker_first(daemon, a)
        shared.reap(0, "done" if upto == "emptied" else upto)
        if upto == "emptied":
            shared.pools.ledgers[0, 0]["even"] = shared.pools.ledgers[0, 0]["odd"] = 0
        daemon.start(*POOLS)
        until(lambda: list(daemon.workers()) == ["b"], "gone")
        assert (shared.used(), shared.out(1), shared.traces(0)) == ([400, 0], [400, 0], NOBODY)
        assert int(shared.pools.pools["reaping"][0]) == 0


def test_living_workers_keep_what_they_have(daemon: Daemon) -> None:
    daemon.start(*POOLS)
    with Remote(daemon, worker="a"):
        shared = Shared.of(daemon)
        shared.use(0)
        before, words = shared.traces(0), shared.pools.pools["used"].tolist()
        for row in (1, 40, 64, 69):
            daemon.kill()
            assert shared.pools.pools["used"].tolist() == words
            shared.use(row, bytes=9)
            daemon.start(*POOLS)
            assert shared.traces(row) == NOBODY
            assert shared.traces(0) == before
            assert shared.used() == [100, 100]
            words = shared.pools.pools["used"].tolist()


# -- what is told ------------------------------------------------------------------------------


def test_status_of_pools(daemon: Daemon) -> None:
    daemon.start(*POOLS)
    with Remote(daemon, worker="a"), Remote(daemon, worker="b"):
        shared = Shared.of(daemon)
        shared.change(0, 300, 1)
        shared.change(1, 600, 1)
        shared.wait_in_queue(1, 3, 1)
        pools = shared.pools.pools
        pools["dry_since"][1] = pools["created"][1]
        where = ("--name", daemon.name, "--runtime-dir", str(daemon.base))
        status = json.loads(well("status", "--json", *where))
        first, second = status["pools"]
        assert first == {
            "name": "requests", "size": 65536, "largest": 65536, "strict": False, "used": 0,
            "available": 65536, "depleted_percent": 0.0, "waiters": 0,
        }  # fmt: skip
        assert second == {
            "name": "small", "size": 1000, "largest": 100, "strict": True, "used": 900,
            "available": 100, "depleted_percent": 100.0, "waiters": 1,
        }  # fmt: skip
        shared_by = {w["name"]: w["pool_bytes"] for w in status["workers"]}
        assert shared_by == {"a": {"requests": 0, "small": 300}, "b": {"requests": 0, "small": 600}}
        text = well("status", *where)
        assert "pools       2" in text
        assert "small" in text
        pools["dry_since"][1] = 0
        assert daemon.status()["pools"][1]["depleted_percent"] == 0.0


def test_no_pools(daemon: Daemon) -> None:
    daemon.start()
    with Remote(daemon, worker="a") as a:
        assert Shared.of(daemon).pools.names() == []
        assert daemon.status()["pools"] == []
        where = ("--name", daemon.name, "--runtime-dir", str(daemon.base))
        assert "pools " not in well("status", *where)
        daemon.kill()
        daemon.start()
        a.ask("timers.schedule(3600.0)")
        daemon.kill()  # before it sees the worker leave
    assert "no pool a (this start: a=1M)" in daemon.refused("--pool", "a=1M")


def test_other_pools_than_what_was_left(daemon: Daemon) -> None:
    daemon.start(*POOLS)
    with connect(str(daemon.directory), worker="kept", on_death="keep") as timers:
        timers.schedule(3600.0)
    daemon.kill()
    message = daemon.refused("--pool", "requests=1M", *POOLS[2:])
    assert "--pool requests=64K (this start: requests=1M): start with the same options" in message
    daemon.start("--pool", "requests=1M", "--fresh")
    assert [pool["size"] for pool in daemon.status()["pools"]] == [1 << 20]


def test_pools_by_environment_file_and_embedded(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("WHEELD_POOLS", "a=1M;b=2M,strict")
    daemon.start()
    assert [(p["name"], p["strict"]) for p in daemon.status()["pools"]] == [
        ("a", False), ("b", True),
    ]  # fmt: skip
    daemon.stop()
    monkeypatch.delenv("WHEELD_POOLS")
    path = tmp_path / "wheel.toml"
    path.write_text('pools = ["c=64M,strict"]')
    daemon.start(config=path)
    assert [pool["name"] for pool in daemon.status()["pools"]] == ["c"]
    daemon.stop()
    with embedded(capacity=64, pools=["d=5K", "e=6"]) as place:
        names = [pool["name"] for pool in status_of(place)["pools"]]
    assert names == ["d", "e"]
    with pytest.raises(WheelError, match="size 'x'"), embedded(pools=["d=x"]):
        pass


def test_a_bad_pool_is_refused(daemon_name: str, runtime_dir: Path) -> None:
    where = ("--name", daemon_name, "--runtime-dir", str(runtime_dir))
    assert "expected NAME=BYTES" in badly("start", *where, "--pool", "requests", code=2)
