"""The wheel keeps records of an application's jobs: payloads of timers, as JSON.

Their keys are (kind, application, job). Each record except an occurrence is the payload of a
detached timer that is never due, so any process can read it, and it outlives the workers and, in a
snapshot, the host (docs/decisions/0032-jobs.md).
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass, field
from pathlib import Path
from types import UnionType
from typing import Any, Final, TypeVar, get_args, get_origin, get_type_hints

from wheeld_core import _native
from wheeld_core.arguments import shown

NEXT, RUNNING = "job", "job-run"
"""The next occurrence, and the lock of the running one."""
DEFINITION, ACCOUNT, PAUSED, NOTING = "job-definition", "job-account", "job-paused", "job-noting"
UNCLAIMED: Final = "job-unclaimed"
"""Runs by hand wait for a worker that has the function."""
TASK: Final[list[Any]] = ["task"]
"""The schedule of a job that only runs by hand."""

MOST_INT: Final = 2**63 - 1
CLOCKS: Final = (_native.CLOCK_BASE, _native.CLOCK_REALTIME)

Record = TypeVar("Record")


PIECES: Final[dict[Any, tuple[type, ...]]] = {
    "task": (),
    "every": (int,),
    "cron": (str, str),
    "trigger": (str, str),
}
"""The types behind the name of each kind of schedule."""


def _check_spec(spec: list[Any] | None) -> None:
    if spec is None:
        return
    right = PIECES.get(spec[0] if spec else None) == tuple(map(type, spec[1:]))
    if not right or (spec[0] == "every" and not 10**6 <= spec[1] <= 10**18):
        raise ValueError(f"spec={shown(spec)}")


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

    def __post_init__(self) -> None:
        _check_spec(self.spec)
        if self.clock not in CLOCKS:
            raise ValueError(f"clock={self.clock}")


@dataclass(frozen=True)
class Definition:
    """The schedule that counts for a job; None: it was removed."""

    spec: list[Any] | None
    version: int

    def __post_init__(self) -> None:
        _check_spec(self.spec)


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


_encode: Final = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode


def written(record: Any) -> bytes:
    """A record as `read` takes it."""
    return _encode(vars(record)).encode()


@functools.cache
def _types(kind: type[Any]) -> dict[str, tuple[type, ...]]:
    """The types of a record's fields."""
    return {
        name: tuple(get_origin(one) or one for one in get_args(hint) or (hint,))
        if get_origin(hint) is UnionType
        else (get_origin(hint) or hint,)
        for name, hint in get_type_hints(kind).items()
    }


def read(kind: type[Record], payload: bytes) -> Record:
    """Decode a record; fields that a newer version has added are left out.

    Raises
    ------
    ValueError
        It is not a record: any worker may arm a timer under its key.
    """
    try:
        found, content = json.loads(payload.decode()), {}
        for name, types in _types(kind).items():  # type: ignore[arg-type]
            if name in found:
                content[name] = value = found[name]
                if type(value) not in types or (type(value) is int and abs(value) > MOST_INT):
                    raise TypeError(f"{name}={shown(value)}")
        return kind(**content)
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(
            f"{shown(payload)} is not a valid {kind.__name__} of a job: {error}"
        ) from error


@functools.lru_cache(4096)
def definition(payload: bytes) -> Definition:
    """Each run asks for its job's, and it seldom changes."""
    return read(Definition, payload)


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
