"""Four gunicorn workers under load while something befalls their daemon, and an exact account.

Two workers are sync, two uvicorn's with AsyncTimers (web_services.py). Needs no pytest: in a
container the scenes of systemd_scenes.py use it, too.
"""

import contextlib
import http.client
import json
import os
import re
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from daemons import LONG, until
from wheeld_client import connect
from wheeld_core.control import Connection

HERE: Final = Path(__file__).resolve().parent
ROUNDS: Final = int(os.environ.get("WHEELD_RESTARTS", "3"))
KINDS: Final = {"sync_app": "sync", "async_app": "uvicorn_worker.UvicornWorker"}
NEEDED: Final = ("gunicorn", "uvicorn", "uvicorn_worker")
CALLERS, PAUSE = 2, 0.01
"""Callers of each service, and how long each rests between two requests, seconds."""
ANSWERS: Final = 5
"""Each caller gets this much between two faults, at least."""
TICK: Final = 0.002
TICKER: Final = "ticker"


@contextlib.contextmanager
def service(app: str, directory: Path, log: Path, user: str | None) -> Iterator[int]:
    command = [sys.executable, "-m", "gunicorn", "--chdir", str(HERE), "--workers", "2"]
    command += ["--bind", "127.0.0.1:0", "--worker-class", KINDS[app], "--timeout", "60"]
    environment = {**os.environ, "WHEELD_TEST_DAEMON": str(directory)}
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*command, f"web_services:{app}"], stdin=subprocess.DEVNULL, stdout=out, stderr=out,
            env=environment, user=user, group=user,
            extra_groups=None if user is None else [],
        )  # fmt: skip
    try:
        found = until(lambda: re.search(r"http://127.0.0.1:(\d+)", log.read_text()), "listening")
        yield int(found[1])
    finally:
        process.terminate()
        process.wait(LONG)


class Caller(threading.Thread):
    """Makes one request after the other; keeps account of the answers."""

    def __init__(self, port: int, over: threading.Event) -> None:
        super().__init__()
        self._port, self._over = port, over
        self.answers: list[dict[str, Any]] = []
        self.failures: list[str] = []
        self.start()

    def run(self) -> None:
        while not self._over.is_set():
            try:
                self._call()
            except OSError as error:
                self.failures.append(repr(error))
            self._over.wait(PAUSE)

    def _call(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=LONG)
        try:
            connection.request("GET", "/")
            answer = connection.getresponse()
            body = answer.read()
            if answer.status == 200:
                self.answers.append(json.loads(body))
            else:
                self.failures.append(f"{answer.status}: {body!r}")
        finally:
            connection.close()


class Ticker(threading.Thread):
    """A client with a periodic timer: when it fires tells when timers do."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self._timers = connect(str(directory), worker=TICKER, reconnect_for=LONG)
        self._timers.schedule(0.0, interval=TICK)
        self._over = threading.Event()
        self._fired: list[int] = []
        self.start()

    def run(self) -> None:
        while not self._over.is_set():
            self._fired += self._timers.poll(0.1)["fired"].tolist()

    def finish(self) -> list[float]:
        self._over.set()
        self.join(LONG)
        self._timers.close()
        return [(later - earlier) / 1e6 for earlier, later in pairwise(self._fired)]


@dataclass
class Account:
    rounds: int
    requests: int = 0
    over: int = 0
    """By their own deadline."""
    failures: list[str] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    """Workers that are not there any more, or not in the same process."""
    kept: int = 0
    """Timers that should be pending still."""
    pending: int = -1
    gaps: list[float] = field(default_factory=list)
    """In which nothing fired: as many of the longest as there were rounds; ms."""
    took: float = 0.0
    """A fault, to its end; median, s."""
    odd: list[str] = field(default_factory=list)
    """Messages of gunicorn about workers that fail."""

    def check(self) -> None:
        assert self.requests >= ANSWERS * CALLERS * len(KINDS) * (self.rounds + 1)
        assert (self.failures, self.ended, self.odd) == ([], [], [])
        assert self.pending == self.kept
        assert len(self.gaps) == self.rounds

    def told(self) -> str:
        return (
            f"{self.requests} requests, {len(self.failures)} failed, {self.over} by their own "
            f"deadline, {len(self.ended)} workers ended; {self.kept} timers should be pending, "
            f"{self.pending} are; the longest gaps in firing: "
            f"{[round(gap, 1) for gap in self.gaps]} ms; each took {self.took:.2f} s"
        )


def status(directory: Path) -> dict[str, Any]:
    connection = Connection(directory, LONG)
    try:
        found: dict[str, Any] = connection.request("status")["status"]
        return found
    finally:
        connection.close()


def names(directory: Path) -> list[str]:
    return [worker["name"] for worker in status(directory)["workers"]]


def processes(directory: Path) -> dict[str, int]:
    workers = status(directory)["workers"]
    return {one["name"]: one["pid"] for one in workers if one["name"].startswith("pid-")}


def answered(callers: list[Caller]) -> Callable[[], bool]:
    enough = [(caller, len(caller.answers) + ANSWERS) for caller in callers]
    return lambda: (
        any(caller.failures for caller in callers)
        or all(len(caller.answers) >= number for caller, number in enough)
    )


def _befall(callers: list[Caller], fault: Callable[[], None]) -> float:
    until(answered(callers), "answers")
    began = time.monotonic()
    fault()
    return time.monotonic() - began


def suffer(
    fault: Callable[[], None],
    directory: Path,
    logs: Path,
    rounds: int = ROUNDS,
    user: str | None = None,
) -> Account:
    account, over = Account(rounds), threading.Event()
    with contextlib.ExitStack() as stack:
        written = [logs / f"{app}.log" for app in KINDS]
        ports = [
            stack.enter_context(service(app, directory, log, user))
            for app, log in zip(KINDS, written, strict=True)
        ]
        callers = [Caller(port, over) for port in ports for _ in range(CALLERS)]
        try:
            until(lambda: len(processes(directory)) == 4, "all four workers")
            workers, ticker = processes(directory), Ticker(directory)
            took = [_befall(callers, fault) for _ in range(rounds)]
            until(answered(callers), "answers")
        finally:
            over.set()
            for caller in callers:
                caller.join(LONG)
        account.gaps = sorted(ticker.finish())[-rounds:]
        until(lambda: TICKER not in names(directory), "the ticker left")
        now = processes(directory)
        account.ended = [name for name, pid in workers.items() if now.get(name) != pid]
        account.pending = status(directory)["pending"]
    answers = [answer for caller in callers for answer in caller.answers]
    account.requests, account.took = len(answers), statistics.median(took)
    account.failures = [failure for caller in callers for failure in caller.failures]
    account.kept = sum(answer["kept"] for answer in answers)
    account.over = sum(answer.get("over", False) for answer in answers)
    said = "\n".join(log.read_text() for log in written)
    account.odd = re.findall(r".*(?:Traceback|(?<!Handling )signal).*", said)
    return account
