"""A worker that runs jobs: it receives occurrences, and hands each to a thread."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Final

from wheeld_client.connection.reconnection import Reconnection
from wheeld_client.jobs.definitions import define
from wheeld_client.jobs.execution import Execution
from wheeld_client.jobs.occurrences import Occurrences
from wheeld_client.jobs.records import group_of
from wheeld_client.timers.timers import connect, payload_of
from wheeld_core.errors import DaemonNotRunning, WheelError

if TYPE_CHECKING:
    from wheeld_client.jobs.jobs import Jobs

log = logging.getLogger("wheeld.jobs")

AWAY_SECONDS: Final = 0.5


class Runner:
    """Runs the jobs of one application in this process, until `stop`."""

    def __init__(
        self, jobs: Jobs, daemon: str, loop: asyncio.AbstractEventLoop | None, **options: Any
    ) -> None:
        self._jobs, self._loop = jobs, loop
        self._anew = False
        self.ended = self._stopping = False
        group = group_of(jobs.name)
        self.timers = connect(daemon, group=group, on_reconnect=self._came_back, **options)
        self._wheel = Occurrences(self.timers, jobs.name, jobs.version)
        self._free: SimpleQueue[None] = SimpleQueue()  # an item for each thread that is idle
        for _ in range(jobs.threads):
            self._free.put(None)

    def _came_back(self, event: Reconnection) -> None:
        log.warning("jobs of %r go on with a new daemon: %s", self._jobs.name, event)
        self._anew = True

    def stop(self) -> None:
        self._stopping = True
        self.timers._wake()

    def run(self) -> None:
        try:
            define(self._jobs, self._wheel)
            with ThreadPoolExecutor(self._jobs.threads, "wheeld-job") as pool:
                while not self._stopping:
                    self._turn(pool)
        finally:
            self.close()

    def close(self) -> None:
        self.ended = True
        self.timers.close()

    def _turn(self, pool: ThreadPoolExecutor) -> None:
        """Hand one occurrence to a thread; none is received while all are busy."""
        try:
            self._free.get(timeout=AWAY_SECONDS)
        except Empty:
            return
        given = False
        try:
            if self._anew:
                self._anew = False
                define(self._jobs, self._wheel)
            for event in self.timers.poll(
                AWAY_SECONDS, 1, hold=True, visibility=self._jobs.visibility
            ):
                if event["payload_size"]:
                    given = self._submit(pool, event)
                else:  # the end of a lock
                    self.timers.acknowledge(event)
        except DaemonNotRunning as error:
            log.warning("jobs of %r wait for the daemon: %s", self._jobs.name, error)
            time.sleep(AWAY_SECONDS)
        finally:
            if not given:
                self._free.put(None)

    def _submit(self, pool: ThreadPoolExecutor, event: Any) -> bool:
        """False: there is no room for another thread, or the interpreter ends: the occurrence is
        another worker's, and this one pauses."""
        box = [(event, payload_of(event))]
        try:
            pool.submit(self._take, box)
        except RuntimeError as error:  # the pool has queued it all the same
            with suppress(IndexError):  # a thread that is there has taken it
                box.pop()
                log.warning("jobs of %r leave an occurrence to others: %s", self._jobs.name, error)
                self.timers.nack(event)
                self._stopping |= not threading.main_thread().is_alive()
                if not self._stopping:
                    time.sleep(AWAY_SECONDS)
                return False
        return True

    def _take(self, box: list[tuple[Any, bytes]]) -> None:
        try:
            event, payload = box.pop()
        except IndexError:  # given back
            return
        try:
            try:
                run = self._wheel.received(event, payload)
            except ValueError as error:  # nobody can run it
                log.warning(
                    "a timer of another application was sent to the jobs of %r: %s",
                    self._jobs.name,
                    error,
                )
                self.timers.acknowledge(event)
                return
            Execution(self._jobs, self._wheel, self._loop, event, run).dispose()
        except WheelError as error:  # not acknowledged: it comes again
            log.warning("an occurrence in %r is left to others: %s", self._jobs.name, error)
        except Exception:
            log.exception("an occurrence in %r is left to others", self._jobs.name)
        finally:
            self._free.put(None)
