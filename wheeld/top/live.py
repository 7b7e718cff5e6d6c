"""The loop of `wheeld top`: read the status, draw, handle keys."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import termios
import time
import tty
from collections.abc import Callable, Iterator
from typing import Any

from rich.console import Console
from rich.live import Live

from wheeld.top.figures import compare
from wheeld.top.screen import KEYS, screen
from wheeld_core.errors import WheelError

Look = tuple[float, dict[str, Any]]
"""When (monotonic, seconds), and the status."""


def look(read: Callable[[], dict[str, Any]]) -> Look:
    found = read()
    return time.monotonic(), found


def once(read: Callable[[], dict[str, Any]], seconds: float) -> dict[str, Any]:
    """Observe for so many seconds; returns what `figures.compare` does."""
    began, first = look(read)
    time.sleep(seconds)
    ended, second = look(read)
    return compare(first, second, ended - began)


@contextlib.contextmanager
def _keyboard() -> Iterator[int | None]:
    """Read keys one by one without echo; yields None if there is no keyboard."""
    if not sys.stdin.isatty():
        yield None
        return
    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)
    try:
        tty.setcbreak(fd)
        yield fd
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)


def _key(fd: int | None, seconds: float) -> str:
    """A key that is pressed within this time, or ""."""
    seconds = max(0.0, seconds)
    if fd is None:
        time.sleep(seconds)
        return ""
    waiting = select.poll()
    waiting.register(fd, select.POLLIN)
    if not waiting.poll(seconds * 1000):
        return ""
    return os.read(fd, 1).decode("ascii", "replace") or "q"  # the terminal is gone


def watch(read: Callable[[], dict[str, Any]], seconds: float, sort: str, console: Console) -> None:
    """Show the screen until q or Ctrl-C; if the daemon goes away, wait for it.

    Parameters
    ----------
    read : callable
        Returns the status, or raises WheelError or OSError.
    seconds : float
        Time between two readings.
    """
    found, notice = once(read, min(seconds, 0.2)), ""
    last = look(read)
    with _keyboard() as keyboard, Live(console=console, screen=True, auto_refresh=False) as live:
        while True:
            live.update(screen(found, sort, console.height, notice, keys=True), refresh=True)
            key = _key(keyboard, last[0] + seconds - time.monotonic())
            if key == "q":
                return
            sort = KEYS.get(key, sort)
            if time.monotonic() < last[0] + seconds:
                continue
            try:
                now = look(read)
                found, notice = compare(last[1], now[1], now[0] - last[0]), ""
                last = now
            except (WheelError, OSError) as error:
                notice, last = f"NO ANSWER: {error}", (time.monotonic(), last[1])
