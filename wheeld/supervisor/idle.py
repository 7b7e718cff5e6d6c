"""Ends a daemon that nobody uses (`wheeld start --idle-exit`).

It is in use while a worker is connected, while timers of a departed worker wait for its successor,
while a detached timer is pending or its expiration waits, and while a command talks to it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Final

from wheeld.resources.owned import Resources
from wheeld.supervisor.control_socket import ControlSocket
from wheeld.supervisor.workers import Workers

log = logging.getLogger("wheeld")

LOOKS: Final = 8
"""Number of checks within the time that it may be unused."""
MOST_SECONDS: Final = 5.0
"""Longest time between two checks."""


class Idleness:
    """Checks now and then whether anybody uses the daemon."""

    def __init__(self, resources: Resources, workers: Workers, control: ControlSocket) -> None:
        self._resources, self._workers, self._control = resources, workers, control

    def is_used(self) -> bool:
        tenants = self._workers.registry.tenants.values()
        return (
            self._control.connections > 0  # a hello may be on its way
            or any(not tenant.is_keeper for tenant in tenants)
            or int(self._resources.wheel.header["detached"]) > 0
            or self._resources.slots.pending() > 0  # one that the clock has not met yet
        )

    async def watch(self, seconds: float, end: Callable[[], None]) -> None:
        """Call `end` once nobody has used the daemon for that time. Nothing else runs between the
        last check and that call, so no worker can have connected in the meantime. A worker that
        connects later gets no answer, and asks the next daemon."""
        used = time.monotonic()
        while True:
            await asyncio.sleep(min(seconds / LOOKS, MOST_SECONDS))
            now = time.monotonic()
            if self.is_used():
                used = now
            elif now - max(used, self._workers.last_left) >= seconds:
                log.info("ends: nobody has used it for %g s", seconds)
                return end()
