"""JobBoard: lists the jobs of a daemon, and runs, pauses and resumes them."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from wheeld_client.jobs.occurrences import UNSEEN_SECONDS, Occurrences
from wheeld_client.jobs.records import (
    ACCOUNT,
    DEFINITION,
    NEXT,
    PAUSED,
    RUNNING,
    TASK,
    UNCLAIMED,
    Account,
    Definition,
    Unclaimed,
    group_of,
    read,
)
from wheeld_client.timers.observer import Observer
from wheeld_client.timers.timers import Timers, connect, payload_of
from wheeld_core import _native
from wheeld_core.arguments import shown

KINDS: Final = (NEXT, RUNNING, DEFINITION, ACCOUNT, PAUSED, UNCLAIMED)
REMOVED: Final = "removed"
GAP: Final = 64
"""Gap between slots up to which they are read in one piece."""
Found = dict[tuple[str, str], dict[str, Any]]


@dataclass
class JobState:
    """A job, and its last run.

    Attributes
    ----------
    application, name : str
    schedule : str
        Such as "every 60 s", "0 3 * * * Europe/Berlin", "task", "removed", or "unknown": no worker
        has defined it.
    next : float or None
        When its next occurrence is due, seconds since 1970; None: none is armed, for example while
        one runs.
    last : float or None
        When its last run began.
    lasted, late : float or None
        How long that run took, and how long after its planned time it began, seconds.
    worker : str
        The worker that ran it.
    runs, failures, missed : int
        Runs that ended, those that raised, and occurrences that were left out: they would have come
        too late, or the job was paused. Several in a row without a worker count as one.
    failing : int
        How many runs have failed since one succeeded.
    paused, running : bool
    unclaimed : float or None
        Since when its runs have been offered only to workers without its function. After an hour,
        those by hand are given up, and count as missed.
    """

    application: str
    name: str
    schedule: str
    next: float | None = None
    last: float | None = None
    lasted: float | None = None
    late: float | None = None
    worker: str = ""
    runs: int = 0
    failures: int = 0
    failing: int = 0
    missed: int = 0
    paused: bool = False
    running: bool = False
    unclaimed: float | None = None


class JobBoard:
    """The jobs of all applications of a daemon, to list and to control them.

    Parameters
    ----------
    name, runtime_dir
        As in `connect`.
    """

    def __init__(
        self, name: str = "default", runtime_dir: str | os.PathLike[str] | None = None
    ) -> None:
        self._where = (name, runtime_dir)

    def _connected(self) -> Timers:
        name, runtime_dir = self._where
        return connect(name, runtime_dir=runtime_dir)

    def jobs(self, application: str | None = None) -> list[JobState]:
        """All jobs, or those of an application, by name. It changes nothing.

        Raises
        ------
        DaemonNotRunning, LayoutMismatch, PermissionError
            As `connect`.
        """
        with Observer(*self._where) as observer:
            if not any(group.startswith(group_of("")) for group in observer.groups()):
                return []
            found = _records(observer, application)
        missed = [key for key, record in found.items() if ACCOUNT not in record]
        if missed:  # they were replaced while they were looked for: a worker finds them
            with self._connected() as timers:
                for application_of, job in missed:
                    account = Occurrences(timers, application_of, 0).account(job)
                    found[application_of, job][ACCOUNT] = account
        return [_state(key, found[key]) for key in sorted(found)]

    def find(self, job: str, application: str | None = None) -> JobState:
        """A job by its name.

        Raises
        ------
        ValueError
            There is none, or several applications have one.
        """
        named = [each for each in self.jobs(application) if each.name == job]
        if len(named) == 1:
            return named[0]
        if named:
            several = ", ".join(each.application for each in named)
            raise ValueError(f"job {shown(job)}: {several} have one: name the application")
        known = ", ".join(f"{each.application}/{each.name}" for each in self.jobs())
        raise ValueError(f"no job {shown(job)}; there are: {known or 'none'}")

    def run(self, job: str, application: str | None = None, *args: Any, **keywords: Any) -> int:
        """Run it now, by any worker, in addition to its schedule; even if it is paused.

        Returns
        -------
        int
            The id of its timer.

        Raises
        ------
        ValueError, TypeError
            As `find`; it was removed; or JSON would change an argument.
        """
        found = self.find(job, application)
        if found.schedule == REMOVED:
            raise ValueError(f"job {shown(job)} of {found.application} was removed: nobody runs it")
        with self._connected() as timers:
            wheel = Occurrences(timers, found.application, 0)
            call = {"args": list(args), "kw": keywords}
            return wheel.task(job, 0.0, call, paused_too=True)

    def pause(self, job: str, application: str | None = None) -> bool:
        """Leave out its occurrences from now on, until `resume`. Runs by hand of a task wait.

        Returns
        -------
        bool
            False: it was paused already.
        """
        found = self.find(job, application)
        with self._connected() as timers:
            Occurrences(timers, found.application, 0).pause(job)
        return not found.paused

    def resume(self, job: str, application: str | None = None) -> bool:
        """Let it run again, from its next occurrence on. False: it was not paused."""
        found = self.find(job, application)
        with self._connected() as timers:
            return Occurrences(timers, found.application, 0).resume(job)


def _records(observer: Observer, application: str | None) -> Found:
    """The records of each job by kind: for the next occurrence the time it is due, for the lock
    True."""
    light = observer.pending(payloads=False)
    wanted = {
        id: key
        for id, key in light.keys.items()
        if isinstance(key, tuple) and len(key) == 3 and key[0] in KINDS
    }
    found: Found = {}
    slots = sorted((id & 0xFFFFFFFF) % observer.capacity for id in wanted)
    for first, last in _pieces(slots):
        part = observer.pending(first, last + 1)
        for timer in part.timers:
            key: Any = wanted.get(int(timer["timer_id"]))
            if key is None or application not in (None, key[1]):
                continue
            record = found.setdefault((str(key[1]), str(key[2])), {})
            with suppress(ValueError):  # somebody else's timer
                wall = part.now[_native.CLOCK_REALTIME]
                content = _content(key[0], timer, wall)
                if key[0] == ACCOUNT and ACCOUNT in record:  # one that was just replaced, and it
                    content = max(content, record[ACCOUNT], key=lambda each: each.runs)
                if content is not None:
                    record[key[0]] = content
    return {key: record for key, record in found.items() if {DEFINITION, UNCLAIMED} & record.keys()}


def _pieces(slots: list[int]) -> list[tuple[int, int]]:
    """Ranges that contain these slots and few others."""
    pieces: list[tuple[int, int]] = []
    for slot in slots:
        if pieces and slot - pieces[-1][1] <= GAP:
            pieces[-1] = (pieces[-1][0], slot)
        else:
            pieces.append((slot, slot))
    return pieces


def _content(kind: str, timer: Any, wall: int) -> Any:
    if kind == NEXT:
        return (wall + int(timer["due"])) / 1e9
    if kind == UNCLAIMED:
        note = read(Unclaimed, payload_of(timer))
        return note.since / 1e9 if wall - note.seen < UNSEEN_SECONDS * 1e9 else None
    if kind == DEFINITION:
        return read(Definition, payload_of(timer))
    return read(Account, payload_of(timer)) if kind == ACCOUNT else True


def _state(key: tuple[str, str], record: dict[str, Any]) -> JobState:
    account: Account = record.get(ACCOUNT, Account())
    defined = record.get(DEFINITION)
    state = JobState(*key, "unknown" if defined is None else _schedule_text(defined.spec))
    state.next = record.get(NEXT)
    if account.began:
        state.last, state.worker = account.began / 1e9, account.worker
    if account.runs:
        state.lasted, state.late = account.lasted_ns / 1e9, account.lateness_ns / 1e9
    for name in ("runs", "failures", "failing", "missed"):
        setattr(state, name, getattr(account, name))
    state.unclaimed = record.get(UNCLAIMED)
    state.paused, state.running = PAUSED in record, RUNNING in record
    return state


def _schedule_text(spec: list[Any] | None) -> str:
    if spec is None:
        return REMOVED
    if spec[0] == "every":
        return f"every {spec[1] / 1e9:g} s"
    return " ".join(str(each) for each in (spec if spec == TASK else spec[1:]))
