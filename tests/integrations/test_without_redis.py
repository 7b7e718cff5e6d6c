"""The shop of examples/without_redis under a real gunicorn, which is killed and reloaded meanwhile.

A virtual clock's minutes pass one by one. In each, customers send more requests than their limits
allow, to an application with slowapi and to one with flask-limiter, while something happens to the
workers or to the daemon. The account is all that the shop wrote, and all answers.
"""

from __future__ import annotations

import http.client
import os
import random
import signal
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

import web_server
import wheeld
from common_fixtures import daemon_process
from daemons import LONG, Daemon, until
from wheeld_client import connect

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
daemon = daemon_process(virtual_clock=True, capacity=8192, max_workers=64)
EXAMPLE = Path(__file__).parents[2] / "examples" / "without_redis"
MINUTE = 61  # so that a window that is rounded up is over, too
NUDGE = 0.05
LIMIT = 20
ANSWERS = {200, 401, 409, 429, 504}
CUSTOMERS = ("ann", "ben")


class Shop:
    """Both servers, what they answered in this minute, and what they wrote."""

    def __init__(self, daemon: Daemon, place: Path, stack: ExitStack) -> None:
        self.daemon, self.log = daemon, place / "shop.log"
        self.log.touch()
        self.killed: set[int] = set()
        self.answers: defaultdict[str, Counter[int]] = defaultdict(Counter)
        self.lock = threading.Lock()
        self.read = 0
        self.outputs = [place / name for name in ("fastapi", "flask")]
        config = ["--config", str(EXAMPLE / "gunicorn.conf.py")]
        for app, options, output in zip(
            ("shop:app", "shop_flask:app"), (config, ["--workers", "2"]), self.outputs, strict=True
        ):
            words = ["--chdir", str(EXAMPLE), "--graceful-timeout", "30", *options]
            server = web_server.gunicorn(app, str(daemon.directory), *words, log=output)
            setattr(self, output.name, stack.enter_context(server))
        self.fastapi: web_server.Server
        self.flask: web_server.Server

    def ask(self, method: str, path: str, server: web_server.Server | None = None) -> int:
        """The status; 0: a worker died with this request."""
        port = (server or self.fastapi).port
        try:
            with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=LONG)) as peer:
                peer.request(method, path)
                status = peer.getresponse().status
        except (OSError, http.client.HTTPException):
            status = 0
        assert status in {0, *ANSWERS}, (path, status, *(log.read_text() for log in self.outputs))
        with self.lock:
            self.answers[f"{path} {port}"][status] += 1
        return status

    def ask_until_answered(self, method: str, path: str) -> int:
        return until(lambda: self.ask(method, path), f"an answer to {path}")

    def kill(self, pid: int) -> None:
        self.killed.add(pid)
        os.kill(pid, signal.SIGKILL)

    def workers(self, server: web_server.Server) -> list[int]:
        path = Path(f"/proc/{server.pid}/task/{server.pid}/children")
        return until(lambda: [*map(int, path.read_text().split())], "workers of gunicorn")

    def nudge(self) -> None:
        """Who gets the run of a dead worker may look again a little later, in the wheel's time. In
        all minutes together that is less than one, however slow the machine is."""
        wheeld.advance(str(self.daemon.directory), NUDGE)
        time.sleep(4 * NUDGE)

    def lines(self) -> list[list[str]]:
        """All that was written since the minute began."""
        return [line.split() for line in self.log.read_text()[self.read :].splitlines()]

    def runs(self, *what: str) -> list[int]:
        """Who began it: at the end, the last one has ended it, and the others were killed in it."""

        def pids(state: str) -> list[int]:
            wanted = [what[0], state, *what[1:]]
            return [int(pid) for pid, *words in self.lines() if words == wanted]

        def has_run() -> bool:
            begun = pids("begins")
            if begun and begun[-1] in self.killed:
                self.nudge()
            return bool(begun) and begun[-1] in pids("ends")

        until(has_run, f"{what} to run")
        begun = pids("begins")
        assert set(begun[:-1]) <= self.killed, (what, begun, pids("ends"), self.killed)
        return begun


