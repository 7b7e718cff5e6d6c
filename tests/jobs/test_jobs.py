"""Jobs: each occurrence once, in one of the workers, whoever dies, starts and goes."""

import asyncio
import functools
import math
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import wheeld
from wheeld_client import Jobs, Timers, connect
from wheeld_client.jobs.occurrences import Occurrences
from wheeld_client.jobs.records import Account, Occurrence

MINUTE = 60
KEY = ("job", "shop", "refresh")


@pytest.fixture
def wheel() -> Iterator[tuple[Any, Timers]]:
    with wheeld.embedded(virtual_clock=True) as daemon, connect(daemon) as timers:
        yield daemon, timers


def until(reached: Callable[[], object]) -> None:
    """pytest's limit ends what never comes."""
    while not reached():
        time.sleep(0.002)


@contextmanager
def running(jobs: Jobs, timers: Timers) -> Iterator[None]:
    thread = threading.Thread(target=jobs.run, args=(timers,))
    thread.start()
    until(lambda: jobs._runner is not None)
    try:
        yield
    finally:
        jobs.stop()
        thread.join()


def account(timers: Timers, job: str = "refresh") -> Account:
    return Occurrences(timers, "shop", 0).account(job)


def due(timers: Timers) -> int:
    """When its next occurrence is, ns; 0: none is pending."""
    found = timers.find(KEY)
    return 0 if found is None else found.deadline


def settled(timers: Timers) -> bool:
    return timers.find(KEY) is not None and timers.find(("job-run", *KEY[1:])) is None


def minutely(ran: list[float], timers: Timers, **options: Any) -> Jobs:
    jobs = Jobs("shop")

    @jobs.every(MINUTE, name="refresh", **options)
    def refresh() -> None:
        ran.append(timers.now_ns() / 1e9)

    return jobs


def test_each_occurrence_runs_once_of_several_workers(wheel: tuple[Any, Timers]) -> None:
    daemon, timers = wheel
    ran: list[float] = []
    one, two = minutely(ran, timers), minutely(ran, timers)
    with running(one, timers), running(two, timers):
        until(lambda: timers.find(KEY))
        for count in range(1, 6):
            daemon.advance(MINUTE)
            until(lambda count=count: len(ran) == count and settled(timers))
    assert account(timers).runs == 5


def test_nobody_runs_for_an_hour(wheel: tuple[Any, Timers]) -> None:
    daemon, timers = wheel
    ran: list[float] = []
    with running(minutely(ran, timers), timers):
        until(lambda: timers.find(KEY))
    daemon.advance(3600)
    with running(minutely(ran, timers), timers):
        until(lambda: due(timers) > 3600e9)
    assert len(ran) == 60

    ran.clear()
    daemon.advance(3600)
    with running(minutely(ran, timers, grace=90), timers):
        until(lambda: due(timers) > 7200e9)
    assert len(ran) == 2
    assert account(timers).missed > 0


def test_debounce_and_arguments(wheel: tuple[Any, Timers]) -> None:
    daemon, timers = wheel
    jobs, sent = Jobs("shop"), []

    @jobs.task
    def send_mail(user: Any, *, subject: str) -> None:
        sent.append((user, subject))

    with running(jobs, timers):
        for number in range(6):
            send_mail.schedule(
                5, [1, {"a": 2**70}], subject=str(number), key=("m", 1), on_conflict="replace"
            )
            daemon.advance(1)
        other = send_mail.schedule(5, 1, subject="", key="m")
        assert send_mail.schedule(5, 1, subject="", key=("m",)) != other  # another key
        assert timers.cancel_many(
            keys=[
                ("job-task", "shop", name, "m")
                for name in (send_mail.name, send_mail.name.encode())
            ]
        ).all()
        with pytest.raises(TypeError, match="tuple"):
            send_mail.schedule(5, (1,), subject="")
        with pytest.raises(TypeError, match="missing"):
            send_mail.schedule(5, 1)
        assert sent == []
        daemon.advance(5)
        until(lambda: sent)
    assert sent == [([1, {"a": 2**70}], "5")]
    assert timers.pending == 0


