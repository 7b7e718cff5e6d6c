"""A WSGI application that debounces, deduplicates and keeps sessions, as docs/how-to has it.

Each process writes what it does into a file of its own, $WHEELD_TEST_RECORDS/PID: the account.
"""

import os
import time
from collections.abc import Callable, Iterable
from typing import Any

from wheeld_client import Deadlines, KeyInUse, connect

QUIET, SILENT, LONG = 1.0, 2.0, 300.0
"""Seconds: of no event, of no sign of life, and for which a message is known."""


def note(what: str, kind: str, key: str) -> None:
    path = os.path.join(os.environ["WHEELD_TEST_RECORDS"], str(os.getpid()))
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(fd, f"{time.monotonic_ns()} {what} {kind} {key}\n".encode())
    os.close(fd)


def noting(kind: str) -> Callable[[str], None]:
    def on_expire(key: str) -> None:
        note("begin", kind, key)
        note("end", kind, key)

    return on_expire


class Application:
    """`/mail/KEY`, `/seen/KEY`, `/login/KEY` and `/alive/KEY`; each answer says what came of it."""

    def __init__(self) -> None:
        self._ready = False

    def _enter(self) -> None:
        timers = connect(os.environ["WHEELD_TEST_DAEMON"], reconnect_for=60.0, timeout=60.0)
        self.mails = Deadlines(timers, "mails", noting("mail"))
        self.seen = Deadlines(timers, "seen", noting("seen"))
        self.sessions = Deadlines(timers, "sessions", noting("login"))
        timers.dispatching().__enter__()
        self._ready = True

    def _do(self, kind: str, key: str) -> str:
        note("intent", kind, key)
        answer = "done"
        if kind == "mail":
            self.mails.start(key, QUIET)
        elif kind == "seen":
            try:
                self.seen.start(key, LONG, on_conflict="raise")
            except KeyInUse:
                answer = "again"
        elif kind == "login":
            self.sessions.start(key, SILENT)
        elif not self.sessions.extend(key, SILENT):
            answer = "over"
        note(answer, kind, key)
        return answer

    def __call__(self, environ: dict[str, Any], start: Callable[..., Any]) -> Iterable[bytes]:
        if not self._ready:
            self._enter()
        _, kind, key = environ["PATH_INFO"].split("/")
        answer = self._do(kind, key)
        start("200 OK", [("Content-Type", "text/plain")])
        return [answer.encode()]


app = Application()
