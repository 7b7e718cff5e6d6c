"""Any worker of the daemon may arm a timer under the keys of an application's jobs, and send to its
group: the jobs go on."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from test_jobs import until

import wheeld
from wheeld_client import JobBoard, Jobs, Timers, connect
from wheeld_client.jobs import occurrences
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


def test_a_process_without_room_for_a_thread_runs_them_later(
    shop: tuple[Any, Timers, Jobs, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, _, jobs, ran = shop
    submit, refused = ThreadPoolExecutor.submit, threading.Event()

    def refuse(self: ThreadPoolExecutor, *given: Any, **named: Any) -> Any:
        if getattr(given[0], "__name__", "") == "_take" and not refused.is_set():
            refused.set()
            raise RuntimeError("can't start new thread")
        return submit(self, *given, **named)

    monkeypatch.setattr(ThreadPoolExecutor, "submit", refuse)
    with running(jobs):
        jobs.jobs["hand"].schedule(0.0)
        until(lambda: ran)
    assert refused.is_set()