def test_a_new_definition_wins_and_a_removed_job_ends(wheel: tuple[Any, Timers]) -> None:
    daemon, timers = wheel
    ran: list[float] = []
    old = minutely(ran, timers)
    new = Jobs("shop")

    @new.every(3600, name="refresh")
    def refresh() -> None:
        ran.append(timers.now_ns() / 1e9)

    with running(old, timers):
        until(lambda: timers.find(KEY))
        with running(new, timers):
            until(lambda: due(timers) == 3600e9)
        with running(Jobs("shop"), timers):
            until(lambda: timers.find(KEY) is None)
        daemon.advance(7200)
    assert ran == []


def defined(timers: Timers, version: int) -> bool:
    known = Occurrences(timers, "shop", 0).definition("refresh")
    return known is not None and known.version == version


@pytest.mark.parametrize(
    ("versions", "next_due"),
    [
        ([(1, 60), (3, 60), (2, 30)], 60),  # what has not changed is newer, too
        ([(1, 60), (3, 60), (2, None)], 60),
        ([(1, 60), (3, None), (2, 30)], 0),
        ([(2, 30), (3, None), (4, 60)], 60),
        ([(3, 60), (3, 60), (1, 30)], 60),
    ],
)
def test_the_newest_of_several_versions_counts(
    wheel: tuple[Any, Timers], versions: list[tuple[int, int | None]], next_due: int
) -> None:
    _, timers = wheel
    with ExitStack() as crew:
        for version, period in versions:
            jobs = Jobs("shop", version=version)
            if period is not None:
                jobs.every(period, name="refresh")(print)
            jobs.every(60, name=f"last of {version}")(print)  # is defined behind the other one
            crew.enter_context(running(jobs, timers))
            until(lambda v=version: timers.find(("job", "shop", f"last of {v}")))
            time.sleep(0.05)
        assert defined(timers, max(version for version, _ in versions))
        assert due(timers) == next_due * 10**9


def test_of_versions_that_start_at_once_the_newest_counts(wheel: tuple[Any, Timers]) -> None:
    _, timers = wheel
    for first in range(1, 60, 6):
        crew = [Jobs("shop", version=version) for version in range(first, first + 6)]
        for jobs in crew:
            jobs.every(jobs.version, name="refresh")(print)
        threads = [threading.Thread(target=jobs.run, args=(timers,)) for jobs in crew]
        for thread in threads:
            thread.start()
        for jobs, thread in zip(crew, threads, strict=True):
            until(lambda jobs=jobs: jobs._runner is not None)
            jobs.stop()  # when it has defined them
            thread.join()
        assert defined(timers, first + 5)
        assert due(timers) == (first + 5) * 10**9


@pytest.mark.parametrize(
    ("follows", "once"), [(36060, False), (36060, True), (0, False), (0, True), (36000.5, False)]
)
def test_a_definition_that_changes_during_a_run(
    wheel: tuple[Any, Timers], follows: float, once: bool
) -> None:
    daemon, timers = wheel
    ran, go = [], threading.Event()
    old, new = Jobs("shop", version=1), Jobs("shop", version=2)

    @old.every(36000, name="refresh", at_most_once=once)
    def run() -> None:
        ran.append("old")
        go.wait()

    if follows == 36060:
        new.every(60, name="refresh")(print)
    elif follows:  # only the new worker has it
        new.on(HalfSeconds(), name="refresh")(lambda: ran.append("new"))
    with running(old, timers):
        until(lambda: timers.find(KEY))
        daemon.advance(36000)
        until(lambda: ran)
        with running(new, timers):
            until(lambda: defined(timers, 2))
            go.set()
            until(lambda: account(timers).runs == 1)
            if follows == 36000.5:
                while ran == ["old"]:  # it is offered again after a second
                    daemon.advance(1)
                    time.sleep(0.01)
            elif follows:
                until(lambda: due(timers) == follows * 1e9)
            else:
                until(lambda: timers.find(("job-run", *KEY[1:])) is None)
                assert due(timers) == 0
    assert ran[0] == "old"


class HalfSeconds:
    """A trigger."""

    def __str__(self) -> str:
        return "half seconds"

    def get_next_fire_time(self, previous: Any, now: Any) -> Any:
        return now.replace(microsecond=500_000) + timedelta(seconds=now.microsecond > 500_000)


