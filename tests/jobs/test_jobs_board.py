"""Jobs as others see them: `wheeld jobs`, metrics, `wheeld top`; and what these can do."""

import json
import os
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from test_jobs import MINUTE, due, minutely, running, settled, until
from test_jobs_hang import pass_time

import wheeld
from commands import badly, well
from wheeld_client import JobBoard, Jobs, Timers, connect
from wheeld_client.jobs.occurrences import Occurrences
from wheeld_client.jobs.records import Account

SECOND = 10**9


@pytest.fixture
def wheel() -> Iterator[tuple[Any, Timers]]:
    with wheeld.embedded(virtual_clock=True) as daemon, connect(daemon) as timers:
        yield daemon, timers


def jobs_command(daemon: Any, *words: str) -> Any:
    return json.loads(well("jobs", *words, "--json", "--name", str(daemon)))


def test_the_list_names_next_and_last(wheel: tuple[Any, Timers]) -> None:
    daemon, timers = wheel
    jobs, fails = Jobs("shop"), [True]
    worker = ""

    @jobs.every(MINUTE, name="refresh")
    def refresh() -> None:
        nonlocal worker
        worker = jobs._runner.timers.worker if jobs._runner else ""
        daemon_seconds = timers.now_ns() / SECOND
        if fails[0]:
            raise RuntimeError(f"no, at {daemon_seconds}")

    @jobs.task(name="mail")
    def mail(to: str) -> None: ...

    @jobs.cron("0 3 * * *", tz="Europe/Berlin", name="nightly")
    def nightly() -> None: ...

    assert jobs_command(daemon, "list") == []
    with running(jobs, timers):
        until(lambda: due(timers) and len(jobs_command(daemon, "list")) == 3)
        mail_job, nightly_job, first = jobs_command(daemon, "list")
        assert (mail_job["schedule"], mail_job["next"]) == ("task", None)
        assert (nightly_job["schedule"], nightly_job["next"]) == ("0 3 * * * Europe/Berlin", 7200)
        assert (first["schedule"], first["next"], first["last"]) == ("every 60 s", 60, None)
        for count in (1, 2):
            daemon.advance(MINUTE)
            until(lambda count=count: due(timers) == (count + 1) * 60 * SECOND and settled(timers))
        fails[0] = False
        daemon.advance(MINUTE)
        until(lambda: due(timers) == 240 * SECOND and settled(timers))
        (found,) = jobs_command(daemon, "list", "--app", "shop")[2:]
        assert found == {
            "application": "shop", "name": "refresh", "schedule": "every 60 s",
            "next": 240, "last": 180, "lasted": 0, "late": 0, "worker": worker,
            "runs": 3, "failures": 2, "failing": 0, "missed": 0, "paused": False, "running": False,
            "unclaimed": None,
        }  # fmt: skip
        assert worker
        text = well("jobs", "list", "--name", str(daemon))
        assert "3 jobs" in text
        assert jobs_command(daemon, "list", "--app", "other") == []
    found = JobBoard(str(daemon)).find("refresh")
    assert (found.runs, found.next) == (3, 240), "without a worker"


def test_pause_and_resume(wheel: tuple[Any, Timers]) -> None:
    """In all workers; what falls due meanwhile is left out, and runs by hand of a task wait."""
    daemon, timers = wheel
    ran: list[float] = []
    jobs, mails = minutely(ran, timers), []

    @jobs.task(name="mail")
    def mail(to: str) -> None:
        mails.append(to)

    with running(jobs, timers):
        until(lambda: due(timers) and len(JobBoard(str(daemon)).jobs()) == 2)
        said = {"application": "shop", "name": "refresh", "paused": True, "changed": True}
        assert jobs_command(daemon, "pause", "refresh") == said
        assert jobs_command(daemon, "pause", "refresh") == said | {"changed": False}
        jobs_command(daemon, "pause", "mail")
        mail.schedule(0, "ann")
        mail_waits = JobBoard(str(daemon)).find("mail").paused
        for minute in (60, 120):
            daemon.advance(MINUTE)
            until(lambda minute=minute: due(timers) == (minute + 60) * SECOND and settled(timers))
        board = JobBoard(str(daemon))
        found = board.find("refresh")
        assert (ran, mails, found.missed, found.paused) == ([], [], 2, True)
        assert "runs by its schedule" in well("jobs", "resume", "refresh", "--name", str(daemon))
        assert board.resume("mail")
        assert not board.resume("mail")
        daemon.advance(MINUTE)
        until(lambda: due(timers) == 240 * SECOND and settled(timers))
        pass_time(daemon, lambda: mails)
    assert (ran, mails, mail_waits) == ([180], ["ann"], True)


