"""Handles Ctrl-C and SIGTERM in commands that start processes and have to end them."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator


class Interrupted(Exception):
    """Ctrl-C, or SIGTERM."""


@contextlib.contextmanager
def flagged_signals() -> Iterator[Callable[[], None]]:
    """Only note Ctrl-C and SIGTERM; yields a function that raises `Interrupted` after one of them.

    A KeyboardInterrupt could come between the start of a process and the line that stores it, and
    leave the process behind.
    """
    flag: list[int] = []
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, lambda got, frame: flag.append(got)) for number in numbers]

    def tick() -> None:
        if flag:
            raise Interrupted

    try:
        yield tick
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
