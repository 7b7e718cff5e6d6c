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
            if job.calendar is None:
                _define_task(job, wheel)
            else:
                _define_schedule(job, job.calendar, wheel)
        except WheelError:
            raise
        except Exception:  # its trigger's: the other jobs run
            log.exception("job %r has not started", job.name)
    prefix = (DEFINITION, jobs.name)
    for key in pending_timers(str(wheel.timers.directory), prefix=prefix).keys.values():
        if not (isinstance(key, tuple) and len(key) == 3 and isinstance(name := key[2], str)):
            continue
        known = wheel.definition(name)
        if name in jobs.jobs or known is None or known.spec is None:
            continue
        if known.version < wheel.version:
            wheel.define(name, None)
            wheel.timers.cancel(key=wheel.key(NEXT, name))


def _define_schedule(job: AnyJob, calendar: Calendar, wheel: Occurrences) -> None:
    known = wheel.definition(job.name)
    if known is not None and known.version >= wheel.version:
        return
    if known is None or known.spec is None or known.spec == TASK:
        _begin(job, calendar, wheel)  # before it is defined: it has begun then
        wheel.define(job.name, calendar.spec)
    elif known.spec != calendar.spec:
        wheel.define(job.name, calendar.spec)
        if wheel.is_pending(job.name):  # else it is followed by the new schedule
            _begin(job, calendar, wheel, "replace")


def _define_task(job: AnyJob, wheel: Occurrences) -> None:
    known = wheel.definition(job.name)
    if known is None or (known.spec != TASK and known.version < wheel.version):
        wheel.define(job.name, TASK)
        wheel.timers.cancel(key=wheel.key(NEXT, job.name))


def _begin(
    job: AnyJob, calendar: Calendar, wheel: Occurrences, on_conflict: Conflict = "keep"
) -> None:
    due = calendar.after(None, wheel.now(calendar.clock))
    if due is not None:
        wheel.plan(job.name, calendar, due, job.jitter, on_conflict)
