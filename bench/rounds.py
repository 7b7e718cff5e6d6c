"""Contenders in turns: each in a process of its own, a round of each, then the next of each.

So drift of the machine hits all of them, and a ratio is one of the same round.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from multiprocessing.connection import Connection

from bench import processes
from bench.cases import Case, Sample
from bench.cases.servers import Missing

END_SECONDS = 20.0
"""For the end of a round that is under way, and of a rival's server."""


@dataclass
class Found:
    """Samples of each contender, round by round; and which contenders were missing, and why."""

    samples: dict[str, list[Sample]] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)


def _serve(case: Case, quick: bool, pipe: Connection) -> None:
    with closing(case(quick)) as samples:
        processes.ready(pipe)
        while pipe.recv():
            try:
                pipe.send((True, next(samples)))
            except Missing as what:
                pipe.send((True, str(what)))
                return
    pipe.send((True, None))


def _spin(pipe: Connection) -> None:
    processes.ready(pipe)
    while True:
        pass


@contextlib.contextmanager
def busy_core() -> Iterator[None]:
    """Keeps one core busy for as long as the block lasts."""
    spinner = processes.Background(_spin)
    try:
        spinner.receive()
        spinner.go()
        yield
    finally:
        spinner.stop()


def take(
    contenders: dict[str, Case], rounds: int, warm: bool, quick: bool, said: Callable[[str], None]
) -> Found:
    """So many rounds of each. With `warm`, one before that does not count.

    `said` is called with a contender's name after each of its rounds, the warm one too.
    """
    found = Found()
    with ExitStack() as stack:
        running = {}
        for name, case in contenders.items():
            running[name] = processes.Background(_serve, case, quick)
            stack.callback(running[name].end, END_SECONDS)
        for one in running.values():
            one.receive()
            one.go()
        for number in range(-warm, rounds):
            for name, one in list(running.items()):
                one.go()
                sample = one.receive()
                if isinstance(sample, str):
                    found.missing[name] = sample
                    del running[name]
                elif number >= 0:
                    found.samples.setdefault(name, []).append(sample)
                said(name)
        for one in running.values():
            one.pipe.send(False)
        for one in running.values():
            one.receive()
    return found
