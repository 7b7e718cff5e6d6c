"""Signal handling of the daemon's processes: only signals that are meant to end a process do so.

By default most signals end a process without any clean-up, even those sent by mistake or to a whole
process group.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the clock, which has no loop, starts without it
    import asyncio
    from types import FrameType

log = logging.getLogger("wheeld")

STOP = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)
KEEP = signal.SIGPWR
"""An orderly end that leaves the memory to the next daemon, as `wheeld stop --keep`; for a service
manager's restart (RestartKillSignal=). It is hardly ever sent by mistake."""
RELOAD = signal.SIGHUP
IGNORED = (
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGALRM,
    signal.SIGVTALRM,
    signal.SIGPROF,
    signal.SIGIO,
    *([signal.SIGSTKFLT] if hasattr(signal, "SIGSTKFLT") else []),
    *range(signal.SIGRTMIN, signal.SIGRTMAX + 1),
)
HANDLED = (*STOP, KEEP, RELOAD, *IGNORED)
"""All signals that would end a process, except SIGKILL and signals that report a fault of the
process."""


def hold() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)


def handle(
    loop: asyncio.AbstractEventLoop,
    stop: Callable[[], None],
    keep: Callable[[], None],
    reload: Callable[[], None],
) -> None:
    """Handle signals in the event loop, including those that were blocked."""
    for number in STOP:
        loop.add_signal_handler(number, stop)
    loop.add_signal_handler(KEEP, keep)
    loop.add_signal_handler(RELOAD, reload)

    def say(number: int, frame: FrameType | None) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(_say, number)

    for number in IGNORED:  # asyncio's own way takes several times as long, for 40 of them
        signal.signal(number, say)
        signal.siginterrupt(number, False)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED)


def leave_to_the_supervisor() -> None:
    for number in HANDLED:
        signal.signal(number, signal.SIG_IGN)


def _say(number: int) -> None:
    known = number in set(signal.Signals)
    name = signal.Signals(number).name if known else f"signal {number}"
    log.warning("%s has no meaning here and is ignored", name)
