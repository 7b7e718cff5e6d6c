"""One daemon and its crew: the driver starts, stops and kills them, and keeps track of all."""

from __future__ import annotations

import functools
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np

from proofs.torture.account import Verdict
from proofs.torture.crew import Crew, Life
from proofs.torture.daemon import Daemon, DaemonFailed, Outage
from proofs.torture.history import Birth
from proofs.torture.ledger import SEATING, SEATS, Command, Memory
from proofs.torture.worker import BURST_NS

BACK_SECONDS: Final = 30.0
"""Seconds within which a clock must be back, or a command obeyed."""
LOAD_SECONDS: Final = 0.2
"""Seconds to wait for workers to come back; on a busy machine it takes longer, and the faults go
on."""
STEP_SECONDS: Final = 0.002
BURST_WINDOW_NS: Final = 3_000_000
"""Within so long after it is due a burst is delivered, on a machine that has time."""


class Drive:
    """A daemon, a crew, and the faults done to them; a context manager that ends all processes. It
    empties `memory`; `seed` and its `number` in the run make its random numbers; `tick` is called
    often, and may raise."""

    def __init__(
        self,
        memory: Memory,
        seed: int,
        number: int,
        first_life: int,
        logs: Path,
        tick: Callable[[], None],
        options: tuple[str, ...] = (),
    ) -> None:
        self.memory, self.tick = memory, tick
        self.random = random.Random(f"{seed}-drive-{number}")
        self.verdict = Verdict()
        self.epochs = 0
        """How often a clock may have begun because of what was done."""
        self.stale = np.zeros(0, np.uint64)
        """Timers that may still be armed, because their worker died before it noted their ids."""
        self.births: list[Birth] = []
        """For the workers that live since earlier rounds."""
        self.stories: list[str] = []
        self.descriptors = 0
        memory.clear()
        self.daemon = Daemon(logs / f"daemon-{number}.log", options)
        log = logs / f"workers-{number}.log"
        self.crew = Crew(memory, str(self.daemon.directory), seed, log, first_life)
        self._respawning = True
        self._killed: int | None = None
        self._paused: list[tuple[float, str, Callable[[], None]]] = []

    def __enter__(self) -> Drive:
        try:
            self.daemon.serve()
            self.descriptors = self.daemon.descriptors()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        try:
            for _, _, resume in self._paused:
                resume()
            self.crew.close()
        finally:
            self.daemon.__exit__()

    # -- keeping it going -----------------------------------------------------------------------

    def mind(self) -> None:
        """Start and resume the workers that are due, and record the cause of each death."""
        self.tick()
        self.crew.mind()
        now = time.monotonic()
        for entry in [entry for entry in self._paused if entry[0] <= now]:
            self._paused.remove(entry)
            entry[2]()
        process = self.daemon.process
        if process is not None and process.poll() is not None:
            raise DaemonFailed(f"the supervisor ended by itself with {process.returncode}")
        if self._respawning:
            for seat in range(SEATS):
                if self.crew.in_seat(seat) is None:
                    self.crew.bear(seat, self._absence(seat))

    def _absence(self, seat: int) -> float:
        longest = 0.5 if SEATING[seat].policy == "keep" else 0.06
        return self.random.choice((0.0, self.random.random() * longest))

    def wait(self, holds: Callable[[], bool], seconds: float = BACK_SECONDS) -> bool:
        """Keep everything going until a condition holds. False: it did not hold in time."""
        give_up = time.monotonic() + seconds
        while not holds():
            if time.monotonic() > give_up:
                return False
            self.mind()
            time.sleep(STEP_SECONDS)
        return True

    def pause(self, seconds: float) -> None:
        self.wait(lambda: False, seconds)

    def aim(self) -> None:
        """Wait until a burst is being delivered, or nearly so; half the time, until any moment."""
        if self.random.random() < 0.5:
            self.pause(self.random.expovariate(12.0))
            return
        now = time.monotonic_ns()
        target = (now // BURST_NS + 1) * BURST_NS + self.random.randrange(BURST_WINDOW_NS)
        self.pause(max((target - now) / 1e9 - 2 * STEP_SECONDS, 0.0))
        time.sleep(max((target - time.monotonic_ns()) / 1e9, 0.0))

    def command(self, command: Command, seconds: float = BACK_SECONDS) -> None:
        """Make all workers obey a command; a worker that does not counts as hung."""
        self._respawning = command != Command.LEAVE
        self.crew.command(command)
        if not self.wait(lambda: self.crew.obeyed(command), seconds):
            stages = self.memory.board["stage"][:SEATS].tolist()
            raise DaemonFailed(f"workers do not obey {command.name}; they are at {stages}", "hung")

    # -- faults ---------------------------------------------------------------------------------

    def victims(self, most: int) -> list[Life]:
        living = [life for life in self.crew.living() if not life.killed and not life.stopped]
        return self.random.sample(living, min(len(living), self.random.randint(1, most)))

    def await_load(self) -> None:
        """Mostly, wait until most workers are at work, so that those that die leave something."""
        if self.random.random() < 0.8:
            self.wait(lambda: self.crew.working() >= SEATS - 3, LOAD_SECONDS)

    def kill_workers(self, lives: list[Life]) -> int:
        for life in lives:
            self.crew.kill(life)
        return len(lives)

    def kill_clock(self) -> bool:
        """Send SIGKILL. False: there is none now."""
        self._killed = self.daemon.find_clock()
        if not self.daemon.signal_clock(signal.SIGKILL):
            return False
        self.epochs += 1
        if not self.daemon.outages or self.daemon.outages[-1].until:
            self.daemon.outages.append(Outage("clock", time.monotonic_ns()))
        return True

    def await_clock(self, epoch: int) -> None:
        back = self.wait(lambda: self.daemon.header("epoch") > epoch and self.clock_drives())
        if self.daemon.outages:
            self.daemon.outages[-1].until = time.monotonic_ns()
        if not back:
            raise DaemonFailed(f"no clock came back within {BACK_SECONDS:.0f} s", "hung")

    def await_other_clock(self) -> None:
        """Wait until there is another clock process than the one killed last, whatever it does."""
        if not self.wait(lambda: self.daemon.find_clock() not in (None, self._killed)):
            raise DaemonFailed(f"no clock was started within {BACK_SECONDS:.0f} s", "hung")

    def clock_drives(self) -> bool:
        """Is there a clock, and does its daemon say that it runs?"""
        return self.daemon.find_clock() is not None and self.daemon.header("daemon_state") == 1

    def kill_supervisor(self) -> None:
        process = self.daemon.process
        assert process is not None
        outage = Outage("supervisor", time.monotonic_ns())
        self.daemon.outages.append(outage)
        self.epochs += 1
        process.kill()
        process.wait()
        self.daemon.process = None
        self.pause(self.random.choice((0.0, self.random.random() * 0.3)))
        self.daemon.serve()
        outage.until = time.monotonic_ns()

    def freeze(self, pidfd: int, seconds: float, what: str) -> None:
        """SIGSTOP a process of the daemon for a while; takes the pidfd over."""
        outage = Outage(what, time.monotonic_ns())
        self.daemon.outages.append(outage)
        signal.pidfd_send_signal(pidfd, signal.SIGSTOP)

        def resume() -> None:
            outage.until = time.monotonic_ns()
            try:
                signal.pidfd_send_signal(pidfd, signal.SIGCONT)
            except ProcessLookupError:
                pass  # a clock that was thought to hang was replaced
            finally:
                os.close(pidfd)

        self._paused.append((time.monotonic() + seconds, what, resume))

    def freeze_worker(self, life: Life, seconds: float) -> None:
        self.crew.stop(life)
        resume = functools.partial(self.crew.resume, life)
        self._paused.append((time.monotonic() + seconds, "worker", resume))

    def resume_all(self, what: str) -> None:
        for entry in [entry for entry in self._paused if entry[1] == what]:
            self._paused.remove(entry)
            entry[2]()

    def is_frozen(self, what: str) -> bool:
        return any(paused == what for _, paused, _ in self._paused)

    def supervisor_pidfd(self) -> int:
        """A pidfd of our own child; the caller closes it."""
        return os.pidfd_open(self.daemon.pid)

    def all_resumed(self) -> bool:
        return not self._paused
