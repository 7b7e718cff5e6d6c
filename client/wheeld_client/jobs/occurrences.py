"""An application's jobs, as the wheel knows them.

Each job with a schedule has one pending timer, under its key, which is its next occurrence; its
payload says for when that was planned, by which schedule, of which version. While an occurrence
runs there is none: the next one is armed from the planned time of this one before this one is
acknowledged. A lock is a timer that ends with its worker. A job's definition and its account are
payloads of timers that are never due, so they outlive the workers.

A worker that starts begins only jobs without a definition: one whose occurrence is on its way or
runs has no timer, either. The definition of a removed job stays, without a schedule, so that no
worker of an older version begins it anew.
"""

from __future__ import annotations

import json
import random
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from wheeld_client.jobs.arguments import packed
from wheeld_client.timers.timers import Timers
from wheeld_core import _native
from wheeld_core.arguments import Seconds
from wheeld_core.errors import KeyInUse
from wheeld_core.timer_options import Conflict, Key

NEVER_NS: Final = 2**63 - 1 - 10**9
LOCK_SECONDS: Final = 1e9


@dataclass
class Occurrence:
    """One run of a job: the payload of its timer."""

    job: str
    planned: int
    version: int
    spec: list[Any] | None = None
    tries: int = 0
    clock: int = _native.CLOCK_BASE
    call: dict[str, Any] = field(default_factory=dict)


@dataclass
class Definition:
    """The schedule that counts for a job; None: it was removed."""

    spec: list[Any] | None
    version: int


@dataclass
class Account:
    """The runs of a job: the last one and how many."""

    planned: int | None = None
    clock: int = _native.CLOCK_BASE
    runs: int = 0
    failures: int = 0
    missed: int = 0
    lateness_ns: int = 0
    lasted_ns: int = 0
    worker: str = ""


class Occurrences:
    """Arms, finds and ends the timers of an application's jobs, by one worker."""

    def __init__(self, timers: Timers, application: str, version: int) -> None:
        self.timers, self.application, self.version = timers, application, version
        self._group = f"group:{group_of(application)}"

    def key(self, kind: str, job: str) -> Key:
        return (kind, self.application, job)

    def task(
        self,
        job: str,
        delay: Seconds,
        call: dict[str, Any],
        key: Key | None,
        on_conflict: Conflict,
    ) -> int:
        """Arm a run by hand; its planned time is its timer's deadline."""
        run = Occurrence(job, 0, self.version, call=call)
        own: Key | None = None
        if key is not None:
            own = ("job-task", self.application, job, *(key if isinstance(key, tuple) else (key,)))
        return self.timers.schedule(
            delay,
            payload=packed(asdict(run)),
            key=own,
            on_conflict=on_conflict,
            to=self._group,
            detached=True,
            keep=True,
        )

    def arm(self, run: Occurrence, due: int, on_conflict: Conflict = "keep") -> None:
        """Let an occurrence be its job's next one; one without a schedule has no key."""
        key = self.key("job", run.job) if run.spec is not None else None
        self._put(run, due, run.clock, key, on_conflict)

    def _put(
        self, content: Any, due: int, clock: int, key: Key | None, on_conflict: Conflict
    ) -> None:
        options: Any = {} if key is None else {"key": key, "on_conflict": on_conflict}
        self.timers._schedule_ns(
            min(due, NEVER_NS),
            clock,
            payload=packed(asdict(content)),
            to=self._group,
            detached=True,
            keep=True,
            **options,
        )

    def is_pending(self, job: str) -> bool:
        return self.timers.remaining(self.key("job", job)) is not None

    def definition(self, job: str) -> Definition | None:
        found = self.timers.find(self.key("job-definition", job))
        return None if found is None else Definition(**json.loads(found.payload))

    def define(self, job: str, spec: list[Any] | None) -> None:
        self._note("job-definition", job, Definition(spec, self.version))

    def account(self, job: str) -> Account:
        found = self.timers.find(self.key("job-account", job))
        return Account() if found is None else Account(**json.loads(found.payload))

    def write(self, job: str, account: Account) -> None:
        self._note("job-account", job, account)

    def _note(self, kind: str, job: str, content: Definition | Account) -> None:
        self._put(content, NEVER_NS, _native.CLOCK_BASE, self.key(kind, job), "replace")

    def lock(self, job: str) -> bool:
        """Take the job for a run; it is free when this worker unlocks, closes or dies."""
        try:
            self.timers.schedule(LOCK_SECONDS, key=self.key("job-run", job))
        except KeyInUse:
            return False
        return True

    def unlock(self, job: str) -> None:
        self.timers.cancel(key=self.key("job-run", job))


def group_of(application: str) -> str:
    return f"jobs-{application}"


def occurrence_of(payload: bytes) -> Occurrence:
    return Occurrence(**json.loads(payload))


def drawn_ns(jitter: float) -> int:
    return int(random.uniform(0.0, jitter) * 1e9)
