"""Any worker of the daemon may arm a timer under the keys of an application's jobs, and send to its
group: the jobs go on."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from test_jobs import running as shop_running, until

import wheeld
from wheeld_client import JobBoard, Jobs, Timers, connect
from wheeld_client.jobs import occurrences, records
from wheeld_client.jobs.occurrences import Occurrences

WRONG = {
    "no text": b"\xff\xff",
    "no object": b"[1]",
    "a number": b"5",
    "nothing in it": b"{}",
    "a deep one": b"[" * 50_000,  # Python's parser recurses
    "other types": b'{"spec":5,"version":"x","runs":"x"}',
    "no schedule": b'{"spec":[],"version":1,"planned":[]}',
    "half a schedule": b'{"spec":["every"],"version":1,"runs":true}',
    "unknown schedule": b'{"spec":[["every"]],"version":1,"runs":1.5}',
    "no such clock": b'{"job":"tick","planned":0,"version":1,"spec":["every",60],"clock":99}',
    "long numbers": b'{"job":"tick","planned":%b,"version":%b,"began":%b,"since":%b,"seen":1}'
    % ((b"9" * 400,) * 4),
    "a period of no time": b'{"job":"tick","planned":1,"version":1,"spec":["every",-1],"runs":1e9}',
}
KEYS = [
    ("job-definition", "shop"),
    ("job-definition", "shop", 5),
    ("job-definition", "shop", "removed"),
    ("job-definition", "shop", "tick"),
    ("job-account", "shop", "tick"),
    ("job-unclaimed", "shop", "hand"),
]


@contextmanager
def running(jobs: Jobs) -> Iterator[None]:
    jobs.start()
    try:
        yield
    finally:
        jobs.stop(wait=True)


@pytest.fixture
def shop() -> Iterator[tuple[Any, Timers, Jobs, list[str]]]:
    ran: list[str] = []
    with wheeld.embedded(virtual_clock=True) as daemon, connect(daemon) as timers:
        jobs = Jobs("shop", daemon=str(daemon))
        jobs.every(60, name="tick")(lambda: ran.append("tick"))
        jobs.task(lambda: ran.append("hand"), name="hand")
        yield daemon, timers, jobs, ran


@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_no_record_is_none(shop: tuple[Any, Timers, Jobs, list[str]], wrong: str) -> None:
    daemon, timers, jobs, ran = shop
    foreign: Any = {"to": "group:others", "detached": True, "payload": WRONG[wrong]}
    for key in KEYS:
        timers.schedule(1e6, key=key, **foreign)
    with running(jobs):
        until(lambda: timers.find(("job", "shop", "tick")))
        for _ in range(200):
            timers.schedule(0, to="group:jobs-shop", payload=WRONG[wrong])
        jobs.jobs["hand"].schedule(1.0)
        daemon.advance(60)
        until(lambda: len(ran) == 2)
    assert sorted(ran) == ["hand", "tick"]
    states = {state.name: state for state in JobBoard(str(daemon)).jobs()}
    assert states["tick"].runs == states["hand"].runs == 1


def test_a_lock_of_others_does_not_hold_a_run(
    shop: tuple[Any, Timers, Jobs, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, timers, jobs, ran = shop
    monkeypatch.setattr(occurrences, "NOTE_TRIES", 10)
    timers.schedule(1e6, key=("job-noting", "shop", "hand"))
    with running(jobs):
        jobs.jobs["hand"].schedule(0.0)
        until(lambda: Occurrences(timers, "shop", 0).account("hand").runs == 1)
    assert ran == ["hand"]


def test_a_lock_that_cannot_be_ours_is_not_waited_for(
    shop: tuple[Any, Timers, Jobs, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    daemon, timers, _, _ = shop
    tries, lock = [], Occurrences.lock
    monkeypatch.setattr(Occurrences, "lock", lambda *given: tries.append(1) or lock(*given))
    timers.schedule(1e6, key=("job-noting", "shop", "hand"))
    with (
        connect(daemon, group="jobs-shop") as member,
        Occurrences(member, "shop", 0).noting("hand"),
    ):
        assert len(tries) == 1


def test_a_calendar_that_nobody_here_can_read(shop: tuple[Any, Timers, Jobs, list[str]]) -> None:
    daemon, timers, jobs, ran = shop
    foreign = records.Definition(["cron", "?", "UTC"], records.MOST_INT)
    with running(jobs):
        until(lambda: timers.find(("job", "shop", "tick")))
        Occurrences(timers, "shop", 0)._note(records.DEFINITION, "tick", foreign)
        daemon.advance(60)
        until(lambda: timers.find(("job-unclaimed", "shop", "tick")))
        timers.cancel(key=("job-definition", "shop", "tick"))
        daemon.advance(1)
        until(lambda: ran)
    assert ran == ["tick"]


@pytest.mark.parametrize("by", ["another process", "a thread", "itself later"])
def test_without_room_for_a_thread_a_long_run_holds_up_no_other(
    shop: tuple[Any, Timers, Jobs, list[str]], monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    """The pool queues what it has no thread for, where a thread that is there takes it."""
    daemon, timers, jobs, ran = shop
    submit, long, begun = ThreadPoolExecutor.submit, threading.Event(), threading.Event()
    queued: list[Any] = []

    @jobs.task(name="long")
    def run() -> None:
        begun.set()
        long.wait()

    def refuse(self: ThreadPoolExecutor, *given: Any) -> Any:
        if not begun.is_set() or threading.current_thread().name != "jobs-shop":
            return submit(self, *given)
        queued.append(given)
        if by == "itself later" and len(queued) > 1:
            return submit(self, *given)
        if by == "a thread":
            submit(self, *given)
            until(lambda: not given[1])
        raise RuntimeError("can't start new thread")

    other = Jobs("shop", daemon=str(daemon), version=jobs.version)
    other.task(lambda: ran.append("other"), name="hand")
    with running(jobs):
        run.schedule(0.0)
        until(begun.is_set)
        monkeypatch.setattr(ThreadPoolExecutor, "submit", refuse)
        jobs.jobs["hand"].schedule(0.0)
        until(lambda: queued)
        if by == "another process":
            with shop_running(other, timers):
                until(lambda: ran)
        until(lambda: ran)
        queued[0][0](*queued[0][1:])
        long.set()
    assert ran == ["other" if by == "another process" else "hand"]
