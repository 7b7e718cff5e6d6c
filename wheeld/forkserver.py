"""Starts daemons within milliseconds: a process that has loaded all modules forks them.

Most of a daemon's start is loading Python modules, twice: for the supervisor and its clock.
The fork server loads them once; each daemon is a fork of it, and each clock is a fork of its
daemon. `wheeld_testing` uses it to give each test a daemon of its own.
"""

from __future__ import annotations

import array
import contextlib
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable
from typing import Any, Unpack

from wheeld import embedding
from wheeld.config.arguments import DaemonOptions
from wheeld.processes import descriptors, inherited, spawn, titles
from wheeld_core import trust
from wheeld_core.errors import WheelError

MOST = 1 << 17
"""Bytes of a request; the environment of the caller takes most of them."""
START = "start"


class ForkServer:
    """Starts daemons, each in a few milliseconds; a context manager that ends the server.

    One thread uses it at a time. When the process that made it dies, the server and each embedded
    daemon die, too.

    Raises
    ------
    OSError
        There is no room for a process.
    """

    def __init__(self) -> None:
        self._owner = os.getpid()
        ours, theirs = (
            socket.socket(fileno=trust.above_standard(end.detach()))
            for end in socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        )
        self._channel = ours
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "wheeld.forkserver", str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def embedded(
        self, **config: Unpack[DaemonOptions]
    ) -> contextlib.AbstractContextManager[embedding.EmbeddedDaemon]:
        """As `wheeld.embedded`, with the same options and errors."""
        return embedding.running(
            lambda options, out: self._fork([spawn.PRIVATE, options], out), dict(config)
        )

    def start(self, *words: str, output: int = 2) -> DaemonProcess:
        """Run `wheeld start WORDS`, with the environment and the directory of the caller.

        Unlike an embedded daemon, it outlives the caller, which waits only until the daemon serves.

        Parameters
        ----------
        *words
            Its command line: `"--name", "x"`, ...
        output : int
            The descriptor for its messages.

        Returns
        -------
        DaemonProcess

        Raises
        ------
        WheelError
            The server is gone, or belongs to another process.
        """
        return self._fork([START, *words], output)

    def _fork(self, words: list[str], output: int) -> DaemonProcess:
        if os.getpid() != self._owner:
            raise WheelError(
                "this fork server belongs to another process: make one in this process"
            )
        request = {"words": words, "environment": dict(os.environ), "directory": os.getcwd()}
        try:
            socket.send_fds(self._channel, [json.dumps(request).encode()], [output])
            answer, fds, _, _ = socket.recv_fds(self._channel, 64, 2)
        except OSError as error:
            raise WheelError(f"the fork server (pid {self.pid}) is gone: {error}") from error
        if not answer:
            raise WheelError(f"the fork server (pid {self.pid}) is gone; its message is on stderr")
        return DaemonProcess(int(answer), *map(trust.above_standard, fds))

    def close(self) -> None:
        """End the server. May be called twice. It does not end the daemons; their starters do."""
        self._channel.close()
        if os.getpid() == self._owner:
            self._process.wait()

    def __enter__(self) -> ForkServer:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class DaemonProcess:
    """A daemon's process, which is a child of the fork server; it has the methods of `Popen` that
    apply.

    Attributes
    ----------
    pid : int
        Its process id.
    returncode : int or None
        As in `subprocess.Popen`; 1 if the server has ended before it.
    """

    def __init__(self, pid: int, pidfd: int, result: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._pidfd, self._result = pidfd, result
        self._reading = threading.Lock()
        # as long as anybody may wait or signal: a closed descriptor could be another's by then
        for fd in (pidfd, result):
            weakref.finalize(self, os.close, fd)

    def poll(self) -> int | None:
        """The exit code, or None while it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(0.0)
        return None

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; subprocess.TimeoutExpired if it does not come in time."""
        if self.returncode is None:
            patience = None if timeout is None else timeout * 1000
            # the second: without the server its code is not to be had, its end is
            for fd in (self._result, self._pidfd):
                waiting = select.poll()
                waiting.register(fd, select.POLLIN)
                if not waiting.poll(patience):
                    raise subprocess.TimeoutExpired("wheeld", timeout or 0.0)
            with self._reading:
                if self.returncode is None:
                    self.returncode = int(os.read(self._result, 16) or 1)
        return self.returncode

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)


