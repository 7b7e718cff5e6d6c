"""Private daemons within milliseconds: a process that has loaded all they need forks them.

An embedded daemon takes most of its start to load Python's modules, twice, for the supervisor and
its clock. The fork server loads them once; each daemon is a fork of it, and its clock one of that.
`wheeld_testing` gives each test a daemon of its own by it.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable
from typing import Any

from wheeld import embedding
from wheeld.__main__ import PRIVATE
from wheeld.processes import descriptors, spawn
from wheeld_core.errors import WheelError

MOST = 1 << 17
"""Bytes of a request: the environment of the caller is most of it."""


class ForkServer:
    """Starts embedded daemons, each in a few milliseconds; a context manager that ends the server.

    One thread uses it at a time. When the process that made it dies, so does it, and each daemon.

    Raises
    ------
    OSError
        There is no room for a process.
    """

    def __init__(self) -> None:
        self._owner = os.getpid()
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "wheeld.forkserver", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
            )

    @property
    def pid(self) -> int:
        """The server's process id."""
        return self._process.pid

    def embedded(
        self, **config: Any
    ) -> contextlib.AbstractContextManager[embedding.EmbeddedDaemon]:
        """As `wheeld.embedded`, with the same options and errors."""
        return embedding.running(self._fork, config)

    def _fork(self, options: str, output: int) -> _Remote:
        if os.getpid() != self._owner:
            raise WheelError("this fork server is another process's: make one in this process")
        request = {"options": options, "environment": dict(os.environ), "directory": os.getcwd()}
        try:
            socket.send_fds(self._channel, [json.dumps(request).encode()], [output])
            answer, fds, _, _ = socket.recv_fds(self._channel, 64, 1)
        except OSError as error:
            raise WheelError(f"the fork server (pid {self.pid}) is gone: {error}") from error
        if not answer:
            raise WheelError(f"the fork server (pid {self.pid}) is gone; its message is on stderr")
        return _Remote(int(answer), *fds)

    def close(self) -> None:
        """End the server. May be called twice; its daemons are ended by their own blocks."""
        self._channel.close()
        if os.getpid() == self._owner:
            self._process.wait()

    def __enter__(self) -> ForkServer:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class _Remote:
    """A daemon's process, held by its pidfd: it is no child of ours."""

    def __init__(self, pid: int, pidfd: int) -> None:
        self.pid = pid
        self._pidfd = pidfd
        self._code: int | None = None

    def poll(self) -> int | None:
        """0 when it has ended, however; None while it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(0.0)
        return None

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; subprocess.TimeoutExpired if it does not come in time."""
        if self._code is None:
            waiting = select.poll()
            waiting.register(self._pidfd, select.POLLIN)
            if not waiting.poll(None if timeout is None else timeout * 1000):
                raise subprocess.TimeoutExpired("wheeld", timeout or 0.0)
            os.close(self._pidfd)
            self._code = 0
        return self._code

    def terminate(self) -> None:
        """SIGTERM."""
        self._signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL."""
        self._signal(signal.SIGKILL)

    def _signal(self, number: int) -> None:
        if self._code is None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)


# -- the server's side -----------------------------------------------------------------------------


def main() -> None:
    """Serve until the caller is gone; in a fork, be what was forked, and end as that does."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    gc.disable()
    from wheeld.clock import process  # loads numpy
    from wheeld.supervisor import launch

    gc.freeze()
    descriptors.take_all()
    # Ended daemons are collected by the kernel; Ctrl-C is for the caller, who ends us.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)
    channel = socket.socket(fileno=int(sys.argv[1]))
    parent = os.pidfd_open(os.getppid())
    be: Callable[[], None] | None = None
    while be is None:
        be = _serve(channel, parent, {spawn.CLOCK: process.main, "": launch.main})
    if be is _end:
        return
    signal.signal(signal.SIGINT, interrupt)
    gc.enable()
    code = 1
    try:
        be()
        code = 0
    except SystemExit as error:
        if isinstance(error.code, str):
            print(error.code, file=sys.stderr)
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        spawn.end_unused()
        atexit._run_exitfuncs()
        sys.stderr.flush()
        os._exit(code)  # without taking down all that was loaded: half of an end


def _end() -> None:
    """The caller is gone."""


def _serve(
    channel: socket.socket, parent: int, mains: dict[str, Callable[[], None]]
) -> Callable[[], None] | None:
    """Fork one daemon; None in the server, in the fork what it is to be."""
    waiting = select.poll()
    waiting.register(channel, select.POLLIN)
    waiting.register(parent, select.POLLIN)
    if parent in dict(waiting.poll()):
        return _end
    line, fds, _, _ = socket.recv_fds(channel, MOST, 1)
    if not line:
        return _end
    (output,) = fds
    if pid := os.fork():
        os.close(output)
        pidfd = os.pidfd_open(pid)
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [pidfd]))]
        channel.sendmsg([str(pid).encode()], rights)
        os.close(pidfd)
        return None
    channel.close()
    os.close(parent)
    return mains[_become(json.loads(line), output)]


def _become(request: dict[str, Any], output: int) -> str:
    """Become the daemon of this request, or its clock; returns which."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    os.chdir(request["directory"])
    os.environ.clear()
    os.environ.update(request["environment"])
    words = [PRIVATE, request["options"]]
    sys.argv = ["wheeld", *words]
    sys.orig_argv = [sys.executable, "-P", "-m", "wheeld", *words]  # what a restart executes
    ours, theirs = socket.socketpair()
    if pid := os.fork():
        theirs.close()
        spawn.provide(spawn.CLOCK, spawn.Spawned(spawn.Forked(pid), ours))
        return ""
    ours.close()
    os.setsid()
    sys.argv = [spawn.CLOCK, str(theirs.detach())]
    return spawn.CLOCK


if __name__ == "__main__":
    main()