def test_run_by_hand(wheel: tuple[Any, Timers]) -> None:
    """Beside the schedule, which stays, and also of a paused job; never beside another run."""
    daemon, timers = wheel
    ran: list[float] = []
    jobs, mails = minutely(ran, timers), []

    @jobs.task(name="mail")
    def mail(to: str, *, subject: str) -> None:
        mails.append((to, subject))

    with running(jobs, timers):
        until(lambda: due(timers) and len(JobBoard(str(daemon)).jobs()) == 2)
        jobs_command(daemon, "pause", "refresh")
        daemon.advance(30)
        made = jobs_command(daemon, "run", "refresh")
        assert (made["application"], made["name"]) == ("shop", "refresh")
        pass_time(daemon, lambda: ran and settled(timers))
        assert due(timers) == 60 * SECOND
        words = ("--args", '["ann"]', "--kw", '{"subject": "hello"}')
        jobs_command(daemon, "pause", "mail")
        jobs_command(daemon, "run", "mail", *words)
        pass_time(daemon, lambda: mails)
        assert mails == [("ann", "hello")]
        jobs_command(daemon, "resume", "refresh")
        daemon.advance(30)
        until(lambda: due(timers) == 120 * SECOND and settled(timers))
    assert [int(when) for when in ran] == [30, 60]
    assert JobBoard(str(daemon)).find("refresh").runs == 2


def test_a_run_that_no_worker_has(
    wheel: tuple[Any, Timers], caplog: pytest.LogCaptureFixture
) -> None:
    """It waits for a worker that has it, named; it is given up an hour after nobody came."""
    daemon, timers = wheel
    ran: list[float] = []
    old, board, mails = minutely(ran, timers), JobBoard(str(daemon)), []
    new = Jobs("shop", daemon=str(daemon))
    mail = new.task(mails.append, name="mail")
    other = new.task(mails.append, name="other")
    with running(old, timers):
        until(lambda: due(timers))
        mail.schedule(0, "ann")
        pass_time(daemon, lambda: any(each.unclaimed is not None for each in board.jobs()))
        assert "no worker has it" in well("jobs", "list", "--name", str(daemon))
        assert board.find("mail").schedule == "unknown"
        with running(new, timers):
            pass_time(daemon, lambda: mails)
        assert mails == ["ann"]
        assert board.find("mail").unclaimed is None
        other.schedule(0, "eve")
        pass_time(daemon, lambda: board.find("other").unclaimed is not None)
        began, key = timers.now_ns(), ("job-unclaimed", "shop", "other")
        while "eve" not in caplog.text:
            note = timers.find(key)
            daemon.advance(30)
            until(lambda note=note: timers.find(key) != note or "eve" in caplog.text)
        assert timers.now_ns() - began >= 3500 * SECOND
        until(lambda: board.find("other").missed == 1)
    assert mails == ["ann"]
    assert "has no job 'mail'" in caplog.text
    assert "no worker has had a job 'other' for 36" in caplog.text


