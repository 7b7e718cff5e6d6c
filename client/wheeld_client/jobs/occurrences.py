"""An application's jobs, as timers of the wheel.

Each job with a schedule has one pending timer, under its key, which is its next occurrence. The
payload has the planned time, the schedule and the version. While an occurrence runs there is no
such timer: before the occurrence is acknowledged, the next one is armed, counted from its planned
time. A lock is a timer that ends with its worker, or when the worker hangs.

A worker that starts begins only jobs without a definition: a job whose occurrence is being
delivered or run has no timer, either. The definition of a removed job stays, without a schedule, so
that no worker of an older version begins it again.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

from wheeld_client.jobs.arguments import packed
from wheeld_client.jobs.calendars import Calendar
from wheeld_client.jobs.records import (
    ACCOUNT,
    DEFINITION,
    NEXT,
    NOTING,
    PAUSED,
    RUNNING,
    UNCLAIMED,
    Account,
    Definition,
    Occurrence,
    Record,
    Unclaimed,
    boot_of,
    definition,
    group_of,
    read,
    written,
)
from wheeld_client.timers.keys import under
from wheeld_client.timers.policies import span_ns
from wheeld_client.timers.timers import Timers
from wheeld_core import _native
from wheeld_core.arguments import Seconds
from wheeld_core.errors import KeyInUse
from wheeld_core.timer_options import Conflict, Key

log = logging.getLogger("wheeld.jobs")

NEVER_NS: Final = 2**63 - 1 - 10**9
NOTE_SECONDS: Final = 1.0
"""How long to wait for a worker that was stopped while it noted a run."""
NOTE_TRIES: Final = 10_000
UNSEEN_SECONDS: Final = 60.0
"""After that time without an offer, no run waits for a worker with its function any more."""


class Occurrences:
    """Arms, finds and ends the timers of an application's jobs, through one worker."""

    def __init__(self, timers: Timers, application: str, version: int) -> None:
        self.timers, self.application, self.version = timers, application, version
        self._group = f"group:{group_of(application)}"

    def key(self, kind: str, job: str) -> Key:
        return (kind, self.application, job)

    def now(self, clock: int) -> int:
        return int(self.timers._clock_ns(clock))

    # -- occurrences ----------------------------------------------------------------------------

    def task(
        self,
        job: str,
        delay: Seconds,
        call: dict[str, Any],
        key: Key | None = None,
        on_conflict: Conflict = "raise",
        paused_too: bool = False,
    ) -> int:
        """Arm a run by hand; its planned time is its timer's deadline."""
        packed(call)  # or an error
        boot = boot_of(_native.CLOCK_BASE)
        run = Occurrence(job, 0, self.version, call=call, boot=boot, paused_too=paused_too)
        own: Key | None = None
        if key is not None:
            own = ("job-task", self.application, *under(job, key))
        return self.timers.schedule(
            delay,
            payload=written(run),
            key=own,
            on_conflict=on_conflict,
            to=self._group,
            detached=True,
            keep=True,
        )

    def plan(
        self,
        job: str,
        calendar: Calendar,
        planned: int,
        jitter: float,
        on_conflict: Conflict = "keep",
    ) -> None:
        """Make the occurrence at this time a job's next one."""
        run = Occurrence(job, planned, self.version, calendar.spec, clock=calendar.clock)
        self.arm(run, planned + span_ns(random.uniform(0.0, jitter)), on_conflict)

    def arm(self, run: Occurrence, due: int, on_conflict: Conflict = "keep") -> None:
        """Make an occurrence its job's next one; a job without a schedule has no key."""
        run.ahead, run.boot = due - run.planned, boot_of(run.clock)
        key = self.key(NEXT, run.job) if run.spec is not None else None
        self._put(run, due, run.clock, key, on_conflict)

    def received(self, event: Any, payload: bytes) -> Occurrence:
        """The occurrence of an event. After a reboot its planned time follows from its timer, which
        was moved to the new clock."""
        run = read(Occurrence, payload)
        if (run.boot and run.boot != boot_of(run.clock)) or (run.spec is None and not run.planned):
            run.planned = int(event["deadline"]) - run.ahead
        return run

    def _put(
        self, content: Any, due: int, clock: int, key: Key | None, on_conflict: Conflict
    ) -> None:
        options: Any = {} if key is None else {"key": key, "on_conflict": on_conflict}
        self.timers._schedule_ns(
            min(due, NEVER_NS),
            clock,
            payload=written(content),
            to=self._group,
            detached=True,
            keep=True,
            **options,
        )

    def is_pending(self, job: str) -> bool:
        return self.timers.remaining(self.key(NEXT, job)) is not None

    # -- records --------------------------------------------------------------------------------

    def definition(self, job: str) -> Definition | None:
        return self._read(DEFINITION, job, definition)

    def define(self, job: str, spec: list[Any] | None) -> None:
        key = self.key(ACCOUNT, job)
        self._put(Account(), NEVER_NS, _native.CLOCK_REALTIME, key, "keep")
        self._note(DEFINITION, job, Definition(spec, self.version))

    def account(self, job: str) -> Account:
        return self._read(ACCOUNT, job, partial(read, Account)) or Account()

    def write(self, job: str, account: Account) -> None:
        self._note(ACCOUNT, job, account)

    def is_paused(self, job: str) -> bool:
        return self.timers.remaining(self.key(PAUSED, job)) is not None

    def pause(self, job: str) -> None:
        nothing = Definition(None, self.version)
        self._put(nothing, NEVER_NS, _native.CLOCK_REALTIME, self.key(PAUSED, job), "keep")

    def resume(self, job: str) -> bool:
        return self.timers.cancel(key=self.key(PAUSED, job))

    def unclaimed_ns(self, job: str) -> int:
        """For how long runs by hand of a job have been offered to workers without its function
        only, of which this is one. It is noted at each offer: what nobody has noted for a while is
        over."""
        now = self.now(_native.CLOCK_REALTIME)
        note = self._read(UNCLAIMED, job, partial(read, Unclaimed)) or Unclaimed(now, now)
        if now - note.seen > span_ns(UNSEEN_SECONDS):
            note.since = now
        note.seen = now
        self._note(UNCLAIMED, job, note)
        return now - note.since

    def claim(self, job: str) -> None:
        """This worker has the function."""
        self.timers.cancel(key=self.key(UNCLAIMED, job))

    def _read(self, kind: str, job: str, read: Callable[[bytes], Record]) -> Record | None:
        """A note about a job; None: there is none, or others have written it."""
        found = self.timers.find(self.key(kind, job))
        try:
            return None if found is None else read(found.payload or b"")
        except ValueError as error:
            log.warning(
                "a timer of another application has the key %r: %s", found and found.key, error
            )
            return None

    def _note(self, kind: str, job: str, content: Definition | Account | Unclaimed) -> None:
        # on the wall clock, whose times no restore moves: these are never due
        self._put(content, NEVER_NS, _native.CLOCK_REALTIME, self.key(kind, job), "replace")

    # -- locks ----------------------------------------------------------------------------------

    def lock(self, job: str, seconds: float, kind: str = RUNNING) -> int | None:
        """Lock a job for a run; None: another worker has it. The job is free again when this worker
        unlocks it, closes or dies, or does not renew the lock in time.

        The expired lock goes to any worker, which ignores it: its own worker could not acknowledge
        that event alone.
        """
        try:
            return self.timers.schedule(seconds, key=self.key(kind, job), to=self._group)
        except KeyInUse:
            return None

    def renew(self, lock: int, seconds: float) -> bool:
        """False: the lock's time is over, and another worker may have the job."""
        return self.timers.reschedule(lock, seconds)

    def unlock(self, lock: int) -> None:
        self.timers.cancel(lock)

    @contextmanager
    def noting(self, job: str) -> Iterator[None]:
        """Become the only writer of a job's definition, and of its account if its runs take no
        lock."""
        key = self.key(NOTING, job)
        for _ in range(NOTE_TRIES):
            if (lock := self.lock(job, NOTE_SECONDS, NOTING)) is not None:
                break
            if (self.timers.remaining(key) or 0.0) > NOTE_SECONDS:
                break  # somebody else's
            time.sleep(0.0005)
        if lock is None:  # no worker of ours has it for so long
            log.warning("the records of job %r are written without their lock", job)
        try:
            yield
        finally:
            if lock is not None:
                self.unlock(lock)
