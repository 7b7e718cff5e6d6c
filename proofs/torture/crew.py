"""The crew: the workers as the driver sees them. Births, deaths, pauses, and who hangs.

Workers are forks of the driver, which has all that they need loaded: a thousand deaths cost a
thousand forks, not a thousand starts of an interpreter. The driver alone reaps them, so a process
id is its worker's until then. When the driver goes, however it goes, the kernel kills its workers.
"""

from __future__ import annotations

import ctypes
import faulthandler
import gc
import os
import signal
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

from proofs.torture.ledger import PROBE, SEATING, SEATS, Command, Memory
from proofs.torture.sharing import Sharer
from proofs.torture.worker import Worker, probe

STALL_SECONDS: Final = 30.0
"""Seconds without progress of its counter after which a running worker counts as hung."""
PR_SET_PDEATHSIG: Final = 1


@dataclass
class Life:
    """One worker process: number, seat, times in ns (0: not yet)."""

    number: int
    seat: int
    due: float
    pid: int = 0
    killed: int = 0
    ended: int = 0
    status: int | None = None
    stopped: bool = False
    beat: int = -1
    moved: float = 0.0

    @property
    def gone(self) -> bool:
        return self.status is not None

    def send(self, number: int) -> None:
        if not self.gone:
            os.kill(self.pid, number)


class Crew:
    """All lives; `first_life` is the number of the first."""

    def __init__(self, memory: Memory, daemon: str, seed: int, log: Path, first_life: int) -> None:
        self.memory = memory
        self.lives: dict[int, Life] = {}
        self.crashed: list[str] = []
        self.hung: list[str] = []
        self.next_life = first_life
        self.daemon, self._seed, self._log = daemon, seed, log

    # -- births and deaths ----------------------------------------------------------------------

    def bear(self, seat: int, after: float = 0.0) -> None:
        """Begin a new life in a seat, after so many seconds."""
        number, self.next_life = self.next_life, self.next_life + 1
        self.lives[number] = Life(number, seat, time.monotonic() + after)

    def _fork(self, life: Life) -> None:
        self.memory.board["stage"][life.seat] = 0
        driver = os.getpid()
        pid = os.fork()
        if not pid:
            self._live(life, driver)
        life.pid, life.moved = pid, time.monotonic()

    def _live(self, life: Life, driver: int) -> NoReturn:
        code = 1
        try:
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != driver:
                os._exit(code)
            os.setsid()  # Ctrl-C is the driver's to handle
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            sys.stdout = sys.stderr = self._log.open("a", buffering=1)
            faulthandler.register(signal.SIGUSR1, all_threads=True)
            gc.freeze()  # it touches no more of the driver's pages than it must
            if life.seat == PROBE:
                probe(self.memory, life.number, self.daemon)
            else:
                seat = SEATING[life.seat]
                kind = Sharer if seat.shares else Worker
                kind(self.memory, seat, life.number, self.daemon, self._seed).run()
            code = 0
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            os._exit(code)

    def mind(self) -> None:
        """Handle births, deaths and hung workers; call it often."""
        now = time.monotonic()
        for life in [life for life in self.lives.values() if not life.pid and life.due <= now]:
            self._fork(life)
        for life in self.living():
            ended, status = os.waitpid(life.pid, os.WNOHANG)
            if ended:
                self._bury(life, os.waitstatus_to_exitcode(status))
            else:
                self._watch(life, now)

    def _bury(self, life: Life, status: int) -> None:
        life.status, life.ended = status, time.monotonic_ns()
        if status not in (0, -signal.SIGKILL if life.killed else 0):
            self.crashed.append(f"worker life {life.number} in seat {life.seat}: {status}")

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
        return [life for life in self.lives.values() if life.pid and not life.gone]

    def working(self) -> int:
        stages = self.memory.board["stage"][:SEATS]
        return int((stages == self.memory.board["command"]).sum())

    def coming(self) -> bool:
        return any(not life.pid for life in self.lives.values())

    def in_seat(self, seat: int) -> Life | None:
        """The latest life in a seat that is coming, there, or dying."""
        there = [life for life in self.lives.values() if life.seat == seat and not life.gone]
        return there[-1] if there else None

    def kill(self, life: Life) -> None:
        if not life.gone and not life.killed:
            self.memory.board["stage"][life.seat] = 0
            life.killed = time.monotonic_ns()
            life.send(signal.SIGKILL)
            life.stopped = False

    def stop(self, life: Life) -> None:
        if not life.killed:
            life.stopped = True
            life.send(signal.SIGSTOP)

    def resume(self, life: Life) -> None:
        life.stopped = False
        life.send(signal.SIGCONT)

    # -- commands -------------------------------------------------------------------------------

    def command(self, command: Command) -> None:
        self.memory.board["command"] = int(command)

    def obeyed(self, command: Command) -> bool:
        stages = self.memory.board["stage"][:SEATS]
        return bool((stages == int(command)).all()) and not self.coming()

    def forget(self) -> None:
        self.lives = {number: life for number, life in self.lives.items() if not life.gone}

    def close(self) -> None:
        for life in self.living():
            life.send(signal.SIGKILL)
            os.waitpid(life.pid, 0)
