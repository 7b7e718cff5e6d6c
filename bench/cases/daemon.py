"""A daemon for one case, this process as its worker, and the CPU time of all of them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import wheeld
import wheeld_client
from bench.cases import Sample
from bench.processes import cpu_ns


class Spent:
    """CPU time of this process and of others, ns, since the last reading."""

    def __init__(self, *pids: int) -> None:
        self._clocks: list[Callable[[], int]] = [time.process_time_ns]
        self._clocks += [lambda pid=pid: cpu_ns(pid) for pid in pids]  # type: ignore[misc]
        self._before: list[int] = []
        self.start()

    def start(self) -> None:
        """Begin."""
        self._before = [clock() for clock in self._clocks]

    def each(self) -> list[int]:
        """CPU time of this process, and of each of the others."""
        pairs = zip(self._clocks, self._before, strict=True)
        return [clock() - before for clock, before in pairs]

    def parts(self, unit: str, scale: float) -> Sample:
        """CPU time of all, and of worker and clock by themselves, in a unit of so many ns."""
        used = self.each()
        names = ("CPU of the worker", "CPU of the clock")
        found = {f"{name}, {unit}": part / scale for name, part in zip(names, used, strict=False)}
        return {f"CPU of all, {unit}": sum(used) / scale, **found}


def pids(name: str) -> tuple[int, int]:
    """Process ids of the clock and of the supervisor."""
    facts = json.loads((Path(name) / "daemon.json").read_text())
    return facts["clock_pid"], facts["pid"]


@contextmanager
def worker(**config: Any) -> Iterator[tuple[wheeld_client.Timers, Spent]]:
    """This process as a worker of a daemon of its own."""
    with wheeld.embedded(**config) as name, wheeld_client.connect(name) as timers:
        yield timers, Spent(*pids(name))
