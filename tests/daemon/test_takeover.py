"""A supervisor is killed and started again: it goes on with the living segments and their workers,
or says why it does not."""

import os
import signal
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest

from children import receive
from common_fixtures import daemon_process
from daemons import Daemon, end_of, map_segment, stopped, until
from remotes import Remote
from wheeld_client import DaemonNotRunning, connect
from wheeld_core import _native
from wheeld_core.views import record

daemon = daemon_process()
fresh = daemon_process(started=False)


# -- the living ------------------------------------------------------------


def test_workers_go_on(daemon: Daemon) -> None:
    with Remote(daemon, worker="a") as a, Remote(daemon, worker="b") as b:
        a.ask("timers.schedule_many(np.full(100, 1000.0)).tolist()")
        a.ask("timers.schedule(1000.0, 8, to='b')")
        b.tell("receive(1)")
        segments_before, rows = daemon.segments(), daemon.workers()
        daemon.kill()
        a.ask("timers.schedule_many([0.0] * 50, np.arange(50)).tolist()")
        a.ask("timers.schedule(0.0, 7, to='b')")
        daemon.start()
        assert sorted(a.ask("receive(50)")) == list(range(50))
        assert b.answer() == [7]
        assert daemon.segments() == segments_before
        after = daemon.status()
        assert after["taken_over"] is True
        assert {w["name"]: (w["row"], w["pid"]) for w in after["workers"]} == {
            name: (w["row"], w["pid"]) for name, w in rows.items()
        }
        assert after["pending"] == 101
        a.ask("len(timers.poll(0.2))")  # it has taken up its connection by now
        a.ask("timers.close()")
        until(lambda: list(daemon.workers()) == ["b"], "a's good-bye")
        assert daemon.status()["pending"] == 0


def test_killed_again_and_again(daemon: Daemon) -> None:
    with connect(str(daemon.directory), worker="w") as timers:
        timers.schedule_many(np.linspace(0.0, 2.0, 400), np.arange(400))
        ids = timers.schedule_many(np.full(300, 1000.0))
        got: list[int] = []
        for _ in range(5):
            daemon.kill()
            got += timers.poll(0.01)["cookie"].tolist()
            daemon.start()
        got += receive(timers, 400 - len(got))["cookie"].tolist() if len(got) < 400 else []
        assert sorted(got) == list(range(400))
        assert timers.cancel_many(ids).all()
        assert len(timers.schedule_many(np.full(512, 1000.0))) == 512
        assert len(timers.schedule_many(np.full(512, 1000.0))) == 512
        assert [w["offences"] for w in daemon.status()["workers"]] == [0]


CALLS: dict[str, Callable[..., object]] = {
    "schedule": lambda timers, id: timers.schedule(1000.0),
    "schedule_many": lambda timers, id: timers.schedule_many([1000.0] * 3),
    "cancel": lambda timers, id: timers.cancel(id),
    "reschedule": lambda timers, id: timers.reschedule(id, 500.0),
    "poll": lambda timers, id: timers.poll(0.01),
    "dispatch": lambda timers, id: timers.dispatch(0.01),
    "stats": lambda timers, id: timers.stats(),
    "workers": lambda timers, id: timers.workers(),
}


def test_no_call_hangs_in_between(daemon: Daemon) -> None:
    timers = connect(str(daemon.directory), reconnect_for=0.5)
    id = timers.schedule(1000.0)
    daemon.kill()
    outcomes: dict[str, object] = {}

    def call_all(patience: float) -> None:
        come = {"connect": lambda *_: connect(str(daemon.directory), timeout=patience).close()}
        for name, call in {**CALLS, **come}.items():
            try:
                call(timers, id)
                outcomes[name] = "works"
            except DaemonNotRunning:
                outcomes[name] = "says so"

    for expected, patience in (("says so", 0.2), ("works", 60.0)):
        thread = threading.Thread(target=call_all, args=(patience,), daemon=True)
        thread.start()
        thread.join(60)
        assert not thread.is_alive(), f"hangs after {outcomes}"
        assert outcomes["connect"] == expected
        assert [outcomes[name] for name in list(CALLS)[:4]] == ["works"] * 4
        if expected == "says so":
            daemon.start()
    assert set(outcomes.values()) == {"works"}
    timers.close()
    until(lambda: daemon.workers() == {}, "closed")


# -- the dead ------------------------------------------------------------


def depart(how: str, daemon: Daemon, worker: Remote) -> None:
    if how == "closed":
        worker.ask("timers.close()")
    elif how == "killed":
        worker.kill()
    elif how == "zombie":
        end = end_of(worker.pid)
        worker.process.send_signal(signal.SIGKILL)
        end()  # its parent, this process, does not look at it
    else:  # its number is another process's by now
        rows = daemon.registry().rows
        row = next(row for row in range(len(rows)) if rows["pid"][row] == worker.pid)
        rows["start_time"][row] += 1


@pytest.mark.parametrize("how", ["closed", "killed", "zombie", "pid reused"])
@pytest.mark.parametrize("policy", ["drop", "keep"])
def test_workers_that_left_meanwhile(daemon: Daemon, how: str, policy: str) -> None:
    with connect(str(daemon.directory), worker="here") as timers:
        with Remote(daemon, worker="gone", on_death=policy) as gone:
            gone.ask("timers.schedule_many(np.full(100, 1000.0)).tolist()")
            timers.schedule(1000.0)
            daemon.kill()
            depart(how, daemon, gone)
            daemon.start()
            until(
                lambda: (
                    daemon.workers().get("gone", {}).get("state")
                    == ("kept" if policy == "keep" else None)
                ),
                "reaped",
            )
            assert daemon.status()["pending"] == (101 if policy == "keep" else 1)
            assert daemon.workers()["here"]["state"] == "active"
        with connect(str(daemon.directory), worker="gone", on_death=policy) as successor:
            assert successor.adopted is (policy == "keep")
            assert successor.pending == (100 if policy == "keep" else 0)
        assert timers.pending == 1


