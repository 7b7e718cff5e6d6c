"""A worker that hangs in a job: others run it again when its time is over, and not before."""

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from test_jobs import MINUTE, account, due, running, settled, until

import wheeld
from wheeld_client import Jobs, Timers, connect
from wheeld_client.jobs.calendars import Every
from wheeld_client.jobs.occurrences import Occurrences
from wheeld_client.jobs.records import RUNNING, Occurrence

VISIBILITY = 600
SECOND = 10**9


@pytest.fixture
def wheel() -> Iterator[tuple[Any, Timers]]:
    with wheeld.embedded(virtual_clock=True) as daemon, connect(daemon) as timers:
        yield daemon, timers


def work(directory: str, log: str, overlap: Any) -> None:
    """Writes a line for each run; the first one stops its process in the middle."""
    jobs = Jobs("shop", visibility=VISIBILITY)

    @jobs.every(MINUTE, name="refresh", overlap=overlap)
    def refresh() -> None:
        with open(log, "a") as file:
            file.write(f"begin {os.getpid()} {timers.now_ns() // SECOND}\n")
        if os.path.exists(f"{log}-stop"):
            os.unlink(f"{log}-stop")
            os.kill(os.getpid(), signal.SIGSTOP)
            time.sleep(0.2)  # until it reaches this thread, too
        with open(log, "a") as file:
            file.write(f"end {os.getpid()}\n")

    with connect(directory) as timers:
        jobs.run(timers)


def lines(log: Path, what: str) -> list[list[str]]:
    found = log.read_text().splitlines() if log.exists() else []
    return [line.split()[1:] for line in found if line.startswith(what)]


def pass_time(daemon: Any, reached: Callable[[], object]) -> None:
    """An occurrence that was offered to a stopped worker, or given back, moves a little later."""
    while not reached():
        daemon.advance(0.011)
        time.sleep(0.02)


@pytest.mark.parametrize("overlap", ["skip", "wait"])
def test_a_stopped_worker(wheel: tuple[Any, Timers], tmp_path: Path, overlap: Any) -> None:
    """Its occurrence runs again after the visibility time. Occurrences that fell due meanwhile are
    left out, or run, by `overlap`; nothing runs twice when it goes on."""
    daemon, timers = wheel
    context = multiprocessing.get_context("spawn")
    log = tmp_path / "log"
    (tmp_path / "log-stop").touch()
    crew = [
        context.Process(target=work, args=(str(timers.directory), str(log), overlap))
        for _ in range(2)
    ]
    for worker in crew:
        worker.start()
    try:
        until(lambda: due(timers))
        daemon.advance(MINUTE)
        until(lambda: lines(log, "begin"))
        ((stopped, when),) = lines(log, "begin")
        assert when == "60"
        daemon.advance(VISIBILITY - 1)
        assert len(lines(log, "begin")) == 1, "it is in time"
        assert timers.find((RUNNING, "shop", "refresh")) is not None
        daemon.advance(1.5)
        wanted = 1 if overlap == "skip" else 11
        pass_time(daemon, lambda: len(lines(log, "end")) == wanted and due(timers) == 720 * SECOND)
        assert {pid for pid, *_ in lines(log, "end")} == {str(crew_pid(crew, stopped))}
        os.kill(int(stopped), signal.SIGCONT)
        until(lambda: [stopped] in lines(log, "end"))
        for minute in (720, 780, 840):
            daemon.advance(minute - timers.now_ns() / SECOND)
            pass_time(
                daemon,
                lambda minute=minute: due(timers) == (minute + 60) * SECOND and settled(timers),
            )
        begins = [int(when) for _, when in lines(log, "begin")]
        assert begins[-3:] == [720, 780, 840]  # by whichever of the two
        assert len(begins) == 1 + wanted + 3
        assert account(timers).runs == wanted + 3
    finally:
        for worker in crew:
            worker.kill()
            worker.join()


def crew_pid(crew: list[Any], other: str) -> int:
    (pid,) = {worker.pid for worker in crew} - {int(other)}
    return int(pid)