def test_retries_then_the_next_occurrence(wheel: tuple[Any, Timers]) -> None:
    daemon, timers = wheel
    jobs, tried = Jobs("shop"), []

    @jobs.every(MINUTE, name="refresh", retries=2, backoff=5)
    def refresh() -> None:
        tried.append(timers.now_ns() / 1e9)
        raise RuntimeError("no")

    with running(jobs, timers):
        until(lambda: timers.find(KEY))
        for step, count in ((60, 1), (5, 2), (10, 3), (45, 4)):
            daemon.advance(step)
            until(lambda count=count: len(tried) == count and settled(timers))
    assert tried == [60, 65, 75, 120]
    assert account(timers).failures == 4


@pytest.mark.parametrize(("overlap", "runs"), [("skip", [60, 240]), ("wait", [60, 180, 180])])
def test_a_run_that_is_longer_than_the_period(
    wheel: tuple[Any, Timers], overlap: Any, runs: list[float]
) -> None:
    daemon, timers = wheel
    ran: list[float] = []
    jobs, go = Jobs("shop"), threading.Event()

    @jobs.every(MINUTE, name="refresh", overlap=overlap)
    def refresh() -> None:
        ran.append(timers.now_ns() / 1e9)
        go.wait()

    with running(jobs, timers):
        until(lambda: timers.find(KEY))
        daemon.advance(60)
        until(lambda: ran)
        daemon.advance(120)
        go.set()
        until(lambda: due(timers) == 240e9)
        if overlap == "skip":
            daemon.advance(60)
        until(lambda: len(ran) == len(runs))
    assert ran == runs


@pytest.mark.parametrize(
    "as_function",
    [
        lambda function: function,
        functools.partial,
        lambda function: type("Called", (), {"__call__": lambda _: function()})(),
    ],
    ids=["itself", "partial", "object"],
)
def test_async_jobs_run_on_the_loop(wheel: tuple[Any, Timers], as_function: Any) -> None:
    daemon, timers = wheel
    jobs, loops = Jobs("shop"), []

    async def refresh() -> None:
        loops.append(asyncio.get_running_loop())

    jobs.every(MINUTE, name="refresh")(as_function(refresh))

    async def main() -> None:
        async with jobs.running(timers):
            await asyncio.to_thread(until, lambda: timers.find(KEY))
            daemon.advance(MINUTE)
            await asyncio.to_thread(until, lambda: loops)
            assert loops == [asyncio.get_running_loop()]

    asyncio.run(main())


def test_cron_follows_the_wall_clock(wheel: tuple[Any, Timers]) -> None:
    daemon, timers = wheel  # it is 1970, and Berlin is an hour ahead of UTC
    jobs, nights = Jobs("shop"), []

    @jobs.cron("0 3 * * *", tz="Europe/Berlin", name="refresh")
    def nightly() -> None:
        nights.append(timers.now_ns() / 3600e9)

    with running(jobs, timers):
        until(lambda: timers.find(KEY))
        daemon.advance(2 * 3600)
        until(lambda: len(nights) == 1 and settled(timers))
        daemon.advance(24 * 3600)
        until(lambda: len(nights) == 2)
    assert nights == [2, 26]


def work(directory: str, log: str, period: float, die_at: int, once: bool) -> None:
    """A worker: writes a line for each run's begin and end; kills itself in run number `die_at`."""
    jobs = Jobs("shop")
    begun = 0

    @jobs.every(period, name="refresh", at_most_once=once, overlap="wait")
    def refresh() -> None:
        nonlocal begun
        begun += 1
        planned = threading.current_thread().name
        with open(log, "a") as file:
            file.write(f"begin {os.getpid()} {planned}\n")
        if begun == die_at:
            os.kill(os.getpid(), signal.SIGKILL)
        with open(log, "a") as file:
            file.write(f"end {os.getpid()}\n")

    with connect(directory) as timers:
        jobs.run(timers)


@pytest.mark.parametrize("once", [False, True])
def test_workers_that_are_killed_in_a_run(
    wheel: tuple[Any, Timers], tmp_path: Path, once: bool
) -> None:
    daemon, timers = wheel
    context = multiprocessing.get_context("spawn")
    log, directory = tmp_path / "log", str(timers.directory)
    crew = [
        context.Process(target=work, args=(directory, str(log), MINUTE, die_at, once))
        for die_at in (2, 3, 10**9)
    ]
    for worker in crew:
        worker.start()
    try:
        until(lambda: timers.find(KEY))
        for _ in range(30):
            daemon.advance(MINUTE)
            now = timers.now_ns()
            until(lambda now=now: due(timers) > now and settled(timers))
        lines = log.read_text().splitlines()
        begins = sum(line.startswith("begin") for line in lines)
        ends = len(lines) - begins
        dead = begins - ends
        assert dead == sum(not worker.is_alive() for worker in crew)
        assert begins == (30 if once else 30 + dead)
    finally:
        for worker in crew:
            worker.kill()
            worker.join()