def test_closed_while_the_new_daemon_starts(daemon: Daemon) -> None:
    with Remote(daemon, worker="late") as late:
        late.ask("timers.schedule_many(np.full(100, 1000.0)).tolist()")
        daemon.kill()
        with (daemon.directory / "clock.lock").open() as lock:
            import fcntl

            fcntl.flock(lock, fcntl.LOCK_EX)
            daemon.launch()
            until(daemon.find_clock, "its clock, which waits for the lock")
            late.ask("timers.close()")
        until(daemon.serves, "serving")
        until(lambda: daemon.workers() == {}, "reaped")
        assert daemon.status()["pending"] == 0


# -- those that are not taken back ------------------------------------------------------------


def test_fresh(daemon: Daemon) -> None:
    timers = connect(str(daemon.directory))
    timers.schedule(1000.0)
    old = map_segment(daemon.segment("wheel"), _native.KIND_WHEEL)
    names = daemon.segments()
    daemon.kill()
    daemon.start("--fresh")
    assert int(record(old, "wheel")["daemon_state"]) == 2
    assert not set(names) & set(daemon.segments())
    for call in (lambda: timers.poll(60.0), lambda: timers.schedule(1.0)):
        with pytest.raises(DaemonNotRunning):
            call()
    timers.close()
    status = daemon.status()
    assert (status["taken_over"], status["pending"], status["workers"]) == (False, 0, [])
    with connect(str(daemon.directory)) as again:
        again.schedule(0.0, 3)
        assert receive(again, 1)["cookie"].tolist() == [3]


def test_a_reaped_worker_is_told(daemon: Daemon) -> None:
    with connect(str(daemon.directory), worker="w") as timers:
        daemon.kill()
        daemon.registry().rows["start_time"][0] += 1
        daemon.start()
        until(lambda: daemon.workers() == {}, "reaped")
        with pytest.raises(DaemonNotRunning, match=r"no longer serves this worker.*connect\(\)"):
            timers.poll(60.0)


def test_another_configuration(daemon: Daemon) -> None:
    """Refused: the message names options and both values, the pending timers, and the way out; the
    segments stay, and the same options go on with them."""
    with connect(str(daemon.directory)) as timers:
        timers.schedule_many([1000.0] * 3)
        before = daemon.segments()
        daemon.kill()
        message = daemon.refused(wheel_size=128, max_workers=8)
        assert "--wheel-size 64 (this start: 128)" in message
        assert "--max-workers 64 (this start: 8)" in message
        assert "3 pending timers" in message
        assert "--fresh" in message
        assert daemon.segments() == before
        daemon.start()
        assert daemon.status()["pending"] == 3


def test_second_daemon_while_the_first_is_stopped(daemon: Daemon) -> None:
    with connect(str(daemon.directory)) as timers:
        timers.schedule(0.5, 2)
        before, first = daemon.segments(), daemon.process
        with stopped(daemon.pid):
            message = daemon.refused()
            assert f"already runs in {daemon.directory}" in message
            assert "wheeld stop" in message
            assert "--fresh" not in message
            assert "already runs" in daemon.refused("--fresh")
        assert daemon.segments() == before
        assert daemon.process is first
        assert receive(timers, 1)["cookie"].tolist() == [2]
        assert daemon.status()["pid"] == daemon.pid


# -- what is damaged ------------------------------------------------------------


def test_clients_of_remains_that_cannot_be_used(daemon: Daemon) -> None:
    with connect(str(daemon.directory)) as timers:
        timers.schedule(1000.0)
        daemon.kill()
        daemon.segment_path("registry").unlink()
        daemon.start()
        with pytest.raises(DaemonNotRunning):
            timers.poll(60.0)


@pytest.mark.parametrize("damage", ["segment gone", "segment truncated"])
def test_living_worker_without_a_segment(daemon: Daemon, damage: str) -> None:
    with connect(str(daemon.directory)) as timers, Remote(daemon, worker="victim") as victim:
        timers.schedule_many(np.full(100, 0.1), np.arange(100))
        victim.ask("timers.schedule_many(np.full(100, 1000.0)).tolist()")
        path = daemon.segment_path(f"worker-{daemon.workers()['victim']['row']}")
        daemon.kill()
        path.unlink() if damage == "segment gone" else os.truncate(path, 4096)
        daemon.start()
        assert victim.process.wait(60) == -signal.SIGKILL
        assert sorted(receive(timers, 100)["cookie"].tolist()) == list(range(100))
        status = daemon.status()
        assert status["pending"] == 0
        assert len(status["workers"]) == 1


def test_a_start_that_dies_anywhere(fresh: Daemon) -> None:
    rng = np.random.default_rng(5)
    for _ in range(6):
        process = fresh.launch()
        children: list[int] = []
        give_up = time.monotonic() + rng.uniform(0.05, 1.0)
        while time.monotonic() < give_up and process.poll() is None and not fresh.serves():
            children = fresh.children()
            time.sleep(0.005)
        waits = [end_of(pid) for pid in children]
        process.kill()
        process.wait()
        for wait in waits:
            wait()
    fresh.start()
    assert len(fresh.segments()) == 6
    fresh.stop()
    assert fresh.nothing_left()
