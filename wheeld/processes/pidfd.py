"""Signals to processes, and waiting for them, by pidfd."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal

END_SECONDS = 10.0
"""Seconds that a killed process may take to end: its memory is released first."""


def kill(pidfd: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)


def wait_for_end(pidfd: int) -> None:
    _await(pidfd, END_SECONDS)


def has_ended(pidfd: int | None) -> bool:
    return pidfd is not None and _await(pidfd, 0.0)


def _await(pidfd: int, seconds: float) -> bool:
    poller = select.poll()  # select() takes no descriptor above 1023
    poller.register(pidfd, select.POLLIN)
    return bool(poller.poll(seconds * 1000))


async def ended(pidfd: int) -> None:
    """Wait for the end without blocking the event loop; closes the pidfd."""
    loop = asyncio.get_running_loop()
    over = asyncio.Event()
    loop.add_reader(pidfd, over.set)
    try:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(over.wait(), END_SECONDS)
    finally:
        loop.remove_reader(pidfd)
        os.close(pidfd)