# -- the server's side -----------------------------------------------------------------------------


class DaemonForker:
    """Forks daemons for the process at the other end of a channel, and reports how each ended."""

    def __init__(self, channel: socket.socket, mains: dict[str, Callable[[], None]]) -> None:
        self._channel, self._mains = channel, mains
        self._parent = os.pidfd_open(os.getppid())
        self._running: dict[int, tuple[int, int]] = {}
        """pidfd -> pid, and the pipe for its exit code"""

    def serve(self) -> Callable[[], None] | None:
        """Serve until the caller is gone; returns None. In each fork, returns the request that it
        must carry out."""
        while True:  # bounded by its parent's life; one request a round
            waiting = select.poll()
            for fd in (self._channel.fileno(), self._parent, *self._running):
                waiting.register(fd, select.POLLIN)
            ready = dict(waiting.poll())
            for pidfd in ready.keys() & self._running.keys():
                self._report(pidfd)
            if self._parent in ready:
                return None
            if self._channel.fileno() in ready:
                line, fds, _, _ = socket.recv_fds(self._channel, MOST, 1)
                if not line:
                    return None
                if (be := self._fork(json.loads(line), *fds)) is not None:
                    return be

    def _report(self, pidfd: int) -> None:
        pid, result = self._running.pop(pidfd)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        with contextlib.suppress(BrokenPipeError):  # nobody wants to know
            os.write(result, str(code).encode())
        os.close(result)
        os.close(pidfd)

    def _fork(self, request: dict[str, Any], output: int) -> Callable[[], None] | None:
        kind = request["words"][0]
        theirs, result = os.pipe()
        if not (pid := os.fork()):
            for fd in (theirs, result, self._parent, self._channel.detach()):
                os.close(fd)
            for pidfd, (_, other) in self._running.items():
                os.close(pidfd)
                os.close(other)
            _become(request, output)
            return self._mains[kind]
        pidfd = os.pidfd_open(pid)
        self._running[pidfd] = (pid, result)
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [pidfd, theirs]))]
        self._channel.sendmsg([str(pid).encode()], rights)
        os.close(theirs)
        os.close(output)
        return None


def main() -> None:
    """Serve until the caller has ended; in a fork, run the forked process to its end."""
    inherited.set_right()
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    gc.disable()
    import wheeld.clock.process  # noqa: F401 - loads numpy; the clocks share it
    from wheeld.supervisor import launch

    titles.load()
    gc.freeze()
    descriptors.take_all()
    # Ctrl-C is for the caller, who ends us.
    interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)
    with socket.socket(fileno=int(sys.argv[1])) as channel:  # a fork has let go of it
        mains = {spawn.PRIVATE: launch.main, START: lambda: launch.start(sys.argv[2:])}
        be = DaemonForker(channel, mains).serve()
    if be is None:
        return
    signal.signal(signal.SIGINT, interrupt)
    spawn.run_fork(be)


def _become(request: dict[str, Any], output: int) -> None:
    """Become the daemon of this request, with its clock forked."""
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    os.chdir(request["directory"])
    os.environ.clear()
    os.environ.update(request["environment"])
    words = request["words"]
    sys.argv = ["wheeld", *words]
    sys.orig_argv = [sys.executable, "-P", "-m", "wheeld", *words]  # what a restart executes
    from wheeld.clock import process

    spawn.fork_ahead(spawn.CLOCK, process.main)


if __name__ == "__main__":
    main()