def test_one_at_most_once_that_comes_again_after_a_death(
    wheel: tuple[Any, Timers], tmp_path: Path
) -> None:
    """As when the worker of the one before armed it again while it was on its way."""
    daemon, timers = wheel
    context = multiprocessing.get_context("spawn")
    log = tmp_path / "log"
    one, two = (
        context.Process(target=work, args=(str(timers.directory), str(log), MINUTE, die_at, True))
        for die_at in (1, 10**9)
    )
    try:
        one.start()
        until(lambda: timers.find(KEY))
        daemon.advance(MINUTE)
        one.join()
        again = Occurrence("refresh", 60 * 10**9, 1, ["every", 60 * 10**9])
        Occurrences(timers, "shop", 1).arm(again, timers.now_ns(), "replace")
        two.start()
        until(lambda: due(timers) == 120 * 10**9)
        assert [line.split()[:2] for line in log.read_text().splitlines()] == [
            ["begin", str(one.pid)]
        ]
    finally:
        for worker in (one, two):
            worker.kill()
            worker.join()


def test_an_occurrence_that_was_run_comes_again(wheel: tuple[Any, Timers]) -> None:
    """As when its worker died between the end of the run and the acknowledgement."""
    daemon, timers = wheel
    ran: list[float] = []
    jobs = minutely(ran, timers)
    with running(jobs, timers):
        until(lambda: timers.find(KEY))
        daemon.advance(MINUTE)
        until(lambda: ran and settled(timers))
        again = Occurrence("refresh", 60 * 10**9, jobs.version, ["every", 60 * 10**9])
        Occurrences(timers, "shop", jobs.version).arm(again, timers.now_ns(), "replace")
        until(lambda: due(timers) == 120 * 10**9)
        daemon.advance(MINUTE)
        until(lambda: due(timers) == 180 * 10**9)
    assert ran == [60, 120]


class Broken:
    """A trigger with a fault."""

    def get_next_fire_time(self, previous: Any, now: Any) -> Any:
        raise RuntimeError("no calendar")


def test_a_fault_of_one_job_ends_no_other(wheel: tuple[Any, Timers]) -> None:
    daemon, timers = wheel
    jobs, ran = Jobs("shop"), []
    jobs.on(Broken(), name="broken")(print)

    @jobs.every(MINUTE, name="refresh", jitter=0, grace=1e300)
    def refresh() -> None:
        ran.append(timers.now_ns())
        sys.exit("this run")

    with running(jobs, timers):
        for count in range(1, 4):
            until(lambda: settled(timers))
            daemon.advance(MINUTE)
            until(lambda count=count: len(ran) == count)
        until(lambda: account(timers).failures == 3)


@pytest.mark.parametrize(
    "wrong",
    [{"grace": math.inf}, {"jitter": math.inf}, {"backoff": math.inf}, {"jitter": -1}, {"name": ""},
     {"name": 5}, {"name": "x" * 513}, {"name": "\ud800"}],
)  # fmt: skip
def test_what_could_not_run_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(wrong))}.*(must be|expected)"):
        Jobs("shop").every(MINUTE, **wrong)


def test_names() -> None:
    for name in ("", "a\nb", "x" * 55):
        with pytest.raises(ValueError, match="at most 54 bytes"):
            Jobs(name)
    with pytest.raises(TypeError, match="version="):
        Jobs("shop", version="1.2")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="64 bits"):
        Jobs("shop", version=2**63)
    with pytest.raises(ValueError, match="visibility"):
        Jobs("shop", visibility=math.inf)
    with pytest.raises(TypeError, match="name="):
        Jobs("shop").task(functools.partial(print, 1))
    assert Jobs("x" * 54).task(functools.partial(print, 1), name="one").name == "one"
    with pytest.raises(TypeError, match="function"):
        Jobs("shop").every(1)(5)  # type: ignore[arg-type]
