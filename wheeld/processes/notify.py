"""Messages to the service manager (the sd_notify protocol)."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable

WATCHDOG_LOOKS = 5
"""Checks per watchdog interval: a check may fall into the replacement of a clock, and the next one
will succeed."""


def notify(state: str) -> bool:
    """Send `state`, such as "READY=1", to the service manager. False: no service manager
    listens."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return False
    if address.startswith("@"):
        address = "\0" + address[1:]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
        try:
            channel.connect(address)
            channel.sendall(state.encode())
        except OSError:  # not worth ending a daemon for
            return False
    return True


def watchdog_seconds() -> float | None:
    """Seconds within which the service manager wants a sign of life, or None."""
    microseconds = os.environ.get("WATCHDOG_USEC")
    for_pid = os.environ.get("WATCHDOG_PID")
    if not microseconds or (for_pid and int(for_pid) != os.getpid()):
        return None
    return int(microseconds) / 1e6


async def feed_watchdog(well: Callable[[float], bool]) -> None:
    """Send the service manager signs of life as often as it wants them. `well` tells whether the
    clock has made progress within a number of seconds."""
    import asyncio  # imported here: the clock, which has no loop, does without it

    interval = watchdog_seconds()
    while interval is not None:
        await asyncio.sleep(interval / WATCHDOG_LOOKS)
        if well(interval):
            notify("WATCHDOG=1")
