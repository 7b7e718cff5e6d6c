"""Four gunicorn workers debounce, deduplicate and keep sessions while they die and are replaced.

The account is what each process has written into a file of its own: nothing is lost, nothing comes
early, and nothing twice, but for what a worker was killed in.
"""

from __future__ import annotations

import http.client
import os
import signal
import threading
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import pytest

from common_fixtures import daemon_process
from daemons import LONG, Daemon, until
from deadlines_app import QUIET, SILENT
from web_server import Server, gunicorn

pytestmark = pytest.mark.slow
serving = daemon_process(max_workers=48, capacity=8192)

KEYS, EVENTS = 6, 8
BEAT = 0.1
TIMES = {"mail": QUIET, "login": SILENT}


@dataclass(frozen=True)
class Note:
    """A line of the account."""

    at: int
    what: str
    key: str
    pid: int
    last: bool
    """Nothing but the end of it follows in this process's file."""


def account(records: Path, kind: str) -> dict[str, list[Note]]:
    found: dict[str, list[Note]] = defaultdict(list)
    for path in records.iterdir():
        lines = [line.split() for line in path.read_text().splitlines()]
        for i, (at, what, of, key) in enumerate(lines):
            over = what == "begin" and not any(one[1] in ("begin", "end") for one in lines[i + 2 :])
            if of == kind or (of, kind) == ("alive", "login"):
                found[key].append(Note(int(at), what, key, int(path.name), over))
    return {key: sorted(notes, key=lambda one: one.at) for key, notes in found.items()}


class Client(threading.Thread):
    """Sends each request until it is answered."""

    def __init__(self, server: Server, paths: list[list[str]]) -> None:
        super().__init__()
        self._server, self._paths = server, paths
        self.answers: dict[str, list[str]] = defaultdict(list)
        self.tries = 0

    def run(self) -> None:
        for some in self._paths:
            for path in some:
                self.answers[path].append(self._get(path))
                time.sleep(BEAT)

    def _get(self, path: str) -> str:
        give_up = time.monotonic() + LONG
        while time.monotonic() < give_up:
            self.tries += 1
            try:
                status, text = self._server.get(path)
                if status == 200:
                    return text
            except (OSError, http.client.HTTPException):
                pass
            time.sleep(0.01)
        raise AssertionError(f"no answer to {path}")


def paths(kind: str, first: str, more: str) -> list[list[str]]:
    return [
        [f"/{first}/{kind}{number}", *[f"/{more}/{kind}{number}"] * EVENTS]
        for number in range(KEYS)
    ]


def workers_of(records: Path) -> list[int]:
    return [int(path.name) for path in records.iterdir() if Path(f"/proc/{path.name}").exists()]


def check(notes: list[Note], seconds: float, killed: set[int]) -> None:
    """One key: each quiet time was told, late enough, and once."""
    acts = [one for one in notes if one.what in ("intent", "done")]
    begins = [one for one in notes if one.what == "begin"]
    ends = [one for one in notes if one.what == "end"]
    assert ends, "it was lost"
    assert ends[-1].at > max(one.at for one in acts if one.what == "done"), "the last one was lost"
    before: Note | None = None
    for begin in begins:
        done = [one for one in acts if one.what == "done" and one.at < begin.at]
        intents = [one for one in acts if one.what == "intent" and one.at < begin.at]
        again = before is not None and intents[-1].at < before.at
        if again:
            assert before is not None
            assert before.last, "twice, though the first one was told"
            assert before.pid in killed, "twice, though nobody died in it"
        sure = [one for one in intents if any(d.pid == one.pid and d.at >= one.at for d in done)]
        assert begin.at - sure[-1].at >= seconds * 1e9, "early"
        before = begin


def test_nothing_is_lost_and_nothing_twice(
    serving: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records, pid_file = tmp_path / "records", tmp_path / "pid"
    records.mkdir()
    monkeypatch.setenv("WHEELD_TEST_RECORDS", str(records))
    options = ("--workers", "4", "--pid", str(pid_file), "--graceful-timeout", "5")
    with gunicorn(
        "deadlines_app:app", str(serving.directory), *options, log=tmp_path / "log"
    ) as server:
        clients = [
            Client(server, paths("mail", "mail", "mail")),
            Client(server, paths("login", "login", "alive")),
            Client(server, paths("seen", "seen", "seen")),
            Client(server, paths("seen", "seen", "seen")),
        ]
        for client in clients:
            client.start()
        killed: set[int] = set()
        master = int(pid_file.read_text())
        until(lambda: len(workers_of(records)) >= 2, "workers that serve")
        for turn in range(3):
            time.sleep(0.5)
            os.kill(master, signal.SIGHUP)
            time.sleep(0.5)
            victim = until(lambda: workers_of(records)[turn % 2 :], "one that serves")[0]  # noqa: B023
            killed.add(victim)
            os.kill(victim, signal.SIGKILL)
            if turn == 1:
                done = serving.command("restart")
                assert done.returncode == 0, done.stderr
        for client in clients:
            client.join(LONG)
            assert not client.is_alive()

        def all_ended() -> bool:
            server.get("/seen/ping")  # a worker that got no request has no deadlines yet
            return all(
                (notes := account(records, kind)).keys() >= {f"{kind}{n}" for n in range(KEYS)}
                and all(
                    [one.what for one in each if one.what in ("done", "end")][-1:] != ["done"]
                    for each in notes.values()
                )
                for kind in TIMES
            )

        until(all_ended, "all have ended")
        time.sleep(2 * SILENT)  # whatever comes twice has come by then
        for kind, seconds in TIMES.items():
            for notes in account(records, kind).values():
                check(notes, seconds, killed | _left(records))
        check_seen(clients[2:], account(records, "seen"), killed)


def _left(records: Path) -> set[int]:
    """Workers that have ended: one that a deploy ends in `on_expire` has not returned from it."""
    return {int(path.name) for path in records.iterdir()} - set(workers_of(records))


def check_seen(clients: list[Client], notes: dict[str, list[Note]], killed: set[int]) -> None:
    for number in range(KEYS):
        key = f"seen{number}"
        first = [one for one in notes[key] if one.what == "done"]
        assert len(first) <= 1, "two were the first"
        answers = [text for client in clients for text in client.answers[f"/seen/{key}"]]
        assert len(answers) == 2 * (EVENTS + 1)
        assert answers.count("done") <= 1
        if not first:  # its worker was killed between the start and the note
            unanswered = {one.pid for one in notes[key] if one.what == "intent"} & killed
            assert unanswered
