"""after_fork="reconnect": a forked child's first call makes it a worker of its own."""

import gc
import json
import multiprocessing
import os
import select
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import wheeld
from children import LONG, answer_of, bare_fork, calls_of, in_child, listed, receive, start_child
from common_fixtures import connected, embedded
from fake_supervisor import StandIn
from wheeld_client import DaemonNotRunning, Timers, connect

daemon = embedded(capacity=16_384, payload_bytes=16, max_workers=16)
web = connected(worker="web", after_fork="reconnect")


@pytest.mark.parametrize("fork", [os.fork, bare_fork])
def test_first_call_connects_the_child(daemon: str, web: Timers, fork: Callable[[], int]) -> None:
    id = web.schedule(3600.0)
    web.fileno()
    for number in range(len(calls_of(web, id))):

        def work(number: int = number) -> list[Any]:
            calls_of(web, id)[number]()
            pending = web.pending
            web.schedule(0.0, 77)
            while 77 not in web.poll(LONG)["cookie"]:
                pass
            names = sorted(web.workers().values())
            web.close()
            return [pending <= 1, web.worker == f"web-{os.getpid()}", len(names), "web" in names]

        assert in_child(work, fork) == [True, True, 2, True], number
    assert web.pending == 1
    assert web.cancel(id) is True
    soon = web.schedule(0.001)
    assert receive(web, 1)["timer_id"].tolist() == [soon]
    assert list(listed(daemon)) == ["web"]


def test_child_keeps_the_options() -> None:
    options = {"on_death": "reroute", "group": "g", "after_fork": "reconnect"}

    def work() -> list[Any]:
        timers.now_ns()
        mine = next(w for w in listed(daemon).values() if w["pid"] == os.getpid())
        return [timers.worker == mine["name"], mine["on_death"], mine["groups"], mine["name"]]

    long = "ä" * 31
    with wheeld.embedded(capacity=1024) as daemon:
        with connect(daemon, **options) as timers:  # type: ignore[arg-type]
            same, policy, groups, name = in_child(work)
            assert (same, policy, groups) == (True, "reroute", ["g"])
            assert name.startswith("pid-")
            assert name != timers.worker
        with connect(daemon, worker=long, **options) as timers:  # type: ignore[arg-type]
            name = in_child(work)[3]
    stem, _, pid = name.rpartition("-")
    assert long.startswith(stem)
    assert pid.isdigit()
    assert len(name.encode()) <= 63


def test_child_forgets_the_parents_callbacks(web: Timers) -> None:
    ran: list[int] = []
    handle = web.call_later(3600.0, ran.append, 1)

    def work() -> list[Any]:
        before = [handle.cancel(), handle.reschedule(0.0)]
        own = web.call_later(0.0, ran.append, 2)
        while not ran:
            web.dispatch(LONG)
        return [*before, ran, own.cancel(), len(web._callbacks.handles)]

    assert in_child(work) == [False, False, [2], False, 0]
    assert web.pending == 1
    assert handle.reschedule(0.0) is True
    while not ran:
        web.dispatch(LONG)
    assert ran == [1]


def test_prefork_server(daemon: str, web: Timers) -> None:
    go, start = os.pipe()

    def work() -> list[int]:
        os.read(go, 1)
        rng = np.random.default_rng(os.getpid())
        base = os.getpid() << 16
        cookies = [base + i for i in range(200)]
        ids = [web.schedule(float(rng.uniform(0, 0.05)), cookie) for cookie in cookies]
        won = [cookies[i] for i in range(0, 200, 3) if web.cancel(ids[i])]
        got = receive(web, 200 - len(won))["cookie"].tolist()
        web.close()
        return [sorted(got + won) == cookies, web.worker == f"web-{os.getpid()}"]  # type: ignore[list-item]

    children = [start_child(work) for _ in range(8)]
    mine = web.schedule_many(np.full(100, 0.01), np.arange(100))
    os.write(start, b"x" * 8)
    assert sorted(receive(web, 100)["timer_id"].tolist()) == sorted(mine.tolist())
    assert [answer_of(child) for child in children] == [[True, True]] * 8
    os.close(go)
    os.close(start)
    assert list(listed(daemon)) == ["web"]


def test_multiprocessing(web: Timers) -> None:
    context = multiprocessing.get_context("fork")
    answers = context.SimpleQueue()

    def work(number: int) -> None:
        web.schedule(0.001, number)
        answers.put((number, receive(web, 1)["cookie"].tolist()))

    processes = [context.Process(target=work, args=(number,)) for number in range(4)]
    for process in processes:
        process.start()
    got = sorted(answers.get() for _ in processes)
    for process in processes:
        process.join(LONG)
        assert process.exitcode == 0
    assert got == [(number, [number]) for number in range(4)]


