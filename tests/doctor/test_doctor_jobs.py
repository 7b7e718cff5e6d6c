"""doctor's checks of jobs: over made-up figures, and over a daemon whose workers come and go."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from test_doctor import assert_bad
from test_doctor_live import findings
from test_doctor_shared import daemon

from wheeld.doctor import jobs as checks
from wheeld.doctor.jobs import ObservedJobs, Queue
from wheeld_client import JobBoard, Jobs, JobState, connect

__all__ = ["daemon"]

SECOND = 10**9
NOW = 1000.0
QUEUE = Queue("shop", ("web-1",), 0, 0)
OTHER = Queue("other", ("web-2",), 1, SECOND)
REFRESH = JobState("shop", "refresh", "every 60 s", next=NOW + 20)
MAIL = JobState("shop", "mail", "task")
ALONE = replace(QUEUE, runners=())


def observed(queue: Queue = QUEUE, *jobs: JobState) -> ObservedJobs:
    return ObservedJobs((OTHER, queue), jobs or (REFRESH, MAIL), round(NOW * SECOND))


Check = Callable[[ObservedJobs], Any]
ILL: list[tuple[Check, ObservedJobs, str, str]] = [
    (checks.runners, observed(replace(ALONE, waiting=3, oldest_ns=7 * SECOND)), "warning",
     "shop: no worker, 3 runs wait, the first for 7 s"),
    (checks.runners, observed(ALONE), "note", "shop: no worker, the next run is due in 20 s"),
    (checks.runners, observed(replace(QUEUE, waiting=2, oldest_ns=11 * SECOND)), "warning",
     "shop: 2 runs wait, the first for 11 s; web-1"),
    (checks.functions, observed(QUEUE, replace(MAIL, unclaimed=NOW - 30)), "warning",
     "no worker that runs has shop/mail for 30 s"),
]  # fmt: skip


@pytest.mark.parametrize(("check", "jobs", "status", "words"), ILL)
def test_what_is_ill_is_said(check: Check, jobs: ObservedJobs, status: str, words: str) -> None:
    finding = check(jobs)
    assert_bad(finding, status, words)
    assert "other" not in finding.found
    assert {other(jobs).status for other in checks.CHECKS if other is not check} == {"ok"}


@pytest.mark.parametrize(
    "jobs",
    [
        observed(),
        observed(replace(QUEUE, waiting=2, oldest_ns=9 * SECOND)),  # busy, not for long
        observed(ALONE, MAIL),  # by hand only, and nobody has asked for it
        observed(ALONE, replace(REFRESH, schedule="removed")),
    ],
)
def test_what_is_not_ill(jobs: ObservedJobs) -> None:
    assert {check(jobs).status for check in checks.CHECKS} == {"ok"}


def test_every_check_has_a_case() -> None:
    assert {check for check, *_ in ILL} == set(checks.CHECKS)


# -- the command -----------------------------------------------------------------------------------


def until(reached: Callable[[], object]) -> None:
    """pytest's limit ends what never comes."""
    wake = threading.Event()
    while not reached():
        wake.wait(0.005)


def doctor(daemon: Any) -> dict[str, dict[str, str]]:
    return findings("--name", str(daemon))[1]


def shop(daemon: Any, hangs: threading.Event | None = None) -> Jobs:
    jobs = Jobs("shop", daemon=str(daemon), threads=1)

    @jobs.every(60, name="refresh")
    def refresh() -> None:
        if hangs is not None:
            hangs.wait()

    return jobs


def test_jobs_without_a_worker(daemon: Any) -> None:
    assert "job runners" not in doctor(daemon), "nobody has jobs"
    jobs, board = shop(daemon), JobBoard(str(daemon))
    jobs.start()
    until(lambda: board.jobs() and board.find("refresh").next)
    found = doctor(daemon)
    assert (found["job runners"]["status"], found["job functions"]["status"]) == ("ok", "ok")
    jobs.stop(wait=True)
    found = doctor(daemon)
    assert_is(found, "note", "shop: no worker, the next run is due in 60 s")
    daemon.advance(75)
    until(lambda: board.find("refresh").next is None)
    assert_is(doctor(daemon), "warning", "shop: no worker, 1 runs wait, the first for 15 s")


def assert_is(found: dict[str, dict[str, str]], status: str, words: str) -> None:
    finding = found["job runners"]
    assert (finding["status"], words in finding["found"]) == (status, True), finding


def test_a_worker_that_hangs_in_a_job(daemon: Any) -> None:
    hangs = threading.Event()
    jobs, board = shop(daemon, hangs), JobBoard(str(daemon))

    @jobs.task(name="mail")
    def mail() -> None: ...

    jobs.start()
    try:
        until(lambda: board.jobs() and board.find("refresh").next)
        daemon.advance(60)
        until(lambda: board.find("refresh").running)
        mail.schedule(0)
        daemon.advance(12)
        until(lambda: doctor(daemon)["job runners"]["status"] == "warning")
        assert (
            "shop: 1 runs wait, the first for 12 s; pid-" in doctor(daemon)["job runners"]["found"]
        )
    finally:
        hangs.set()
        jobs.stop(wait=True)


def test_an_occurrence_whose_function_no_worker_has(daemon: Any) -> None:
    """Named, not given up, and no longer named when a worker has it."""
    board = JobBoard(str(daemon))
    jobs = shop(daemon)
    jobs.start()
    until(lambda: board.jobs() and board.find("refresh").next)
    jobs.stop(wait=True)
    old = Jobs("shop", daemon=str(daemon), version=1)
    old.start()
    try:
        daemon.advance(60)
        until(lambda: board.find("refresh").unclaimed is not None)
        daemon.advance(5)
        found = doctor(daemon)["job functions"]
        assert (found["status"], "has shop/refresh for " in found["found"]) == ("warning", True)
        new = shop(daemon)
        new.start()
        until(lambda: (daemon.advance(0.5), board.find("refresh").runs)[1])
        new.stop(wait=True)
        assert doctor(daemon)["job functions"]["status"] == "ok"
    finally:
        old.stop(wait=True)
    with connect(daemon) as timers:
        assert timers.find(("job-unclaimed", "shop", "refresh")) is None
