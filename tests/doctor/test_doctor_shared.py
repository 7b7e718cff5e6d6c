"""doctor's checks of the directory of keys and of leases: over made-up figures, then a daemon."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from test_doctor import assert_bad
from test_doctor_live import findings

import wheeld
from children import start_child
from wheeld.doctor import live, shared as checks
from wheeld.doctor.shared import ObservedDirectory, ObservedHolder
from wheeld.resources.remains import DaemonMemory
from wheeld_client import Lease, RateLimit, Semaphore, connect

HOLDER = ObservedHolder("web-1", "S", 2, 0, 0)
WELL = ObservedDirectory({"words": 10, "timers": 20, "limits": 0}, 1000, (HOLDER,), ("web-2",))
STOPPED = replace(HOLDER, state="T")

Check = Callable[[ObservedDirectory], Any]
ILL: list[tuple[Check, dict[str, Any], str, str]] = [
    (checks.room, {"used": {"words": 90, "limits": 760}}, "warning", "850 of 1,000 places in use"),
    (checks.room, {"used": {"words": 9, "limits": 841}}, "warning", "9 of words, 841 of limits"),
    (checks.room, {"used": {"timers": 950}}, "failure", "--capacity"),
    (checks.holders, {"holders": (STOPPED,)}, "warning", "web-1 is stopped and holds 2 leases"),
    (checks.holders, {"holders": (STOPPED,)}, "warning", "web-2 wait for a lease"),
    (checks.holders, {"holders": (replace(STOPPED, held=0, over=3, over_ns=4 * 10**9),)}, "warning",
     "3 of its leases ended 4 s ago"),
    (checks.waiters, {"unserved": ("web-2",)}, "warning", "web-2: waiting, and the lease is free"),
]  # fmt: skip


@pytest.mark.parametrize(("check", "changes", "status", "words"), ILL)
def test_what_is_ill_is_said(
    check: Check, changes: dict[str, Any], status: str, words: str
) -> None:
    observed = replace(WELL, **changes)
    assert_bad(check(observed), status, words)
    assert {other(observed).status for other in checks.CHECKS if other is not check} == {"ok"}


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"used": {"timers": 849}},
        {"holders": (replace(HOLDER, held=0, over=3, over_ns=10**9),)},  # it runs, and can see it
        {"holders": (replace(STOPPED, held=0),)},
    ],
)
def test_what_is_not_ill(changes: dict[str, Any]) -> None:
    assert {check(replace(WELL, **changes)).status for check in checks.CHECKS} == {"ok"}


def test_every_check_has_a_case() -> None:
    assert {check for check, *_ in ILL} == set(checks.CHECKS)


# -- the command -----------------------------------------------------------------------------------


@pytest.fixture
def daemon() -> Iterator[Any]:
    with wheeld.embedded(virtual_clock=True) as daemon:
        yield daemon


@pytest.fixture
def stop() -> Iterator[Callable[..., int]]:
    """Runs `work` in a child, which is stopped when it has said so; ends it."""
    children: list[tuple[int, int]] = []

    def stopped(work: Callable[[], None]) -> int:
        pid, answer = start_child(work)
        children.append((pid, answer))
        os.waitid(os.P_PID, pid, os.WSTOPPED)
        return pid

    yield stopped
    for pid, answer in children:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(answer)


def hold(daemon: Any) -> None:
    with connect(daemon, worker="web-1") as mine:
        assert Lease(mine, "long", 3600).try_acquire()
        assert Lease(mine, "short", 5).try_acquire()
        os.kill(os.getpid(), signal.SIGSTOP)


def wait(daemon: Any) -> None:
    with connect(daemon, worker="web-2") as mine:
        lease = Lease(mine, "held", 3600)
        ticket = lease._enter()
        assert lease._look(ticket)[0] == 0
        os.kill(os.getpid(), signal.SIGSTOP)


def doctor(daemon: Any) -> dict[str, dict[str, str]]:
    return findings("--name", str(daemon))[1]


def test_a_stopped_holder(daemon: Any, stop: Callable[..., int]) -> None:
    stop(partial(hold, daemon))
    found = doctor(daemon)["lease holders"]
    assert (found["status"], "web-1 (row 0, pid" in found["found"]) == ("warning", True)
    assert found["found"].endswith("is stopped and holds 2 leases")
    daemon.advance(8)
    found = doctor(daemon)["lease holders"]
    assert "is stopped and holds 1 leases; web-1" in found["found"]
    assert found["found"].endswith("1 of its leases ended 3 s ago")
    with connect(daemon) as other:
        assert Lease(other, "short", 5).try_acquire()
        assert "ended" not in doctor(daemon)["lease holders"]["found"], "it is another one's now"


def test_a_waiter_that_is_stopped(daemon: Any, stop: Callable[..., int]) -> None:
    with connect(daemon, worker="web-1") as timers:
        held = Lease(timers, "held", 3600)
        assert held.try_acquire()
        stop(partial(wait, daemon))
        found = doctor(daemon)["lease waiters"]
        assert (found["status"], found["found"][:14]) == ("ok", "1 workers wait")
        held.release()
        daemon.advance(2)  # its turn is over
        found = doctor(daemon)["lease waiters"]
        assert (found["status"], "web-2 (row 1, pid" in found["found"]) == ("warning", True)


def test_a_lease_that_was_released_just_now(daemon: Any) -> None:
    """It is not said of a waiter that had no time yet to take it."""
    with connect(daemon, worker="web-1") as timers, connect(daemon, worker="web-2") as other:
        held, wanted = Lease(timers, "held", 3600), Lease(other, "held", 3600)
        assert held.try_acquire()
        ticket = wanted._enter()
        assert wanted._look(ticket)[0] == 0

        def sleep(seconds: float) -> None:
            held.release()
            daemon.advance(2)

        memory = DaemonMemory(Path(str(daemon)))
        assert memory.headers() == []
        memories = memory.memories()
        assert memories is not None
        assert memory.status is not None
        for unserved in ((), (f"web-2 (row 1, pid {os.getpid()})",)):
            seen = live.gather(memory.status, memories, memory.prefix, Path("/proc"), sleep)
            assert seen.directory is not None
            assert seen.directory.unserved == unserved
        wanted._leave(ticket)


def test_what_is_over_needs_no_place(daemon: Any) -> None:
    with connect(daemon) as timers:
        limit, seats = RateLimit(timers, "logins", 5, per=60), Semaphore(timers, "exports", 4)
        assert limit.try_acquire(key="ann")
        assert seats.try_acquire()
        timers.schedule(100.0, key="a")
        assert doctor(daemon)["keys"]["found"].endswith(": 1 of timers, 1 of limits, 1 of leases")
        daemon.advance(60)
        seats.release()
        timers.cancel(key="a")
        until = time.monotonic() + 30
        while "0 of" not in (found := doctor(daemon)["keys"]["found"]):
            assert time.monotonic() < until, found


def test_it_is_full() -> None:
    """It is said before the first key is refused."""
    with wheeld.embedded(virtual_clock=True, capacity=1024) as daemon, connect(daemon) as timers:
        limit = RateLimit(timers, "many", 1, per=3600)
        possible = int(doctor(daemon)["keys"]["found"].split()[2].replace(",", ""))
        for key in range(int(possible * 0.86)):
            assert limit.try_acquire(key=key)
        found = doctor(daemon)["keys"]
    assert (found["status"], "of limits" in found["found"]) == ("warning", True)
