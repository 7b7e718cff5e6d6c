"""Processes that share a purgatory: what they see, what they write down, how they are ended.

Conditions are bytes of one anonymous mapping, which forked processes share. The ledger is a file:
one line of 64 bytes per fact, appended by one write within a page: no death leaves half of it.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import select
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from children import start_child
from daemons import Daemon, map_segment, until
from purgatory_ops import Op, WatchView
from wheeld_client import Purgatory, Timers, connect
from wheeld_core import _native

LONG = 60.0
"""Seconds that a test waits for something before it fails."""
NAME = "produce"
"""Of everyone's purgatory."""
LINE = 64
"""Bytes of a line of the ledger; pages are multiples of it."""


def once(names: list[str], numbers: Any) -> Counter[tuple[Any, ...]]:
    return Counter({(name, number): 1 for name in names for number in numbers})


class Conditions:
    """Shared bytes, all zero at first."""

    def __init__(self, count: int) -> None:
        self._memory = mmap.mmap(-1, count)

    def __getitem__(self, i: int) -> int:
        return self._memory[i]

    def __setitem__(self, i: int, value: int) -> None:
        self._memory[i] = value


class Ledger:
    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = os.open(path, os.O_CREAT | os.O_APPEND | os.O_RDWR)

    def note(self, *fact: Any) -> None:
        line = json.dumps(fact).encode().ljust(LINE - 1) + b"\n"
        assert len(line) == LINE, fact
        os.write(self._fd, line)

    def read(self) -> Counter[tuple[Any, ...]]:
        return Counter(tuple(json.loads(line)) for line in self.path.read_text().splitlines())

    def close(self) -> None:
        os.close(self._fd)


class Waits(Op):
    """Waits for a shared condition, and writes down its end."""

    def __init__(
        self,
        crew: Crew,
        who: str,
        number: int,
        timeout: float | None = None,
        done: Callable[[], object] = lambda: None,
    ) -> None:
        super().__init__(timeout, number)
        self.crew, self.who, self.done = crew, who, done

    def try_complete(self) -> bool:
        self.tries += 1
        return bool(self.crew.true[self.name]) and self.force_complete()

    def on_complete(self) -> None:
        self.crew.ledger.note("expired" if self.is_expired else "done", self.who, self.name)
        self.done()


class Crew:
    """Processes of one daemon.

    Parameters
    ----------
    daemon : Daemon
        Running.
    ledger : Path
        A file that is not there yet.
    conditions : int
        How many there are.
    """

    def __init__(self, daemon: Daemon, ledger: Path, conditions: int = 4096) -> None:
        self.daemon = daemon
        self.true = Conditions(conditions)
        self.flags = Conditions(conditions)
        """For what members tell each other."""
        self.ledger = Ledger(ledger)
        self._members: dict[int, int] = {}

    def start(self, who: str, work: Callable[[Timers, Purgatory], object]) -> int:
        def run() -> None:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            with connect(str(self.daemon.directory), worker=who, reconnect_for=LONG) as timers:
                purgatory = Purgatory(timers, NAME)
                work(timers, purgatory)
                self.ledger.note("left", who, len(purgatory.shutdown()))

        pid, pipe = start_child(run)
        self._members[pid] = pipe
        return pid

    def kill(self, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        os.close(self._members.pop(pid))

    def join(self, pid: int) -> None:
        ended = select.poll()  # which takes descriptors above 1023, too
        ended.register(self._members[pid])
        assert ended.poll(LONG * 1000), f"{pid} does not end"
        with open(self._members.pop(pid), "rb") as pipe:
            said = json.loads(pipe.read())
        os.waitpid(pid, 0)
        assert said == "nothing", said

    def end(self) -> None:
        for pid in list(self._members):
            with contextlib.suppress(ProcessLookupError):
                self.kill(pid)
        self.ledger.close()

    def watchers(self, who: str, numbers: list[int], timeout: float | None = None) -> int:
        def work(timers: Timers, purgatory: Purgatory) -> None:
            for number in numbers:
                purgatory.try_complete_else_watch(Waits(self, who, number, timeout), [number])
            self.ledger.note("ready", who)
            while purgatory.num_delayed:
                timers.dispatch(LONG)

        pid = self.start(who, work)
        self.await_fact("ready", who)
        return pid

    # -- what they say and leave -----------------------------------------------------------------

    def facts(self, kind: str) -> Counter[tuple[Any, ...]]:
        found = self.ledger.read()
        return Counter({fact[1:]: count for fact, count in found.items() if fact[0] == kind})

    def await_fact(self, *fact: Any) -> None:
        until(lambda: self.ledger.read()[fact], f"{fact} in the ledger", LONG)

    def view(self) -> WatchView:
        return WatchView(map_segment(self.daemon.segment("watch"), _native.KIND_WATCH))

    def row(self, who: str) -> int:
        return int(self.daemon.workers()[who]["row"])

    def await_departure(self, *names: str) -> None:
        until(lambda: not set(names) & set(self.daemon.workers()), f"{names} departed", LONG)
