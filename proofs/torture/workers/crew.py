"""The crew: the workers as the driver sees them. Births, deaths, pauses, and who hangs."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from proofs.torture.workers import spawner
from proofs.torture.workers.ledger import PROBE, SEATS, Command, Memory

STALL_SECONDS: Final = 30.0
"""Seconds without progress of its counter after which a running worker counts as hung."""
END_SECONDS: Final = 20.0


@dataclass
class Life:
    """One worker process: number, seat, times in ns (0: not yet)."""

    number: int
    seat: int
    pid: int
    pidfd: int
    began: int
    killed: int = 0
    ended: int = 0
    status: int | None = None
    stopped: bool = False
    beat: int = -1
    moved: float = 0.0

    @property
    def gone(self) -> bool:
        """Has it ended?"""
        return self.status is not None

    def send(self, number: int) -> None:
        """Send it a signal; nothing if it has ended."""
        if not self.gone:
            signal.pidfd_send_signal(self.pidfd, number)


class Crew:
    """The spawner and the lives that it gave.

    Parameters
    ----------
    memory : Memory
        The ledgers.
    daemon : str
        The daemon that workers connect to.
    seed : int
        Of the run.
    log : Path
        Where the workers' messages go.
    first_life : int
        The number of the first life.
    """

    def __init__(self, memory: Memory, daemon: str, seed: int, log: Path, first_life: int) -> None:
        self.memory = memory
        self.lives: dict[int, Life] = {}
        self.crashed: list[str] = []
        self.hung: list[str] = []
        self.next_life = first_life
        self._asked: set[int] = set()
        self._due: dict[int, float] = {}
        self._process, self._channel = spawner.start(memory, daemon, seed, log)
        self._heard_of = select.poll()
        self._heard_of.register(self._channel, select.POLLIN)

    # -- births and deaths ----------------------------------------------------------------------

    def bear(self, seat: int, after: float = 0.0, **more: Any) -> int:
        """Ask for a new life in a seat; returns its number."""
        number, self.next_life = self.next_life, self.next_life + 1
        self.lives[number] = Life(number, seat, 0, -1, 0)
        self._due[number] = time.monotonic() + after
        self._asked.add(number)
        if more:
            self._request(number, **more)
        return number

    def _request(self, number: int, **more: Any) -> None:
        del self._due[number]
        life = self.lives[number]
        self.memory.board["stage"][life.seat] = 0
        self._channel.send(json.dumps({"seat": life.seat, "life": number, **more}).encode())

    def mind(self) -> None:
        """Handle births, deaths and hung workers; call it often."""
        now = time.monotonic()
        for number in [number for number, due in self._due.items() if due <= now]:
            self._request(number)
        while self._heard_of.poll(0):
            message, fds, _, _ = socket.recv_fds(self._channel, spawner.MAX_MESSAGE, 1)
            if not message:
                raise RuntimeError("the spawner is gone; see its messages")
            self._heard(json.loads(message), fds)
        for life in self.living():
            self._watch(life, now)

    def _heard(self, message: dict[str, Any], fds: list[int]) -> None:
        now = time.monotonic_ns()
        if "born" in message:
            life = self.lives[message["born"]]
            life.pid, life.pidfd, life.began = message["pid"], fds[0], now
            life.moved = time.monotonic()
            self._asked.discard(life.number)
            return
        life = self.lives[message["ended"]]
        life.status, life.ended = message["status"], now
        os.close(life.pidfd)
        if life.status not in (0, -signal.SIGKILL if life.killed else 0):
            self.crashed.append(f"worker life {life.number} in seat {life.seat}: {life.status}")

    def _watch(self, life: Life, now: float) -> None:
        beat = int(self.memory.board["beat"][life.seat])
        if beat != life.beat or life.stopped or life.killed:
            life.beat, life.moved = beat, now
        elif life.seat != PROBE and now - life.moved > STALL_SECONDS:
            self.hung.append(f"worker life {life.number} (seat {life.seat}) made no progress")
            life.send(signal.SIGUSR1)  # its stack, to its log
            time.sleep(0.2)
            self.kill(life)

    def living(self) -> list[Life]:
        """Lives that have begun and, as far as is known, not ended."""
        return [life for life in self.lives.values() if life.pidfd >= 0 and not life.gone]

    def working(self) -> int:
        """How many workers obey the last command."""
        stages = self.memory.board["stage"][:SEATS]
        return int((stages == self.memory.board["command"]).sum())

    def coming(self) -> bool:
        """Is there a requested life that has not begun?"""
        return bool(self._asked)

    def in_seat(self, seat: int) -> Life | None:
        """The latest life in a seat that is coming, there, or dying."""
        there = [life for life in self.lives.values() if life.seat == seat and not life.gone]
        return there[-1] if there else None

    def kill(self, life: Life) -> None:
        """SIGKILL, by pidfd."""
        if not life.gone and not life.killed:
            self.memory.board["stage"][life.seat] = 0
            life.killed = time.monotonic_ns()
            life.send(signal.SIGKILL)
            life.stopped = False

    def stop(self, life: Life) -> None:
        """SIGSTOP."""
        if not life.killed:
            life.stopped = True
            life.send(signal.SIGSTOP)

    def resume(self, life: Life) -> None:
        """SIGCONT."""
        life.stopped = False
        life.send(signal.SIGCONT)

    # -- commands -------------------------------------------------------------------------------

    def command(self, command: Command) -> None:
        """Tell all workers."""
        self.memory.board["command"] = int(command)

    def obeyed(self, command: Command) -> bool:
        """Have the workers in all seats reached this state?"""
        stages = self.memory.board["stage"][:SEATS]
        return bool((stages == int(command)).all()) and not self._asked

    def forget(self) -> None:
        """Drop what is over; numbers are not used again."""
        self.lives = {number: life for number, life in self.lives.items() if not life.gone}

    def close(self) -> None:
        """End all workers and the spawner."""
        for life in self.living():
            life.send(signal.SIGCONT)
            life.send(signal.SIGKILL)
            os.close(life.pidfd)
        self._channel.close()
        try:
            self._process.wait(END_SECONDS)
        finally:
            if self._process.poll() is None:
                self._process.kill()
                self._process.wait()
