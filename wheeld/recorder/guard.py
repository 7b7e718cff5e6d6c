"""Keeps a recorder running; its failures never end the daemon.

While there is no recorder the ring fills; the clock counts events that do not fit, and never waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Iterable
from typing import Any, Final

from wheeld.processes import notify
from wheeld.processes.children import ChildGuard
from wheeld.processes.messages import Notice, Order
from wheeld.processes.spawn import RECORDER
from wheeld.resources.owned import RECORDER_LOCK, Resources
from wheeld.tables.registry import Tenant
from wheeld_core.control import Message
from wheeld_core.views import record
from wheeld_core.views.trace import TraceView

log = logging.getLogger("wheeld")

START_SECONDS = 30.0
"""Seconds that the daemon's start waits for the first recorder."""
STOP_PATIENCE = 10.0
"""Seconds that a stopping recorder may go without progress, which is processor time or a
message."""
STOP_TRIES = 3
NAMES: Final = 10_000
SEGMENTS: Final = ("wheel", "registry", "pools", "trace")


class RecorderGuard(ChildGuard):
    """Keeps one recorder running at a time; none without --trace."""

    def __init__(self, resources: Resources) -> None:
        super().__init__(RECORDER)
        self._resources, self._config = resources, resources.config
        self._names: dict[tuple[int, int], tuple[str, int]] = {}
        self._ready = asyncio.Event()
        self._moved = asyncio.Event()
        self._stopped: Message | None = None
        self._troubles: dict[str, str] = {}
        self.last_file: str | None = None
        self._view: TraceView | None = None
        if "trace" in resources.memories:
            self._view = TraceView(resources.memories["trace"])

    # -- start ----------------------------------------------------------------------------------

    def launch(self, tenants: Iterable[Tenant]) -> None:
        if self._view is not None:
            for tenant in tenants:
                self.arrived(tenant)
            self._start_keeping()

    async def started(self) -> None:
        """Wait for the first recorder, up to START_SECONDS."""
        if self._keeping is not None:
            try:
                await asyncio.wait_for(self._ready.wait(), START_SECONDS)
            except TimeoutError:
                log.warning("the recorder has not started yet; the daemon runs without it")

    def _failed(self, error: Exception | None, pause: float) -> None:
        self._ready.set()  # a start that waits for it may go on
        if error is not None:
            log.warning("cannot start the recorder: %r; the next try is in %.1f s", error, pause)
            return
        code = self._child.returncode if self._child else None
        log.warning("the recorder ended (exit code %s); the next starts in %.1f s", code, pause)

    def _greet(self) -> None:
        config, resources = self._config, self._resources
        token = int(record(resources.memories["wheel"], "head")["token"])
        self.send(
            Order.HELLO,
            **config.introduction,
            supervisor=os.getpid(),
            segments={kind: resources.names[kind] for kind in SEGMENTS},
            lock=str(resources.directory / RECORDER_LOCK),
            trace=str(resources.trace),
            every_ns=config.trace_every_ns,
            keep_ns=config.trace_keep_ns,
            most_bytes=config.trace_most_bytes,
            virtual=config.virtual_clock,
            host=socket.gethostname(),
            daemon=config.name,
            run=f"{token:016x}",
        )
        for key, known in self._names.items():
            self.send(Order.WORKER, worker=[*key, *known])
        self.send(Order.BEGIN)

    # -- while it runs --------------------------------------------------------------------------

    def arrived(self, tenant: Tenant) -> None:
        """A worker has a row; call it before the clock serves it."""
        key = tenant.row, tenant.incarnation & 0xFFFFFFFF
        if self._view is None or key in self._names:
            return
        self._names[key] = tenant.name, self._view.tail
        for old in list(self._names)[: max(0, len(self._names) - NAMES)]:
            del self._names[old]
        self.send(Order.WORKER, worker=[*key, *self._names[key]])

    def _heard(self, message: Message) -> None:
        self._moved.set()
        op = message["op"]
        if op == Notice.READY:
            self._ready.set()
            log.info("recorder (pid %s) writes to %s", self.pid, self._resources.trace)
        elif op == Notice.FILE:
            self.last_file = message["path"]
        elif op == Notice.WARNING:
            log.warning("recorder: %s", message["text"])
        elif op == Notice.TROUBLE:
            self._trouble(message["who"], message["text"])
        elif op == Notice.STOPPED:
            self._stopped = message

    def _trouble(self, who: str, text: str | None) -> None:
        before = self._troubles.pop(who, None)
        if text is not None:
            self._troubles[who] = text
            log.warning(
                "the recorder cannot write (%s); the clock continues, and counts dropped events",
                text,
            )
        elif before is not None:
            log.warning("the recorder can write again")

    def status(self) -> dict[str, Any] | None:
        """Its part of `wheeld status`; None without --trace."""
        if self._view is None:
            return None
        counts, lost = self._view.counts(), self._view.lost()
        return {
            "directory": str(self._resources.trace),
            "ring": self._view.size,
            "recorded": sum(counts.values()) - sum(lost.values()),
            "lost": sum(lost.values()),
            "behind": self._view.waiting,
            "recorder_pid": self.pid,
            "restarts": self.restarts,
            "last_file": self.last_file,
            "trouble": "; ".join(self._troubles.values()) or None,
        }

    # -- stop -----------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Make the recorder write everything that the clock recorded; the clock has ended.

        A recorder without visible progress is killed, so that the daemon's stop does not hang.
        """
        if self._keeping is None:
            return
        self._stopping = True
        for _ in range(STOP_TRIES):
            if self._stopped is not None:
                break
            if self._keeping.done() or not self._connected:
                await self._restart()
            await self._ask_to_stop()
        await self._end_keeping()
        self._say_what_is_left()

    async def leave(self) -> None:
        self._stopping = True
        await self._end_keeping()

    async def _restart(self) -> None:
        assert self._keeping is not None
        await self._end_keeping()
        self._ready.clear()
        self._keeping = asyncio.create_task(self._run())
        ready = asyncio.create_task(self._ready.wait())
        await asyncio.wait(
            {self._keeping, ready}, timeout=START_SECONDS, return_when=asyncio.FIRST_COMPLETED
        )
        ready.cancel()

    async def _ask_to_stop(self) -> None:
        """Ask it to stop, and wait until it has ended; kill it when it hangs."""
        assert self._keeping is not None
        self.send(Order.STOP)
        used = -1.0
        while not self._keeping.done():
            notify.notify(f"EXTEND_TIMEOUT_USEC={3 * STOP_PATIENCE * 1e6:.0f}")
            self._moved.clear()
            moved = asyncio.create_task(self._moved.wait())
            await asyncio.wait(
                {self._keeping, moved}, timeout=STOP_PATIENCE, return_when=asyncio.FIRST_COMPLETED
            )
            still = not moved.done() and used == (used := self._processor_time())
            moved.cancel()
            if self._keeping.done():
                return
            if still:
                log.warning("the recorder (pid %s) made no progress: killed", self.pid)
                self._stopped = {"left": 0}  # another one would hang, too
                self.kill()
                return

    def _processor_time(self) -> float:
        """CPU time of the recorder, in seconds; -1: it is gone."""
        import psutil  # at the end only: a start does without it

        with contextlib.suppress(psutil.Error, OSError):
            if (pid := self.pid) is not None:
                return sum(psutil.Process(pid).cpu_times()[:2])
        return -1.0

    def _say_what_is_left(self) -> None:
        assert self._view is not None
        if self._resources.damage() is not None:
            return
        if (left := self._view.waiting) > 0:
            log.warning("%d events are not in the trace: the recorder could not write them", left)
        elif self._stopped is None or self._stopped["left"]:
            log.warning(
                "the end of the trace stays in %s/_spool; the next daemon that records there "
                "converts it to Parquet",
                self._resources.trace,
            )
