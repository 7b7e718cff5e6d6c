"""Celery beat's schedule as jobs: however many beats a host has, each task is sent once.

    celery -A shop beat -S wheeld_client.integrations.beat:JobsScheduler

It reads `beat_schedule` and `add_periodic_task` as beat does. An entry is a job of `wheeld jobs`.
If a beat dies while it sends a task, another beat sends it again. No file of last runs is needed.
"""

from __future__ import annotations

from datetime import datetime
from functools import partial
from typing import Any, Final

from celery.beat import Scheduler
from celery.schedules import schedule as Interval

from wheeld_client import Jobs

LOOK_SECONDS: Final = 1.0
"""How often beat checks whether it should end."""
LATE_SECONDS: Final = 3600.0
"""A calendar entry that nobody sent for this long is left out; an interval's entry, after one
interval."""


class JobsScheduler(Scheduler):
    """A scheduler for `celery beat -S`. It uses the daemon of `install(app, daemon)`, else of the
    setting `wheeld_daemon`, else "default"."""

    _jobs: Jobs | None = None

    def setup_schedule(self) -> None:
        self.install_default_entries(self.schedule)
        self.merge_inplace(self.app.conf.beat_schedule)

    def tick(self, *_: Any, **__: Any) -> float:
        """Sends nothing, because jobs send the tasks, in threads."""
        if self._jobs is None:
            self._jobs = self._made()
            self._jobs.start()
        return LOOK_SECONDS

    def close(self) -> None:
        if self._jobs is not None:
            self._jobs.stop(wait=True)
        super().close()

    def _made(self) -> Jobs:
        _, _, daemon, options = getattr(self.app, "wheeld", (None, None, None, {}))
        daemon = daemon or self.app.conf.get("wheeld_daemon", "default")
        jobs = Jobs(f"{self.app.main or 'celery'}-beat", daemon=daemon, **options)
        for name, entry in self.schedule.items():
            send = partial(self.apply_async, entry, advance=False)
            if type(entry.schedule) is Interval:
                seconds = entry.schedule.run_every.total_seconds()
                jobs.every(seconds, name=name, grace=max(seconds, 1.0))(send)
            else:
                jobs.on(_Due(entry.schedule), name=name, grace=LATE_SECONDS)(send)
        return jobs


class _Due:
    """A crontab, or another schedule of Celery, as a trigger."""

    def __init__(self, schedule: Any) -> None:
        self._schedule = schedule

    def __str__(self) -> str:
        return repr(self._schedule)

    def get_next_fire_time(self, previous: datetime | None, now: datetime) -> datetime:
        last = now if previous is None else previous
        if hasattr(self._schedule, "remaining_delta"):
            start, delta, _ = self._schedule.remaining_delta(last)
            due: datetime = start + delta
        else:
            due = self._schedule.now() + self._schedule.remaining_estimate(last)
        return due
