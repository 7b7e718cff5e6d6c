"""Shared by the supervisor's child processes: the channel to it, a lock, start and end.

Each gets one end of a socket pair (`python -m MODULE <fd>`), which carries messages in lines, as
the control socket does. When it closes, the supervisor is gone, and so is the process.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import math
import os
import select
import socket
import sys
import time
import traceback
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from wheeld.processes import signals, titles
from wheeld.processes.spawn import last_words
from wheeld_core import control
from wheeld_core.control import Message
from wheeld_core.errors import WheelError


class SupervisorChannel:
    """The child's end of the channel; `who` names the process."""

    def __init__(self, end: socket.socket, who: str) -> None:
        self._socket, self._rest, self._who = end, b"", who
        self._poll = select.poll()
        self._poll.register(end, select.POLLIN)

    def fileno(self) -> int:
        """The socket's descriptor: readable when a message arrives, and when the supervisor
        goes."""
        return self._socket.fileno()

    def hello(self) -> Message:
        """The supervisor's first message; without it, the process ends."""
        message = self.receive()
        if message is None:
            raise SystemExit(1)
        global _introduction  # noqa: PLW0603 - set once, before anything is said
        _introduction = message
        titles.set_title(message.get("name", "?"), self._who)
        return message

    def send(self, message: Message) -> None:
        self._socket.sendall(control.encode(message))

    def ready(self, seconds: float = 0) -> bool:
        return b"\n" in self._rest or bool(self._poll.poll(math.ceil(1000 * seconds)))

    def receive(self) -> Message | None:
        while b"\n" not in self._rest:
            part = self._socket.recv(65536)
            if not part:
                return None
            self._rest += part
        line, _, self._rest = self._rest.partition(b"\n")
        return control.decode(line)


def check_supervisor(pid: int) -> None:
    if os.getppid() != pid:
        raise SystemExit(1)


def lock(path: Path, seconds: float, who: str) -> int:
    """Take the lock that makes this the only process of its kind; the kernel releases it however we
    end. If another file has replaced it in the meantime, that is not the lock."""
    give_up = time.monotonic() + seconds
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        if os.fstat(fd).st_size == 0:
            os.fchmod(fd, 0o600)  # whatever the umask
        with contextlib.suppress(BlockingIOError, FileNotFoundError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.path.samestat(os.fstat(fd), os.stat(path)):
                return fd
        os.close(fd)
        if time.monotonic() > give_up:
            raise WheelError(
                f"another {who} has held {path} for {seconds:g} s; end the process that holds it "
                "(`lslocks` names it)"
            )
        time.sleep(0.005)


_introduction: Message = {}
"""The daemon's name, and the form of its messages: see `Config.introduction`."""
_WARNING = 30
"""Levels of the module `logging`, which the clock does not load."""


def fields(level: str, daemon: str, text: str) -> dict[str, str | int]:
    """A message as JSON, as `--log-format json` writes it."""
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    return {"time": now, "level": level, "daemon": daemon, "pid": os.getpid(), "message": text}


def say(text: str) -> None:
    """Write a message as the daemon does: to stderr, or to the journal. The message is lost if that
    fails or would block."""
    daemon, form = _introduction.get("name", "?"), _introduction.get("log_format")
    line = f"wheeld: {text}"
    if form == "json":
        line = json.dumps(fields("warning", daemon, text))
    with contextlib.suppress(OSError):
        if form == "journald":
            from wheeld.processes import journal  # loads `logging`

            journal.say(daemon, _WARNING, text)
        else:
            last_words(line)


def run(who: str, serve: Callable[[SupervisorChannel], None]) -> None:
    """Run the process `who` until it ends; writes an error that ends it to stderr."""
    signals.leave_to_the_supervisor()
    Path("/proc/self/comm").write_text(f"wheeld-{who}")
    try:
        serve(SupervisorChannel(socket.socket(fileno=int(sys.argv[1])), who))
    except (BrokenPipeError, ConnectionResetError):
        pass  # the supervisor is gone
    except (OSError, WheelError) as error:
        say(f"{who}: {error}")
        raise SystemExit(1) from None
    except Exception:  # the interpreter would wait until all of it is taken
        last_words(traceback.format_exc())
        raise SystemExit(1) from None
