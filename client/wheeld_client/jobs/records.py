"""The wheel keeps records of an application's jobs: payloads of timers, as JSON.

Their keys are (kind, application, job). Each record except an occurrence is the payload of a
detached timer that is never due, so any process can read it, and it outlives the workers and, in a
snapshot, the host (docs/decisions/0032-jobs.md).
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final, TypeVar

from wheeld_core import _native

NEXT, RUNNING = "job", "job-run"
"""The next occurrence, and the lock of the running one."""
DEFINITION, ACCOUNT, PAUSED, NOTING = "job-definition", "job-account", "job-paused", "job-noting"
UNCLAIMED: Final = "job-unclaimed"
"""Runs by hand wait for a worker that has the function."""
TASK: Final[list[Any]] = ["task"]
"""The schedule of a job that only runs by hand."""

Record = TypeVar("Record")


@dataclass
class Occurrence:
    """One run of a job."""

    job: str
    planned: int
    version: int
    spec: list[Any] | None = None
    """Its schedule; None: it was armed by hand, outside of any schedule."""
    tries: int = 0
    clock: int = _native.CLOCK_BASE
    call: dict[str, Any] = field(default_factory=dict)
    ahead: int = 0
    """How much later than `planned` its timer was due."""
    boot: str = ""
    paused_too: bool = False
    """Requested with `wheeld jobs run` or JobBoard: it runs even if the task is paused."""


@dataclass
class Definition:
    """The schedule that counts for a job; None: it was removed."""

    spec: list[Any] | None
    version: int


@dataclass
class Account:
    """The runs of a job. Only the holder of the job's lock writes it."""

    planned: int | None = None
    """Occurrences of the schedule up to this time are done."""
    clock: int = _native.CLOCK_BASE
    boot: str = ""
    """The boot of `planned` and `running`: the base clock starts again with each boot."""
    running: int | None = None
    """The planned time of the occurrence that is running."""
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
        """Discard times of another clock, which mean nothing on this one."""
        if (self.clock, self.boot) != (clock, boot):
            self.planned = self.running = None
            self.clock, self.boot = clock, boot


@dataclass
class Unclaimed:
    """Wall clock, ns: since when runs have been offered to workers without the function only."""

    since: int
    seen: int
    """When one was last offered."""


def written(record: Any) -> bytes:
    """A record as `read` takes it."""
    return json.dumps(vars(record), separators=(",", ":"), ensure_ascii=False).encode()


@functools.cache
def _names(kind: type[Any]) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))


def read(kind: type[Record], payload: bytes) -> Record:
    """Decode a record; fields that a newer version has added are left out.

    Raises
    ------
    ValueError, TypeError, AttributeError
        It is not a record.
    """
    found = json.loads(payload)
    names = _names(kind)  # type: ignore[arg-type]
    return kind(**{name: found[name] for name in names if name in found})


def group_of(application: str) -> str:
    return f"jobs-{application}"


def boot_of(clock: int) -> str:
    """The boot within which times of a clock are comparable; "" if they always are."""
    if clock != _native.CLOCK_BASE:
        return ""
    return _boot()


@functools.cache
def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text()[:8]
