"""Starts a module as a child process, at the other end of a socket pair.

A child may be forked ahead, before its parent knows its options: it waits for the first message,
and ends if none comes. Loading modules is most of the start of the supervisor and its clock, and
most of their memory: the first clock is a fork of its supervisor, and shares both with it.
Nothing but the standard library is imported here.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import os
import select
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, NoReturn

CLOCK: Final = "wheeld.clock.process"
RECORDER: Final = "wheeld.recorder.process"
EXPORTER: Final = "wheeld.metrics.process"
PRIVATE: Final = "--private"
"""The first argument of an embedded daemon's command line; its options follow, as JSON."""
OPTIONS: Final[Mapping[str, Mapping[str, Any]]] = {
    # Ctrl-C is the supervisor's to handle.
    CLOCK: {"start_new_session": True},
    # The same; a session would undo nice.
    RECORDER: {"process_group": 0, "stdin": subprocess.DEVNULL},
    EXPORTER: {"process_group": 0, "stdin": subprocess.DEVNULL},
}


class Forked:
    """A child process made by fork, with the methods of `subprocess.Popen` that are used here."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def wait(self) -> int:
        """Wait for its end; returns its exit code, negative for a signal."""
        if self.returncode is None:
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.returncode

    def kill(self) -> None:
        if self.returncode is None:
            os.kill(self.pid, signal.SIGKILL)


class Spawned(NamedTuple):
    """A process, and the parent's end of the channel to it."""

    process: subprocess.Popen[bytes] | Forked
    channel: socket.socket


_ahead: dict[str, Spawned] = {}


def spawn(module: str) -> Spawned:
    """Run `python -m MODULE <fd>`, one of those in `OPTIONS`. `OSError`: there is no room for a
    process or a descriptor; nothing remains of the attempt."""
    ours, theirs = socket.socketpair()
    try:
        with theirs:
            process = subprocess.Popen(
                # -P: nothing is imported from the directory that we happen to be in
                [sys.executable, "-P", "-m", module, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                **OPTIONS[module],
            )
    except BaseException:
        ours.close()
        raise
    return Spawned(process, ours)


def fork_ahead(module: str, main: Callable[[], None]) -> None:
    """Fork one ahead, for the next `take` of this module; `main` is its loaded entry point.

    Call it before there are threads, and after `gc.freeze`: collections would write to memory that
    both share. It runs in its own session; its only descriptors are the standard ones and its end
    of the channel.
    """
    try:
        ours, theirs = socket.socketpair()
        with ours, theirs:
            if pid := os.fork():
                _ahead[module] = Spawned(Forked(pid), socket.socket(fileno=ours.detach()))
                return
            channel = theirs.detach()
            ours.detach()
            _close_all_but(channel)
    except OSError:  # who asks finds out why
        return
    os.setsid()
    sys.argv = [module, str(channel)]
    run_fork(main)


def _close_all_but(channel: int) -> None:
    for fd in map(int, os.listdir("/proc/self/fd")):
        if fd > 2 and fd != channel:
            with contextlib.suppress(OSError):  # the one of this directory
                os.close(fd)


def run_fork(main: Callable[[], None]) -> NoReturn:
    """Run `main` in a process made by fork, and end the process as a program of its own ends."""
    gc.enable()
    code = 1
    try:
        main()
        code = 0
    except SystemExit as error:
        if isinstance(error.code, str):
            last_words(error.code)
        code = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        last_words(traceback.format_exc())
    finally:
        end_unused()
        atexit._run_exitfuncs()
        sys.stdout.flush()
        os._exit(code)  # skips the interpreter's clean-up: half of an end


def last_words(text: str) -> None:
    """Write the end of a text to stderr, as much as a pipe accepts at once; nothing if it is full,
    because no process waits for its reader."""
    stderr = select.poll()
    stderr.register(2, select.POLLOUT)
    with contextlib.suppress(OSError):
        if stderr.poll(0):
            os.write(2, text.encode(errors="replace").strip()[1 - select.PIPE_BUF :] + b"\n")


def take(module: str) -> Spawned:
    """The process that was forked ahead, else a new one; raises as `spawn`."""
    return _ahead.pop(module, None) or spawn(module)


def end_unused() -> None:
    while _ahead:
        _, (process, channel) = _ahead.popitem()
        channel.close()
        process.kill()
        process.wait()
