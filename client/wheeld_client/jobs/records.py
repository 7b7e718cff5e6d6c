"""The wheel keeps records of an application's jobs: payloads of timers, as JSON.

Their keys are (kind, application, job). Each record but the occurrences is the payload of a
detached timer that is never due, so any process reads it, and it outlives the workers and, in a
snapshot, the host (docs/decisions/0032-jobs.md).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final, TypeVar

from wheeld_core import _native

NEXT, RUNNING = "job", "job-run"
"""The next occurrence, and the lock of the one that runs."""
DEFINITION, ACCOUNT, PAUSED, NOTING = "job-definition", "job-account", "job-paused", "job-noting"
TASK: Final[list[Any]] = ["task"]
"""The schedule of a job that runs by hand only."""

Record = TypeVar("Record")


@dataclass
class Occurrence:
    """One run of a job."""

    job: str
    planned: int
    version: int
    spec: list[Any] | None = None
    """Its schedule; None: it was armed by hand, and is no part of one."""
    tries: int = 0
    clock: int = _native.CLOCK_BASE
    call: dict[str, Any] = field(default_factory=dict)
    ahead: int = 0
    """By how much its timer was due after `planned`."""
    boot: str = ""
    paused_too: bool = False
    """Armed by who looks at the jobs, for now: a paused task runs, too."""


@dataclass
class Definition:
    """The schedule that counts for a job; None: it was removed."""

    spec: list[Any] | None
    version: int


@dataclass
class Account:
    """The runs of a job. Only who holds the job's lock writes it."""

    planned: int | None = None
    """Up to here the occurrences of the schedule are done."""
    clock: int = _native.CLOCK_BASE
    boot: str = ""
    """Of `planned` and `running`: the base clock begins anew with each boot."""
    running: int | None = None
    """The planned time of the occurrence that has begun and has not ended."""
    began: int = 0
    """When the last run began, wall clock."""
    runs: int = 0
    failures: int = 0
    failing: int = 0
    """How many runs have failed since one succeeded."""
    missed: int = 0
    lateness_ns: int = 0
    lasted_ns: int = 0
    worker: str = ""

    def moves_to(self, clock: int, boot: str) -> None:
        """Times of another clock mean nothing on this one."""
        if (self.clock, self.boot) != (clock, boot):
            self.planned = self.running = None
            self.clock, self.boot = clock, boot


def read(kind: type[Record], payload: bytes) -> Record:
    """A record; what a newer version has added is left out.

    Raises
    ------
    ValueError, TypeError, AttributeError
        It is none.
    """
    found = json.loads(payload)
    return kind(**{f.name: found[f.name] for f in fields(kind) if f.name in found})  # type: ignore[arg-type]


def group_of(application: str) -> str:
    return f"jobs-{application}"


def boot_of(clock: int) -> str:
    """The boot within which times of a clock are comparable; "": all."""
    if clock != _native.CLOCK_BASE:
        return ""
    return Path("/proc/sys/kernel/random/boot_id").read_text()[:8]
