"""Clients with bugs, or worse: they harm themselves, and nobody else more than they must."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from children import receive
from common_fixtures import daemon_process
from daemons import Daemon, until
from programs import SUPPORT
from remotes import Remote
from wheeld_client import WheelError, connect
from wheeld_core import _native, control

SECONDS = 2.0
"""How long each of them is borne."""

ACCOUNT = """
def account(seconds, seed):
    rng, count, got, won, live = np.random.default_rng(seed), 0, [], [], []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        cookies = np.arange(count, count + 50)
        ids = timers.schedule_many(rng.exponential(0.02, 50), cookies)
        live = (live + list(zip(ids.tolist(), cookies.tolist())))[-500:]
        count += 50
        for _ in range(5):
            id, cookie = live.pop(rng.integers(len(live)))
            if timers.cancel(id):
                won.append(cookie)
        events = timers.poll(0.001)
        assert (events["fired"] >= events["deadline"]).all(), "early"
        got += events["cookie"].tolist()
    end = time.monotonic() + 60
    while len(got) + len(won) < count and time.monotonic() < end:
        got += timers.poll(0.05)["cookie"].tolist()
    got += timers.poll(0.1)["cookie"].tolist()
    return [count, len(won), sorted(got + won) == list(range(count))]
"""


class Hostile:
    """The client of hostile_client.py."""

    def __init__(self, daemon: Daemon, how: str, seed: int) -> None:
        script = SUPPORT / "hostile_client.py"
        self.process = subprocess.Popen(
            [sys.executable, script, daemon.directory, how, daemon.segment(""), str(seed)],
            stdout=subprocess.PIPE,
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"ready\n"

    def __enter__(self) -> Hostile:
        return self

    def __exit__(self, *exception: object) -> None:
        with self.process:
            self.process.kill()


daemon = daemon_process(started=False, capacity=65_536, hang_after="1s")


def offences(daemon: Daemon) -> dict[str, int]:
    return {name: worker["offences"] for name, worker in daemon.workers().items()}


# -- in the shared memory ------------------------------------------------------------


@pytest.mark.parametrize("how", ["rings", "own"])
def test_one_that_ruins_what_is_its_own(daemon: Daemon, how: str, rng_seed: int) -> None:
    daemon.start()
    with Remote(daemon, worker="left") as left, Remote(daemon, worker="right") as right:
        for worker in (left, right):
            worker.ask(ACCOUNT)
        with Hostile(daemon, how, rng_seed):
            for number, worker in enumerate((left, right)):
                worker.tell(f"account({SECONDS}, {number})")
            until(lambda: offences(daemon)["hostile"] > 0, "offences")
            for worker in (left, right):
                count, won, exact = worker.answer()
                assert count > 100
                assert won > 0
                assert exact, f"seed {rng_seed}"
            found = offences(daemon)
            assert (found["left"], found["right"]) == (0, 0)
        until(lambda: "hostile" not in daemon.workers(), "reaped", 120)
        assert left.ask("account(0.2, 3)")[2]
    assert daemon.status()["clock_restarts"] == 0


def test_one_that_ruins_all_it_can(daemon: Daemon, rng_seed: int) -> None:
    daemon.start()
    with Hostile(daemon, "all", rng_seed):
        end = time.monotonic() + SECONDS
        found = 0
        while time.monotonic() < end or not found:
            found = max(found, sum(offences(daemon).values()))
            _await_beat(daemon)
            assert time.monotonic() < end + 60
        connection = control.Connection(daemon.directory, 60.0)
        connection.request("status")
        connection.close()
    until(lambda: daemon.workers() == {}, "reaped", 120)
    assert daemon.status()["pid"] == daemon.pid
    assert "Traceback" not in daemon.said()
    done = daemon.command("fsck")
    assert done.returncode in (0, 1), done
    assert "Traceback" not in done.stderr
    with connect(str(daemon.directory)) as timers:
        timers.schedule(0.0, 1)
        assert receive(timers, 1)["cookie"].tolist() == [1]
    daemon.stop()
    assert daemon.nothing_left()


def _await_beat(daemon: Daemon) -> None:
    beat = daemon.header("heartbeat")
    (daemon.directory / "clock.fifo").write_bytes(b"\1")  # it may sleep, with nothing to do
    until(lambda: daemon.header("heartbeat") > beat, "another pass")


def test_evict_after(daemon: Daemon, rng_seed: int) -> None:
    daemon.start(evict_after=10)
    with Remote(daemon, worker="honest") as honest, Hostile(daemon, "rings", rng_seed) as hostile:
        honest.ask(ACCOUNT)
        honest.tell(f"account({SECONDS}, 1)")
        assert hostile.process.wait(60) == -signal.SIGKILL
        assert honest.answer()[2]
        until(lambda: list(daemon.workers()) == ["honest"], "reaped")
    assert "worker hostile" in daemon.said()
    assert "offences: killed" in daemon.said()


# -- at the control socket ------------------------------------------------------------


@contextlib.contextmanager
def caller(daemon: Daemon) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as end:
        end.connect(str(daemon.directory / "control.sock"))  # waits while the backlog is full
        end.settimeout(60)
        yield end


def hello(**fields: Any) -> bytes:
    layout = {"layout": _native.LAYOUT_VERSION, "fingerprint": _native.FINGERPRINT}
    return control.encode({"op": "hello", "worker": None, **layout, **fields})


def say(daemon: Daemon, text: bytes) -> bytes:
    answer = b""
    with caller(daemon) as end, contextlib.suppress(ConnectionError):
        with contextlib.suppress(ConnectionError):
            end.sendall(text)
            end.shutdown(socket.SHUT_WR)
        while part := end.recv(1 << 16):
            answer += part
    return answer


GARBAGE = {
    "nothing": b"",
    "half a hello": hello()[:40],
    "binary": bytes(range(256)) * 50,
    "lines of binary": b"\xff\x00\n" * 1000,
    "no object": b'[]\n"x"\n7\nnull\n',
    "deep": b"[" * 100_000 + b"\n",
    "deep in a field": b'{"op":"hello","worker":' + b"[" * 50_000 + b"]" * 50_000 + b"}\n",
    "a long line": b'{"op":"' + b"x" * (1 << 20),
    "long lines": (b'{"op":"' + b"x" * 500_000 + b'"}\n') * 4,
    "big numbers": b'{"op":"advance","ns":' + b"9" * 4000 + b"}\n",
    "NaN": b'{"op":NaN}\n{"op":Infinity}\n',
    "types": b"".join(
        control.encode({"op": op, "row": wrong, "worker": wrong, "group": wrong, "ns": wrong,
                        "token": wrong, "on_death": wrong, "incarnation": wrong})
        for op in ("hello", "resume", "bye", "alarm", "advance", 5, None, [], {})
        for wrong in (None, -1, 2**70, 1.5, True, "", "\0", "\ud800", [], {"a": 1})
    ),
    "types with a layout": b"".join(
        hello(**{field: wrong})
        for field in ("worker", "group", "on_death", "layout", "fingerprint", "time")
        for wrong in (-1, 2**70, 1.5, True, "", "\0", "\ud800", [], {"a": 1}, [{}, []])
        if not (field == "worker" and wrong is None)
    ),
    "bye from nobody": b'{"op":"bye"}\n' * 100,
    "alarms": b'{"op":"alarm"}\n' * 10_000,
}  # fmt: skip


def test_garbage(daemon: Daemon) -> None:
    """Whatever is said to it: each line is answered or the connection ended, an honest worker loses
    nothing, and the daemon writes no traceback."""
    daemon.start()
    with Remote(daemon, worker="honest") as honest:
        honest.ask(ACCOUNT)
        honest.tell("account(1.0, 1)")
        for case, text in GARBAGE.items():
            for line in say(daemon, text).splitlines():
                answer = json.loads(line)
                assert answer["ok"] is False or case == "types", (case, answer)
            assert daemon.status()["pid"] == daemon.pid
        assert honest.answer()[2]
        until(lambda: list(daemon.workers()) == ["honest"], "nobody else")
        assert offences(daemon) == {"honest": 0}
    assert "Traceback" not in daemon.said()
    assert "never retrieved" not in daemon.said()


def test_stop_while_alarms_come_in(daemon: Daemon) -> None:
    daemon.start(hang_after="100ms")
    with caller(daemon) as end:
        over = threading.Event()

        def alarm() -> None:
            with contextlib.suppress(OSError):
                while not over.is_set():
                    end.sendall(b'{"op":"alarm"}\n')

        thread = threading.Thread(target=alarm)
        thread.start()
        try:
            daemon.stop()
        finally:
            over.set()
            end.shutdown(socket.SHUT_RDWR)
            thread.join()
    assert daemon.nothing_left()


def test_a_byte_a_second(daemon: Daemon) -> None:
    daemon.start()
    with contextlib.ExitStack() as stack:
        slow = [stack.enter_context(caller(daemon)) for _ in range(200)]
        text = hello()
        for number in range(20):
            for end in slow:
                end.sendall(text[number : number + 1])
            with connect(str(daemon.directory)) as timers:
                timers.schedule(0.0, number)
                assert receive(timers, 1)["cookie"].tolist() == [number]
        daemon.stop()
    assert daemon.nothing_left()


def test_thousands_of_connections(daemon: Daemon) -> None:
    daemon.start()
    with Remote(daemon, worker="honest") as honest:
        honest.ask(ACCOUNT)
        honest.tell("account(1.5, 1)")
        for _ in range(2000):
            with caller(daemon):
                pass
        with contextlib.ExitStack() as stack:
            for _ in range(800):
                stack.enter_context(caller(daemon)).sendall(b'{"op":')
            with connect(str(daemon.directory)) as timers:
                timers.schedule(0.0, 3)
                assert receive(timers, 1)["cookie"].tolist() == [3]
        assert honest.answer()[2]
    until(lambda: len(os.listdir(f"/proc/{daemon.pid}/fd")) < 40, "all closed")


def test_callers_that_do_not_listen(daemon: Daemon) -> None:
    daemon.start()
    with caller(daemon) as deaf:
        deaf.settimeout(2)
        with contextlib.suppress(TimeoutError):  # when everything is full
            while True:
                deaf.sendall(b'{"op":"status"}\n' * 1000)
        assert daemon.status()["pid"] == daemon.pid
        until(lambda: _resident(daemon.pid) < 300 << 20, "small")
        daemon.stop()


def _resident(pid: int) -> int:
    fields = Path(f"/proc/{pid}/statm").read_text().split()
    return int(fields[1]) * os.sysconf("SC_PAGESIZE")


@pytest.mark.parametrize("limit", [100, 40])
def test_out_of_descriptors(daemon: Daemon, limit: int) -> None:
    """With all descriptors taken the daemon stays, and replaces its clock even then. Who says
    nothing makes room for who does, and learns why."""
    daemon.start()
    with Remote(daemon, worker="honest") as honest:
        subprocess.run(["prlimit", f"--pid={daemon.pid}", f"--nofile={limit}:{limit}"], check=True)
        with contextlib.ExitStack() as stack:
            silent = [stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(3 * limit)]
            for end in silent:
                end.setblocking(False)
                with contextlib.suppress(BlockingIOError):  # its backlog is full, too
                    end.connect(str(daemon.directory / "control.sock"))
            if limit == 100:  # with less there is no room for a clock
                until(lambda: _connect(daemon), "serving in the crowd").close()
                assert "too many connections" in until(lambda: _refused(silent), "dismissed")
                daemon.kill_clock()
            honest.ask(ACCOUNT)
            assert honest.ask("account(0.5, 1)")[2]
        with until(lambda: _connect(daemon), "serving again") as timers:
            timers.schedule(0.0, 3)
            assert receive(timers, 1)["cookie"].tolist() == [3]
        daemon.kill_clock()
        assert honest.ask("account(0.2, 1)")[2]
    assert daemon.status()["clock_restarts"] == 1 + (limit == 100)


def _refused(silent: list[socket.socket]) -> str:
    for end in silent:
        with contextlib.suppress(OSError):
            if said := end.recv(4096):
                return said.decode()
    return ""


def _connect(daemon: Daemon) -> Any:
    with contextlib.suppress(WheelError):
        return connect(str(daemon.directory))
    return None


def test_many_at_once(daemon: Daemon) -> None:
    daemon.start(max_workers=8)
    errors: list[BaseException] = []

    def come_and_go() -> None:
        try:
            for _ in range(15):
                with connect(str(daemon.directory), timeout=60) as timers:
                    timers.schedule_many(np.full(50, 1000.0))
        except BaseException as error:
            errors.append(error)

    work: list[Callable[[], None]] = [come_and_go] * 8
    threads = [threading.Thread(target=part) for part in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()
    assert errors == []
    until(lambda: daemon.workers() == {}, "gone")
    assert daemon.status()["pending"] == 0
    assert len(daemon.segments()) == 6
