"""How a daemon ends: for good, leaving its memory, or to execute the program anew."""

from __future__ import annotations

import asyncio
import enum
import logging
import os
import time
from collections.abc import Coroutine
from typing import Any

from wheeld.resources.handover import Handover
from wheeld.resources.leftovers import RUNNING
from wheeld.supervisor.control.control_socket import ControlSocket
from wheeld.supervisor.parts import Parts
from wheeld_core import _native
from wheeld_core.errors import WheelError

log = logging.getLogger("wheeld")


class Wish(enum.Enum):
    """What is to be left."""

    NOTHING = enum.auto()
    """A stop: pending timers go into the last snapshot, with --state-dir."""
    MEMORY = enum.auto()
    """A temporary stop: workers go on, and the next start takes the memory over."""
    CLOCK = enum.auto()
    """A restart in place, with the same layout: even the clock keeps running."""
    SNAPSHOT = enum.auto()
    """A restart in place, with another layout: a stop for the workers."""


class Ending:
    """The end of one daemon.

    Parameters
    ----------
    parts : Parts
        Its parts, none of which is waiting any more.
    control : ControlSocket
        Where its connections are.
    wish : Wish
        What to leave; it may turn out that less can be left.
    """

    def __init__(self, parts: Parts, control: ControlSocket, wish: Wish) -> None:
        self._parts = parts
        self._control = control
        self._wish = wish

    async def run(self, server: asyncio.Server | None) -> Handover | None:
        """Clean up; if one step fails, the others are still carried out.

        Returns
        -------
        Handover or None
            For the program that this process executes next.
        """
        its = self._parts
        listener = -1
        if server is not None:
            if self._wish in (Wish.CLOCK, Wish.SNAPSHOT):
                listener = os.dup(server.sockets[0].fileno())
            server.close()
        await self._step(self._control.drop_connections())
        await self._step(its.workers.close())
        await self._step(its.exporter.stop())
        if listener >= 0:
            log.info("restarts in place")
        next_one = Handover(os.getpid(), its.restarts + 1, listener=listener)
        if (
            self._wish is Wish.CLOCK
            and self._may_leave()
            and await self._step(self._hand(next_one))
        ):
            return next_one
        kept = await self._stop_clock()
        if self._wish is Wish.SNAPSHOT and not kept:
            next_one.ended_ns = time.monotonic_ns()
            its.resources.leave_locked(next_one, discard=True)
            return next_one
        if listener >= 0:
            os.close(listener)
        its.resources.close(discard=not (kept or its.clock.locked_out))
        return None

    def _may_leave(self) -> bool:
        its = self._parts
        return its.resources.damage() is None and (its.served or its.resources.taken_over)

    async def _hand(self, next_one: Handover) -> None:
        its = self._parts
        await its.recorder.leave()
        if (clock := await its.clock.leave_running()) is not None:
            next_one.clock_pid, next_one.clock_channel = clock
        next_one.ended_ns = time.monotonic_ns()
        its.resources.leave_locked(next_one)

    async def _stop_clock(self) -> bool:
        """End the clock and the processes that depend on it; returns whether the memory is left."""
        its = self._parts
        wanted = self._wish in (Wish.MEMORY, Wish.CLOCK)
        sound = its.resources.damage() is None
        keep = (wanted or its.failed is not None) and self._may_leave()
        await self._step(its.clock.stop(for_good=not keep))
        await self._step(its.recorder.stop())
        if sound and not await self._step(its.snapshots.write_last()) and not keep:
            keep = True
            _native.set_daemon_state(its.resources.memories["wheel"], RUNNING)
        if keep and wanted:
            await self._step(self._say_that_it_stays())
        if keep and not its.clock.locked_out:
            log.log(
                logging.INFO if wanted and its.failed is None else logging.ERROR,
                "the memory stays, with %d timers: `wheeld start` continues with it",
                len(its.resources.slots.armed()),
            )
        return keep

    async def _say_that_it_stays(self) -> None:
        its = self._parts
        snapshot = its.config.state_dir is not None and its.failed is None
        its.resources.write_daemon_file(kept={"snapshot": snapshot})

    async def _step(self, step: Coroutine[Any, Any, None]) -> bool:
        """Run one step; false if it failed, which the daemon's exit code shows."""
        try:
            await step
        except Exception as error:
            if not isinstance(error, OSError | WheelError):
                log.exception("an internal error while the daemon was ending")
            self._parts.fail(str(error) or repr(error))
            return False
        return True