def test_a_removed_job_is_not_run(wheel: tuple[Any, Timers]) -> None:
    daemon, timers = wheel
    with running(minutely([], timers), timers):
        until(lambda: due(timers))
    with running(Jobs("shop"), timers):
        until(lambda: [each.schedule for each in JobBoard(str(daemon)).jobs()] == ["removed"])
    said = badly("jobs", "run", "refresh", "--name", str(daemon))
    assert "was removed: nobody runs it" in said


def test_a_look_while_a_record_is_replaced(wheel: tuple[Any, Timers]) -> None:
    """It has the account of before or of after, never none: counters would begin anew."""
    daemon, timers = wheel
    records, account, ends = Occurrences(timers, "shop", 1), Account(runs=1), threading.Event()
    records.define("refresh", ["every", 60 * 10**9])
    records.write("refresh", account)

    def write() -> None:
        while not ends.is_set():
            account.runs += 1
            records.write("refresh", account)
            time.sleep(0.001)  # else nobody else gets a turn

    with connect(daemon, group="jobs-shop") as member:
        member.poll()
        writer = threading.Thread(target=write)
        writer.start()
        try:
            seen = [JobBoard(str(daemon)).find("refresh").runs for _ in range(40)]
        finally:
            ends.set()
            writer.join()
    assert min(seen) > 0


def test_errors(wheel: tuple[Any, Timers]) -> None:
    daemon, timers = wheel
    where = ("--name", str(daemon))
    assert "no job 'refresh'; there are: none" in badly("jobs", "pause", "refresh", *where)
    for application in ("shop", "blog"):
        jobs = Jobs(application)
        jobs.task(print, name="refresh")
        with running(jobs, timers):
            until(lambda application=application: JobBoard(str(daemon)).jobs(application))
    assert "blog, shop have one" in badly("jobs", "run", "refresh", *where)
    assert jobs_command(daemon, "pause", "refresh", "--app", "blog")["application"] == "blog"
    assert "blog/refresh, shop/refresh" in badly("jobs", "run", "other", *where)
    for words in (("--args", "{}"), ("--args", "nonsense"), ("--kw", "[]")):
        assert words[1] in badly("jobs", "run", "refresh", "--app", "shop", *words, *where, code=2)


def test_metrics_and_top(wheel: tuple[Any, Timers], monkeypatch: pytest.MonkeyPatch) -> None:
    daemon, timers = wheel
    jobs = Jobs("shop")

    @jobs.every(MINUTE, name="refresh")
    def refresh() -> None:
        raise RuntimeError("no")

    jobs.task(print, name="zzz")
    with running(jobs, timers):
        until(lambda: due(timers) and len(JobBoard(str(daemon)).jobs()) == 2)
        daemon.advance(MINUTE)
        until(lambda: due(timers) == 120 * SECOND and settled(timers))
    where = ("--name", str(daemon))
    labels = f'{{daemon="{os.path.basename(str(daemon))}",job_name="shop/refresh"}}'
    text = well("metrics", "--once", *where)
    for metric, value in (
        ("job_runs_total", 1), ("job_failures_total", 1), ("job_failing", 1), ("job_paused", 0),
        ("job_left_out_total", 0), ("job_late_seconds", 0), ("job_lasted_seconds", 0),
    ):  # fmt: skip
        assert f"wheeld_{metric}{labels} {value}.0" in text.replace("'", '"'), metric
    assert "wheeld_jobs_unnamed" in text
    monkeypatch.setattr("wheeld.metrics.jobs.MOST_JOBS", 1)
    text = well("metrics", "--once", *where)
    assert "zzz" not in text
    (unnamed,) = (x for x in text.splitlines() if x.startswith("wheeld_jobs_unnamed{"))
    assert unnamed.endswith(" 1.0")
    found = json.loads(well("top", "--json", "--interval", "10ms", *where))
    assert found["jobs"][0]["name"] == "shop/refresh"
    text = well("top", "--once", "--interval", "10ms", *where)
    assert "shop/refresh" in text
    assert "1 runs, 1 failed" in text
