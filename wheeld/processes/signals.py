"""What signals mean to the daemon's processes: none that is not meant to end them does.

What a signal does by default is the end of the process, without any clean-up, also for those that
somebody sends by mistake, or to a group of processes.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # the clock, which has no loop, starts without it
    import asyncio

log = logging.getLogger("wheeld")

STOP = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)
"""An orderly stop."""
KEEP = signal.SIGPWR
"""An orderly end that leaves the memory to the next daemon, as `wheeld stop --keep`; for a service
manager's restart (RestartKillSignal=). Nothing sends it by mistake."""
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
"""All that would end a process, but for SIGKILL and those that say that it is broken."""


def hold() -> None:
    """Let signals wait until `handle`: the daemon can clean up after itself from then on."""
    signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)


def handle(
    loop: asyncio.AbstractEventLoop,
    stop: Callable[[], None],
    keep: Callable[[], None],
    reload: Callable[[], None],
) -> None:
    """Handle signals, those that have waited, too, in the event loop."""
    for number in STOP:
        loop.add_signal_handler(number, stop)
    loop.add_signal_handler(KEEP, keep)
    loop.add_signal_handler(RELOAD, reload)
    for number in IGNORED:
        loop.add_signal_handler(number, _say, number)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED)


def leave_to_the_supervisor() -> None:
    """In its child processes: it is the supervisor that stops them."""
    for number in HANDLED:
        signal.signal(number, signal.SIG_IGN)


def _say(number: int) -> None:
    known = number in set(signal.Signals)
    name = signal.Signals(number).name if known else f"signal {number}"
    log.warning("%s has no meaning here and is ignored", name)