def test_a_job_that_deadlocks_in_the_only_worker(wheel: tuple[Any, Timers]) -> None:
    """Another of its threads runs it again."""
    daemon, timers = wheel
    jobs, ran, go = Jobs("shop", visibility=VISIBILITY), [], threading.Event()

    @jobs.every(MINUTE, name="refresh")
    def refresh() -> None:
        ran.append(timers.now_ns() // SECOND)
        if len(ran) == 1:
            go.wait()

    with running(jobs, timers):
        until(lambda: due(timers))
        daemon.advance(MINUTE)
        until(lambda: ran)
        daemon.advance(VISIBILITY - 1)
        assert ran == [60]
        daemon.advance(1.5)
        pass_time(daemon, lambda: due(timers) == 720 * SECOND and settled(timers))
        assert len(ran) == 2
        assert account(timers).runs == 1
        go.set()
        daemon.advance(720 - timers.now_ns() / SECOND)
        until(lambda: due(timers) == 780 * SECOND and settled(timers))
    assert len(ran) == 3


def test_a_task_that_deadlocks(wheel: tuple[Any, Timers]) -> None:
    daemon, timers = wheel
    jobs, ran, go = Jobs("shop", visibility=VISIBILITY), [], threading.Event()

    @jobs.task
    def mail(to: str) -> None:
        ran.append(to)
        if len(ran) == 1:
            go.wait()

    with running(jobs, timers):
        mail.schedule(1, "ann")
        daemon.advance(1)
        until(lambda: ran)
        daemon.advance(VISIBILITY - 1)
        assert ran == ["ann"]
        daemon.advance(1.5)
        pass_time(daemon, lambda: len(ran) == 2)
        go.set()
    assert ran == ["ann", "ann"]


@pytest.mark.parametrize("wrong", [0, -1, float("nan")])
def test_a_wrong_visibility(wrong: float) -> None:
    with pytest.raises(ValueError, match="visibility"):
        Jobs("shop", visibility=wrong)


def test_after_a_reboot(wheel: tuple[Any, Timers], monkeypatch: pytest.MonkeyPatch) -> None:
    """The base clock begins anew. The restored timer was moved to it; its payload was not, nor
    was the account."""
    daemon, timers = wheel
    ran: list[float] = []
    jobs = Jobs("shop")

    @jobs.every(MINUTE, name="refresh")
    def refresh() -> None:
        ran.append(timers.now_ns() / SECOND)

    before = Occurrences(timers, "shop", jobs.version)
    uptime = 10**18
    monkeypatch.setattr("wheeld_client.jobs.occurrences.boot_of", lambda clock: "before")
    before.define("refresh", Every(MINUTE).spec)
    run = Occurrence("refresh", uptime + 60 * SECOND, jobs.version, Every(MINUTE).spec)
    run.ahead, run.boot = 0, "before"
    before._put(run, 60 * SECOND, run.clock, before.key("job", "refresh"), "raise")
    found = account(timers)
    found.planned, found.boot = uptime, "before"
    before.write("refresh", found)
    monkeypatch.undo()
    with running(jobs, timers):
        for minute in (60, 120, 180):
            daemon.advance(MINUTE)
            until(lambda minute=minute: due(timers) == (minute + 60) * SECOND and settled(timers))
    assert ran == [60, 120, 180]


def test_a_long_run_stops_no_other() -> None:
    """There are more runs beside it than slots, or places in a ring."""
    end, runs = threading.Event(), [0]
    jobs = Jobs("shop")

    @jobs.task
    def long() -> None:
        end.wait()

    @jobs.task
    def short() -> None:
        runs[0] += 1

    with (
        wheeld.embedded(capacity=1024) as daemon,
        connect(daemon) as timers,
        running(jobs, timers),
    ):
        long.schedule(0)
        for number in range(1100):
            short.schedule(0)
            until(lambda: runs[0] > number - 50)  # noqa: B023
        until(lambda: runs[0] == 1100)
        end.set()