def test_fork_of_a_fork(daemon: str, web: Timers) -> None:
    def grandchild() -> list[Any]:
        web.schedule(0.0, 3)
        return [web.worker == f"web-{os.getpid()}", receive(web, 1)["cookie"].tolist()]

    def used() -> list[Any]:
        web.schedule(0.0, 2)
        below = in_child(grandchild)
        return [below, receive(web, 1)["cookie"].tolist()]

    assert in_child(used) == [[True, [3]], [2]]
    assert in_child(lambda: in_child(grandchild)) == [True, [3]]


def test_fork_while_another_thread_polls(web: Timers) -> None:
    got: list[int] = []
    thread = threading.Thread(target=lambda: got.extend(web.poll(None)["cookie"].tolist()))
    thread.start()
    time.sleep(0.05)

    def work() -> list[int]:
        web.schedule(0.001, 5)
        answer: list[int] = receive(web, 1)["cookie"].tolist()
        return answer

    for _ in range(5):
        assert in_child(work) == [5]
    web.schedule(0.0, 6)
    thread.join(LONG)
    assert got == [6]


def test_fork_in_a_signal_handler_during_poll(web: Timers) -> None:
    children: list[int] = []
    reader, writer = os.pipe()

    def handler(number: int, frame: object) -> None:
        pid = os.fork()
        if pid:
            children.append(pid)
        web.schedule(0.001, 1 if pid == 0 else 2)

    previous = signal.signal(signal.SIGALRM, handler)
    parent = os.getpid()
    signal.setitimer(signal.ITIMER_REAL, 0.02)
    try:
        cookies = web.poll(None)["cookie"].tolist()
    finally:
        if os.getpid() != parent:
            os.write(writer, json.dumps([cookies, web.worker]).encode())
            os._exit(0)
        signal.signal(signal.SIGALRM, previous)
    os.close(writer)
    with open(reader, "rb") as pipe:
        answer = json.loads(pipe.read())
    os.waitpid(children[0], 0)
    assert cookies == [2]
    assert answer == [[1], f"web-{children[0]}"]


def test_threads_of_a_child_connect_once(daemon: str, web: Timers) -> None:
    def work() -> list[int]:
        barrier = threading.Barrier(8)
        errors: list[BaseException] = []

        def call() -> None:
            barrier.wait()
            try:
                web.schedule(0.0)
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=call) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return [len(errors), len(receive(web, 8)), len(listed(daemon))]

    assert in_child(work) == [0, 8, 2]


def test_child_unmaps_the_parents_segments(web: Timers) -> None:
    def mapped() -> list[str]:
        lines = Path("/proc/self/maps").read_text().split("\n")
        return sorted(line.rpartition("/")[2] for line in lines if "/dev/shm/wheeld" in line)

    def work() -> list[str]:
        web.now_ns()
        return mapped()

    gc.collect()  # clients of earlier tests
    before = mapped()
    after = in_child(work)
    assert len(before) == len(after) == 5
    assert len(set(before) & set(after)) == 4


def test_closing_in_the_child_connects_nobody(daemon: str, web: Timers) -> None:
    def work() -> str:
        web.close()
        with pytest.raises(Exception, match="closed"):
            web.schedule(1.0)
        return ",".join(listed(daemon))

    assert in_child(work) == "web"
    web.schedule(0.0)
    receive(web, 1)


def test_parents_death_is_seen_while_the_child_lives(daemon: str) -> None:
    reader, writer = os.pipe()

    def child(timers: Timers) -> None:
        timers.schedule(3600.0)
        os.write(writer, f"{os.getpid()}\n".encode())
        signal.pause()

    def parent() -> None:
        timers = connect(daemon, worker="old", after_fork="reconnect")
        timers.schedule(3600.0)
        start_child(lambda: child(timers))
        signal.pause()

    pid, pipe = start_child(parent)
    with open(reader) as lines:
        below = int(lines.readline())
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    while "old" in listed(daemon):
        time.sleep(0.01)
    assert listed(daemon)[f"old-{below}"]["pending"] == 1
    pidfd = os.pidfd_open(below)
    os.kill(below, signal.SIGKILL)
    assert select.select([pidfd], [], [], LONG)[0]
    os.close(pidfd)
    os.close(pipe)
    os.close(writer)


def test_child_without_a_daemon(runtime_dir: Path) -> None:
    with (
        StandIn(runtime_dir) as standin,
        connect(standin.name, worker="w", after_fork="reconnect") as timers,
    ):
        again, go = os.pipe()

        def work() -> list[Any]:
            failed = 0
            for _ in range(2):
                try:
                    timers.schedule(1.0)
                except DaemonNotRunning:
                    failed += 1
            standin_is_back = os.read(again, 1)
            timers.schedule(1.0)
            return [failed, standin_is_back.decode(), timers.pending]

        standin.kill()
        child = start_child(work)
        time.sleep(0.1)
        standin.start()
        os.write(go, b"y")
        assert answer_of(child) == [2, "y", 1]
        os.close(again)
        os.close(go)
