"""Reconnector: restores the control connection after the supervisor was restarted.

The wheel does not need the supervisor: timers are scheduled, fire and arrive while it is away. But
in that time nobody sees this worker die or leave. So nothing here ever waits: each step does what
is possible at once, and says when to call again.
"""

from __future__ import annotations

import math
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from wheeld_core import control
from wheeld_core.control import messages as control_messages
from wheeld_core.control.messages import Request, Welcome
from wheeld_core.errors import DaemonBusy, DaemonNotRunning, WheelError

FIRST_PAUSE: Final = 0.02
LONGEST_PAUSE: Final = 0.1
LATE_PAUSE: Final = 1.0
"""Seconds between two tries: at first, at most, and after the caller got an error."""
ANSWER_SECONDS: Final = 2.0
"""How long a supervisor that accepted the connection may take to answer before the caller gets an
error."""


FINAL: Final = ("LayoutMismatch", "PermissionError")
"""Refusals that are raised at once, because waiting does not help."""


class Wait(NamedTuple):
    """Not connected yet: call again when `fd` is readable (-1: there is none), or in `seconds`."""

    fd: int
    seconds: float


class Refused(Exception):
    """The daemon does not accept this worker (again): its reason, and the kind of error."""

    def __init__(self, answer: control.Message) -> None:
        super().__init__(str(answer.get("error", "the daemon refused")))
        self.kind = str(answer.get("kind"))


class ReconnectAttempt(control.Connection):
    """A connection with a request that is not answered yet. It never blocks."""

    def __init__(self, directory: Path, request: control.Message) -> None:
        super().__init__(directory, 0.0)
        self.since = time.monotonic()
        self.request_made = request
        self.answer: control.Message = {}
        try:
            self._socket.sendall(control.encode(request))
        except BaseException:
            self.close()
            raise

    def answered(self, timeout: float) -> bool:
        """Whether the daemon has accepted the worker; from then on this is an ordinary connection.
        Refused: the daemon does not accept it. OSError, ValueError: this attempt has failed."""
        try:
            self.answer = control.decode(self._read_line())
        except BlockingIOError:
            return False
        if self.answer.get("kind") == DaemonBusy.__name__:
            raise ConnectionRefusedError(self.answer.get("error"))
        if not self.answer.get("ok"):
            raise Refused(self.answer)
        self._socket.settimeout(timeout)
        return True


class Reconnector:
    """The progress of a worker's reconnection to its supervisor. `hello` is the daemon's answer to
    this worker's hello; after `seconds` the caller gets an error; `timeout` is for the requests of
    the new connection."""

    def __init__(self, directory: Path, hello: Welcome, seconds: float, timeout: float) -> None:
        self._directory = directory
        self.who = control_messages.resume(hello)
        self._seconds = seconds
        self._timeout = timeout
        # Whoever finds it taken tries again later: a signal handler in the middle of a step, a
        # forked child. It is entered by `with` alone, which leaves no gap for an interrupt to keep
        # it in.
        self._lock = threading.Lock()  # never waited for by the thread that has it
        self._closed = False
        self._attempt: ReconnectAttempt | None = None
        self._lost_at = math.inf
        self._next_try = -math.inf
        self._pause = FIRST_PAUSE
        self._refused: Refused | None = None
        self.welcome: control.Message = {}
        """The daemon's answer to the last request that it granted."""

    def step(self, hello: control.Message | None = None) -> control.Connection | Wait:
        """Do the next step. One thread at a time does it; the others have to call again later. With
        `hello` the wheel has ended: send this to the next daemon, instead of `resume` to this one.

        DaemonNotRunning: the time is up. Refused: the daemon does not accept this worker (again).
        In both cases later steps try again now and then, after a refusal only with `hello`.
        """
        if self._lock.locked():
            return Wait(-1, FIRST_PAUSE)
        try:
            with self._lock:  # whoever holds it releases it soon: no step waits
                return self._step(time.monotonic(), hello or self.who)
        finally:
            if self._closed:
                self.close()

    def _step(self, now: float, request: control.Message) -> control.Connection | Wait:
        self._lost_at = min(self._lost_at, now)
        if self._attempt is not None and self._attempt.request_made["op"] != request["op"]:
            self._drop_attempt()
        try:
            if self._attempt is None and now >= self._next_try:
                self._refused = None
                self._attempt = ReconnectAttempt(self._directory, request)
            if self._attempt is not None and self._attempt.answered(self._timeout):
                return self._succeed()
        except (OSError, ValueError):  # DaemonNotRunning is an OSError, too
            self._fail(now)
        except Refused as refusal:
            self._drop_attempt()
            if request is self.who:
                raise
            self._refuse(now, refusal)
        if self._refused is not None and self._refused.kind in FINAL:
            raise self._refused
        if self._attempt is not None and now < self._attempt.since + ANSWER_SECONDS:
            return Wait(self._attempt.fileno(), LONGEST_PAUSE)
        if now - self._lost_at >= self._seconds:
            raise DaemonNotRunning(
                f"the wheeld daemon in {self._directory} has not come back for "
                f"{now - self._lost_at:.1f} s; `wheeld start` brings it back with all armed "
                "timers, and a later call connects to it"
                if request is self.who
                else self._why_no_other(now)
            )
        # An attempt is never abandoned for its slowness: a supervisor that then read `resume` on a
        # closed connection would take it for this worker's good-bye.
        if self._attempt is not None:
            return Wait(self._attempt.fileno(), LONGEST_PAUSE)
        return Wait(-1, max(self._next_try - now, 0.001))

    def _why_no_other(self, now: float) -> str:
        return (
            f"the wheeld daemon in {self._directory} was stopped, and no other accepted this "
            f"client for {now - self._lost_at:.1f} s"
            + (f" ({self._refused})" if self._refused is not None else "")
            + "; a later call tries again"
        )

    def _refuse(self, now: float, refusal: Refused) -> None:
        """A refusal that may be temporary: rows are taken, or a worker of that name is about to
        leave."""
        self._fail(now)
        self._refused = refusal
        if refusal.kind in FINAL:
            self._next_try = now + LATE_PAUSE

    def _succeed(self) -> control.Connection:
        attempt, self._attempt = self._attempt, None
        assert attempt is not None
        self.welcome, self._refused = attempt.answer, None
        self._lost_at, self._next_try, self._pause = math.inf, -math.inf, FIRST_PAUSE
        return attempt

    def _fail(self, now: float) -> None:
        self._drop_attempt()
        late = now - self._lost_at >= self._seconds
        self._next_try = now + (LATE_PAUSE if late else self._pause)
        self._pause = min(self._pause * 1.5, LONGEST_PAUSE)

    def _drop_attempt(self) -> None:
        attempt, self._attempt = self._attempt, None
        if attempt is not None:
            attempt.close()

    def say_goodbye(self) -> None:
        """Restore the connection only to leave, for a close() while it is lost."""
        with suppress(WheelError, OSError, ValueError):
            connection, _ = control.greet(self._directory, ANSWER_SECONDS, **self.who)
            try:
                connection.request(Request.BYE)
            finally:
                connection.close()

    def close(self) -> None:
        """Abandon the attempt under way. A step that runs in another thread abandons it at its
        end."""
        self._closed = True
        if not self._lock.locked():
            with self._lock:
                self._drop_attempt()