@pytest.fixture
def shop(daemon: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    monkeypatch.setenv("SHOP_DAEMON", str(daemon.directory))
    monkeypatch.setenv("SHOP_LOG", str(tmp_path / "shop.log"))
    monkeypatch.setenv("SHOP_WORK", "1.0")
    with ExitStack() as stack:
        shop = Shop(daemon, tmp_path, stack)
        with connect(str(daemon.directory), worker="observer") as timers:
            until(lambda: timers.find(("job", "shop", "refresh")), "that the jobs have begun")
        yield shop


def kill_one(shop: Shop) -> None:
    for server in (shop.fastapi, shop.flask):
        shop.kill(random.choice(shop.workers(server)))


def kill_all(shop: Shop) -> None:
    for server in (shop.fastapi, shop.flask):
        for pid in shop.workers(server):
            shop.kill(pid)


def reload(shop: Shop) -> None:
    for server in (shop.fastapi, shop.flask):
        os.kill(server.pid, signal.SIGHUP)


def restart(shop: Shop) -> None:
    done = shop.daemon.command("restart")
    assert done.returncode == 0, done.stderr


def nothing(shop: Shop) -> None:
    pass


HAPPENS: list[Callable[[Shop], None]] = [nothing, kill_one, reload, restart, kill_all]


def send(shop: Shop) -> list[threading.Thread]:
    """More than is allowed, from each customer to each server, and who wants the report."""

    def carts(customer: str) -> None:
        for _ in range(LIMIT + 10):
            shop.ask("POST", f"/cart/{customer}")
            shop.ask("POST", f"/cart/{customer}", shop.flask)

    def reports() -> None:
        for _ in range(15):
            shop.ask("GET", "/report")

    threads = [threading.Thread(target=carts, args=(customer,)) for customer in CUSTOMERS]
    threads += [threading.Thread(target=reports) for _ in range(2)]
    for thread in threads:
        thread.start()
    return threads


def check_limits(shop: Shop) -> None:
    for customer in CUSTOMERS:
        for server in (shop.fastapi, shop.flask):
            answers = shop.answers[f"/cart/{customer} {server.port}"]
            assert answers[200] <= LIMIT <= answers[200] + answers[0], answers
            assert sum(answers.values()) == LIMIT + 10


def check_report(lines: list[list[str]], killed: set[int]) -> None:
    """One at a time, and each token is larger than the one before."""
    holder, last = "", 0
    for pid, what, *words in lines:
        if what == "report" and words[0] == "begins":
            assert not holder or int(holder) in killed, (holder, pid)
            assert int(words[1]) > last
            holder, last = pid, int(words[1])
        elif what == "report":
            assert (pid, int(words[1])) == (holder, last)
            holder = ""


def minute(shop: Shop, happens: Callable[[Shop], None], kill_in_run: bool) -> None:
    shop.answers.clear()
    shop.read = shop.log.stat().st_size
    sending = send(shop)
    until(lambda: sum(map(Counter.total, list(shop.answers.values()))) > 20, "some answers")
    happens(shop)
    for thread in sending:
        thread.join()
    check_limits(shop)
    wheeld.advance(str(shop.daemon.directory), MINUTE)
    if kill_in_run:
        words = ["refresh", "begins"]
        first = until(lambda: [line for line in shop.lines() if line[1:] == words], "the job")
        shop.kill(int(first[0][0]))
    assert len(shop.runs("refresh")) >= 1 + kill_in_run
    for customer in CUSTOMERS:
        shop.runs("mail", customer)


def test_all_of_it_while_workers_die(shop: Shop) -> None:
    assert shop.ask("POST", "/login/ann") == shop.ask("POST", "/login/eve") == 200
    for number, happens in enumerate([*HAPPENS, *reversed(HAPPENS[1:])]):
        minute(shop, happens, kill_in_run=number % 3 == 1)
        assert shop.ask_until_answered("GET", "/me/ann") == 200
    words = ["logged-out", "eve"]
    assert (
        len([line for line in shop.log.read_text().splitlines() if line.split()[1:] == words]) == 1
    )
    assert shop.ask_until_answered("GET", "/me/eve") == 401

    late: list[int] = []
    slow = threading.Thread(target=lambda: late.append(shop.ask("GET", "/slow")))
    slow.start()
    until(lambda: "slow begins" in shop.log.read_text(), "the slow request")
    wheeld.advance(str(shop.daemon.directory), 3)
    slow.join()
    assert late == [504]

    everything = [line.split() for line in shop.log.read_text().splitlines()]
    check_report(everything, shop.killed)
    assert sum(line[1] == "report" for line in everything) > 20
    for output in shop.outputs:
        assert "Traceback" not in output.read_text()
