"""Prefork servers: a master that never receives is no member of its group.

Children that take the place of others succeed them.
"""

import os
from collections.abc import Callable
from typing import Any

import pytest

from children import answer_of, in_child, receive, start_child
from common_fixtures import daemon_process
from daemons import Daemon, until
from local_wheel import KEEP, REROUTE, SECOND, LocalTimers, LocalWheel, cookies
from wheeld_client import Timers, connect

daemon = daemon_process(max_workers=6)


BEGIN: dict[str, Callable[[LocalTimers], object]] = {
    "poll": lambda timers: timers.poll(),
    "poll a while": lambda timers: timers.poll(0.001),
    "fileno": lambda timers: timers.fileno(),
    "dispatch": lambda timers: timers.dispatch(),
}


@pytest.mark.parametrize("how", BEGIN)
def test_a_member_from_its_first_receive_on(how: str) -> None:
    with LocalWheel() as wheel:
        master = wheel.worker(0, group="g", receives=False)
        member = wheel.worker(1, group="g")
        sender = wheel.worker(2)
        sender.schedule_many([0.5] * 20, to="group:g")
        wheel.advance(SECOND)
        assert wheel.view.ports["fired"][0] == 0
        assert len(member.poll()) == 20
        BEGIN[how](master)
        sender.schedule_many([0.5] * 20, to="group:g")
        wheel.advance(SECOND)
        assert wheel.view.ports["fired"][0] == 10
        assert (len(master.poll()), len(member.poll())) == (10, 10)


def test_a_group_of_masters() -> None:
    with LocalWheel() as wheel:
        wheel.worker(0, group="g", receives=False)
        sender = wheel.worker(1)
        sender.schedule(0.5, 7, to="group:g")
        wheel.advance(SECOND)
        child = wheel.worker(2, group="g", receives=False)
        assert cookies(sender.poll()) == cookies(child.poll()) == []
        wheel.settle()
        assert cookies(child.poll()) == [7]


def test_a_master_inherits_nothing() -> None:
    with LocalWheel() as wheel:
        dying = wheel.worker(0, group="g")
        master = wheel.worker(1, group="g", receives=False)
        dying.schedule(5.0, 7)
        wheel.settle()
        wheel.depart(0, REROUTE)
        assert wheel.settle() == [0]
        assert wheel.row(0)["state"] == 4
        assert master.pending == 0
        master.poll()
        wheel.depart(0, REROUTE)
        assert wheel.settle() == [0]
        assert master.pending == 1


def test_a_successor_begins_anew() -> None:
    with LocalWheel() as wheel:
        wheel.worker(0, group="g")
        member = wheel.worker(1, group="g")
        wheel.depart(0, KEEP)
        wheel.settle()
        successor = wheel.successor(0)
        member.schedule_many([0.5] * 20, to="group:g")
        wheel.advance(SECOND)
        assert len(member.poll()) == 20
        successor.poll()
        member.schedule_many([0.5] * 20, to="group:g")
        wheel.advance(SECOND)
        assert (len(successor.poll()), len(member.poll())) == (10, 10)


def test_successors_that_begin_to_receive_later(daemon: Daemon) -> None:
    def work() -> None:
        timers = connect(str(daemon.directory), group="g", on_death="reroute")
        timers.schedule(1000.0)
        os._exit(0)

    with connect(str(daemon.directory), group="g", worker="master") as master:
        pid, pipe = start_child(work)
        os.waitpid(pid, 0)
        os.close(pipe)
        until(lambda: "kept" in [w["state"] for w in daemon.workers().values()], "kept")
        assert master.pending == 0
        master.poll()
        until(lambda: master.pending == 1, "inherited")


def test_master_and_children(daemon: Daemon) -> None:
    with (
        connect(str(daemon.directory), group="g", after_fork="reconnect") as master,
        connect(str(daemon.directory)) as sender,
    ):
        ready, tell = os.pipe()
        go, start = os.pipe()

        def work() -> list[int]:
            master.poll()
            os.write(tell, b"x")
            os.read(go, 1)
            got: list[int] = []
            while 0xE0D not in got:
                got += receive(master, 1)["cookie"].tolist()
            return got

        children = [start_child(work) for _ in range(2)]
        for _ in children:
            os.read(ready, 1)
        names = [w["name"] for w in daemon.workers().values() if w["groups"] == ["g"]]
        assert len(names) == 3
        sender.schedule_many([0.0] * 40, range(40), to="group:g")
        until(lambda: sender.pending == 0, "fired")
        for name in set(names) - {master.worker}:
            sender.schedule(0.0, 0xE0D, to=name)
        os.write(start, b"xx")
        got = [cookie for child in children for cookie in answer_of(child)]
        assert sorted(got) == [*range(40), 0xE0D, 0xE0D]
        for fd in (ready, tell, go, start):
            os.close(fd)


# -- children whose parent asked for keep -------------------------------------------------


def keeper(daemon: Daemon, worker: str = "web") -> Timers:
    return connect(str(daemon.directory), worker=worker, on_death="keep", after_fork="reconnect")


def test_recycled_children_succeed_each_other(daemon: Daemon) -> None:
    """More of them than there are rows, one after the other: each receives what the one before it
    left, under the same name."""
    with keeper(daemon) as web:

        def work(number: int) -> list[Any]:
            web.schedule(0.0, number)
            got = receive(web, 1 if number == 0 else 2)["cookie"].tolist()
            web.schedule(0.0, 100 + number)  # for the next one
            return [web.worker, web.adopted, sorted(got)]

        for number in range(12):
            left = [100 + number - 1] if number else []
            assert in_child(lambda: work(number)) == [  # noqa: B023
                "web-1",
                number > 0,
                sorted([number, *left]),
            ]
        assert len(daemon.workers()) <= 2


def test_children_at_once(daemon: Daemon) -> None:
    with keeper(daemon) as web:
        ready, tell = os.pipe()
        go, start = os.pipe()

        def stay() -> str:
            web.schedule(1000.0)
            os.write(tell, b"x")
            os.read(go, 1)
            return web.worker

        children = [start_child(stay) for _ in range(3)]
        for _ in children:
            os.read(ready, 1)
        living = {w["pid"]: w["name"] for w in daemon.workers().values()}
        assert sorted(living.values()) == ["web", "web-1", "web-2", "web-3"]
        second = next(pid for pid, name in living.items() if name == "web-2")
        os.kill(second, 9)
        os.waitpid(second, 0)
        children = [child for child in children if child[0] != second]
        assert in_child(lambda: [web.pending, web.worker]) == [1, "web-2"]
        os.write(start, b"xx")
        assert sorted(answer_of(child) for child in children) == ["web-1", "web-3"]
        for fd in (ready, tell, go, start):
            os.close(fd)


def test_a_long_name_is_cut(daemon: Daemon) -> None:
    with keeper(daemon, "w" * 63) as web:

        def name() -> str:
            web._check()
            return web.worker

        assert in_child(name) == "w" * 61 + "-1"
