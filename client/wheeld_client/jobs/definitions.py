"""A worker that starts defines its jobs; the newest definition of each counts."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from wheeld_client.jobs.calendars import Calendar
from wheeld_client.jobs.job import AnyJob
from wheeld_client.jobs.occurrences import Occurrences
from wheeld_client.jobs.records import DEFINITION, NEXT, TASK
from wheeld_client.timers.observer import pending_timers
from wheeld_core.errors import WheelError
from wheeld_core.timer_options import Conflict

if TYPE_CHECKING:
    from wheeld_client.jobs.jobs import Jobs

log = logging.getLogger("wheeld.jobs")


def define(jobs: Jobs, wheel: Occurrences) -> None:
    """Start jobs that nobody has started, change jobs of an older version, and end jobs that this
    version does not have."""
    for job in jobs.jobs.values():
        try:
            _define(job.name, job, wheel)
        except WheelError:
            raise
        except Exception:  # its trigger's: the other jobs run
            log.exception("job %r has not started", job.name)
    prefix = (DEFINITION, jobs.name)
    for key in pending_timers(str(wheel.timers.directory), prefix=prefix).keys.values():
        if not (isinstance(key, tuple) and len(key) == 3 and isinstance(name := key[2], str)):
            continue
        if name not in jobs.jobs and wheel.definition(name) is not None:
            _define(name, None, wheel)


def _define(name: str, job: AnyJob | None, wheel: Occurrences) -> None:
    with wheel.noting(name):  # of versions that start at once, the newest counts
        known = wheel.definition(name)
        if known is not None and known.version >= wheel.version:
            return
        calendar = None if job is None else job.calendar
        if job is not None and calendar is not None:
            if known is None:
                _begin(job, calendar, wheel)  # before it is defined: it has begun then
            elif known.spec is None or known.spec == TASK:
                _begin(job, calendar, wheel, "replace")
            elif known.spec != calendar.spec and wheel.is_pending(name):
                _begin(job, calendar, wheel, "replace")  # else the run is followed by it
            wheel.define(name, calendar.spec)
        else:
            wheel.define(name, None if job is None else TASK)
            wheel.timers.cancel(key=wheel.key(NEXT, name))


def _begin(
    job: AnyJob, calendar: Calendar, wheel: Occurrences, on_conflict: Conflict = "keep"
) -> None:
    due = calendar.after(None, wheel.now(calendar.clock))
    if due is not None:
        wheel.plan(job.name, calendar, due, job.jitter, on_conflict)
