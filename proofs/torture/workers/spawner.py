"""The spawner: one process, warmed up, that forks every worker.

A thousand deaths cost a thousand forks of a small process, not a thousand starts of an interpreter.
Requests and answers are JSON over a socket; with each birth comes a pidfd, opened before anybody
could reap the child, so that the driver never signals a stranger. When the driver goes, however it
goes, the spawner kills its children and ends.

    {"seat": 3, "life": 17}             fork a worker into that seat
    {"seat": 8, "life": 18, "capacity": 65536}    fork the probe
    {"born": 17, "pid": 4711}           answer, with the pidfd
    {"ended": 17, "status": -9}         a child ended: exit code, or minus the signal
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

from proofs.torture.workers.ledger import PROBE, Memory
from proofs.torture.workers.roles import SEATING
from proofs.torture.workers.worker import Worker, probe

ROOT: Final = Path(__file__).resolve().parents[2]
MAX_MESSAGE: Final = 4096


class Spawner:
    """The process itself."""

    def __init__(self, channel: socket.socket, memory: Memory, config: dict[str, Any]) -> None:
        self._channel, self._memory, self._config = channel, memory, config
        self._children: dict[int, tuple[int, int]] = {}
        self._woken, wake = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        self._poll = select.poll()
        for readable in (channel.fileno(), self._woken):
            self._poll.register(readable, select.POLLIN)

    def run(self) -> None:
        """Serve until the driver's end of the channel closes."""
        while True:
            readable = [fd for fd, _ in self._poll.poll()]
            with contextlib.suppress(BlockingIOError):
                os.read(self._woken, 4096)
            self._reap()
            if self._channel.fileno() in readable:
                request = self._channel.recv(MAX_MESSAGE)
                if not request:
                    break
                self._fork(json.loads(request))
        for _, pidfd in self._children.values():
            signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        for pid in self._children:
            os.waitpid(pid, 0)

    def _reap(self) -> None:
        for pid in list(self._children):
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                life, pidfd = self._children.pop(pid)
                os.close(pidfd)
                ended = {"ended": life, "status": os.waitstatus_to_exitcode(status)}
                with contextlib.suppress(BrokenPipeError):  # the driver is gone; run() sees it
                    self._channel.send(json.dumps(ended).encode())

    def _fork(self, request: dict[str, Any]) -> None:
        pid = os.fork()
        if pid == 0:
            self._live(request)
        pidfd = os.pidfd_open(pid)  # still ours to reap: it cannot be somebody else
        self._children[pid] = request["life"], pidfd
        born = json.dumps({"born": request["life"], "pid": pid}).encode()
        socket.send_fds(self._channel, [born], [pidfd])

    def _live(self, request: dict[str, Any]) -> None:
        """In the child; does not return."""
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self._channel.close()
            for _, pidfd in self._children.values():
                os.close(pidfd)
            life, seat = request["life"], request["seat"]
            daemon = self._config["daemon"]
            if seat == PROBE:
                probe(self._memory, seat, life, daemon, request["capacity"])
            else:
                Worker(self._memory, SEATING[seat], life, daemon, self._config["seed"]).run()
            code = 0
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            sys.stderr.flush()
            os._exit(code)


def start(memory: Memory, daemon: str, seed: int, log: Path) -> tuple[Any, socket.socket]:
    """Start the spawner; returns its process and the driver's end of the channel."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    config = {"daemon": daemon, "seed": seed, "memory": memory.fd, "channel": theirs.fileno()}
    with theirs, log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "proofs.torture.workers.spawner", json.dumps(config)],
            cwd=ROOT,  # from where the module is
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=[memory.fd, theirs.fileno()],
            start_new_session=True,  # Ctrl-C is the driver's to handle
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # threads and forks do not mix
        )
    return process, ours


def main() -> None:
    """Entry point of the spawner."""
    config = json.loads(sys.argv[1])
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)  # the driver asks one that hangs
    channel = socket.socket(fileno=config["channel"])
    channel.set_inheritable(False)
    memory = Memory(config["memory"])
    gc.collect()
    gc.freeze()  # a child touches no more pages than it must
    Spawner(channel, memory, config).run()


if __name__ == "__main__":
    main()
