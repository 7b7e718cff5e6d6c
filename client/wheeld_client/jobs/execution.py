"""A worker runs one occurrence, skips it, or gives it back.

It holds the occurrence while it runs, and acknowledges it at the end. A scheduled occurrence runs
under the job's lock, and the job's account says whether it has been run before. A worker that hangs
loses both after `visibility` seconds: another worker gets the occurrence and takes the lock. If the
first one continues after all, it finds at its end that it no longer has the lock, and writes
nothing.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from wheeld_client.jobs.calendars import Calendar, CronError, of_spec
from wheeld_client.jobs.job import AnyJob
from wheeld_client.jobs.occurrences import Occurrences
from wheeld_client.jobs.records import TASK, Account, Occurrence, boot_of
from wheeld_client.timers.observer import Observer
from wheeld_client.timers.policies import span_ns
from wheeld_core import _native

if TYPE_CHECKING:
    from wheeld_client.jobs.jobs import Jobs

log = logging.getLogger("wheeld.jobs")

AGAIN_SECONDS: Final = 0.05
"""Delay before an occurrence that this worker cannot run now is offered again."""
OTHERS_SECONDS: Final = 1.0
"""The same for an occurrence that only workers of another version can run, or that waits for
`resume`."""
MOST_BACKOFF: Final = 3600.0
UNCLAIMED_SECONDS: Final = 3600.0
"""For which a run by hand waits for a worker that has its function, while workers run."""


class Execution:
    """One occurrence, received by this worker."""

    def __init__(
        self,
        jobs: Jobs,
        wheel: Occurrences,
        loop: asyncio.AbstractEventLoop | None,
        event: Any,
        run: Occurrence,
    ) -> None:
        self._jobs, self._wheel, self._loop, self._run = jobs, wheel, loop, run
        self._id, self._again = int(event["timer_id"]), int(event["attempts"]) > 1
        self._began = wheel.now(run.clock)
        self._lock: int | None = None
        self._account = Account()

    def dispose(self) -> None:
        """Run it, skip it, or give it back for later."""
        job, run, wheel = self._jobs.jobs.get(self._run.job), self._run, self._wheel
        if run.spec is None:
            if job is not None:
                self._claim()
            if job is None:
                self._leave_unclaimed()
            elif job.calendar is not None:  # `wheeld jobs run` of one with a schedule
                self._run_locked(job, None)
            elif not run.paused_too and wheel.is_paused(run.job):
                self._give_back(OTHERS_SECONDS)
            else:
                self._execute(job, None)
            return
        calendar = self._calendar(job)
        if job is not None and calendar is not None:
            self._claim()
            self._run_locked(job, calendar)

    def _calendar(self, job: AnyJob | None) -> Calendar | None:
        """The schedule that counts now; None: there is none, and the occurrence ends here, or only
        workers of another version have it, and get the occurrence."""
        run, wheel = self._run, self._wheel
        known = wheel.definition(run.job)
        spec = run.spec if known is None else known.spec
        if spec is None or spec == TASK:
            log.info("job %r has no schedule any more", run.job)
            self._acknowledge()
            return None
        own = None if job is None else job.calendar
        calendar = own if own is not None and own.spec == spec else None
        if calendar is None:
            with suppress(CronError, ImportError):  # this worker has another cronsim, or none
                calendar = of_spec(spec)
        if job is None or calendar is None:
            wheel.unclaimed_ns(run.job)
            self._give_back(OTHERS_SECONDS)
            return None
        return calendar

    def _claim(self) -> None:
        """This worker has the function. Before the first attempt nobody has missed it."""
        if self._again:
            self._wheel.claim(self._run.job)

    def _leave_unclaimed(self) -> None:
        """Only a worker of another version can run it; if none has come for long, nobody does."""
        run, wheel = self._run, self._wheel
        waits = wheel.unclaimed_ns(run.job)
        if waits <= span_ns(UNCLAIMED_SECONDS):
            if waits == 0:
                log.warning("this worker has no job %r: its run waits for one that has", run.job)
            self._give_back(OTHERS_SECONDS)
        elif self._acknowledge():
            log.error(
                "no worker has had a job %r for %g s: its run with %s is given up",
                run.job, waits / 1e9, run.call,
            )  # fmt: skip
            with wheel.noting(run.job):
                account = wheel.account(run.job)
                account.missed += 1
                wheel.write(run.job, account)

    def _give_back(self, seconds: float) -> None:
        self._wheel.timers.nack(self._id, seconds)

    def _acknowledge(self) -> bool:
        return bool(self._wheel.timers.acknowledge([self._id]))

    def _run_locked(self, job: AnyJob, calendar: Calendar | None) -> None:
        self._lock = self._wheel.lock(job.name, self._jobs.visibility)
        if self._lock is None:
            self._give_back(AGAIN_SECONDS)
            return
        try:
            self._account = self._wheel.account(job.name)  # nobody else writes it now
            if calendar is not None:
                self._account.moves_to(self._run.clock, boot_of(self._run.clock))
            self._execute(job, calendar)
        finally:
            self._unlock()

    def _unlock(self) -> None:
        if self._lock is not None:
            self._wheel.unlock(self._lock)
            self._lock = None

    def _execute(self, job: AnyJob, calendar: Calendar | None) -> None:
        """Run it, unless it was run before or is skipped; then arm the next one, and acknowledge
        this one."""
        run, options = self._run, job.options
        account = self._account
        since = self._began
        if calendar is not None and account.planned is not None and run.planned <= account.planned:
            pass
        elif self._is_left_out(job, calendar):
            self._note_left_out(job, calendar)
        else:
            if calendar is not None:
                since = self._first_began(account)
            if options.at_most_once:
                if calendar is not None and not self._follow(job, since):
                    return
                if not self._acknowledge():
                    return
            self._note_begin(job, calendar)
            failed = not self._call(job)
            again = failed and run.tries < options.retries and not options.at_most_once
            if not self._note_end(job, calendar, failed, again):
                log.warning(
                    "job %r took longer than its visibility, %g s: another worker has run it again",
                    job.name, self._jobs.visibility,
                )  # fmt: skip
                return
            if options.at_most_once:  # it was followed and acknowledged before
                return
            if again:
                self._unlock()
                self._retry(job)
                self._acknowledge()
                return
        self._unlock()  # the next one may be due at once, and needs it
        if calendar is None or self._follow(job, since):
            self._acknowledge()

    def _is_left_out(self, job: AnyJob, calendar: Calendar | None) -> bool:
        late = self._began - self._run.planned
        if job.grace is not None and not self._run.tries and late > span_ns(job.grace + job.jitter):
            log.warning("job %r is %.3g s late: left out", job.name, late / 1e9)
            return True
        return calendar is not None and self._wheel.is_paused(job.name)

    def _first_began(self, account: Account) -> int:
        """When this occurrence began: under a worker that hangs in it, or else now."""
        if not self._again or account.running != self._run.planned:
            return self._began
        with Observer(str(self._wheel.timers.directory)) as observer:
            if account.worker not in observer.workers():  # it died: nothing ran meanwhile
                return self._began
        ago = self._wheel.now(_native.CLOCK_REALTIME) - account.began
        return self._began - max(ago, 0)

    # -- the account ----------------------------------------------------------------------------

    def _note_left_out(self, job: AnyJob, calendar: Calendar | None) -> None:
        def note(account: Account) -> None:
            account.missed += 1
            if calendar is not None:
                account.planned = self._run.planned

        self._note(job, note)

    def _note_begin(self, job: AnyJob, calendar: Calendar | None) -> None:
        if calendar is None:
            return
        account = self._account
        account.running = self._run.planned
        if job.options.at_most_once:  # who dies now has run it: another event of it is left out
            account.planned = self._run.planned
        account.began = self._wheel.now(_native.CLOCK_REALTIME)
        account.worker = self._wheel.timers.worker
        self._wheel.write(job.name, account)

    def _note_end(self, job: AnyJob, calendar: Calendar | None, failed: bool, again: bool) -> bool:
        """False: another worker has the job by now."""
        run, wheel = self._run, self._wheel

        def note(account: Account) -> None:
            account.runs += 1
            account.failures += failed
            account.failing = account.failing + 1 if failed else 0
            account.lateness_ns = self._began - run.planned
            account.lasted_ns = wheel.now(run.clock) - self._began
            account.began = wheel.now(_native.CLOCK_REALTIME) - account.lasted_ns
            account.worker = wheel.timers.worker
            if calendar is not None:
                account.running = None
                account.planned = account.planned if again else run.planned

        return self._note(job, note)

    def _note(self, job: AnyJob, note: Callable[[Account], None]) -> bool:
        wheel = self._wheel
        if self._lock is None:
            with wheel.noting(job.name):
                account = wheel.account(job.name)
                note(account)
                wheel.write(job.name, account)
            return True
        if not wheel.renew(self._lock, self._jobs.visibility):
            return False
        note(self._account)
        wheel.write(job.name, self._account)
        return True

    # -- what comes then ------------------------------------------------------------------------

    def _follow(self, job: AnyJob, began: int) -> bool:
        """Arm the next occurrence, counted from this one's planned time, not from now; by the
        schedule that counts now, which may be newer than this run. False: as `_calendar`."""
        run, wheel, grace = self._run, self._wheel, job.grace
        if (calendar := self._calendar(job)) is None:
            return False
        now = wheel.now(calendar.clock)
        # a new definition: the old one's times are of another clock
        planned = run.planned if calendar.clock == run.clock else now
        due = calendar.after(planned, now)
        if due is not None and job.options.overlap == "skip" and began < due <= now:
            due = calendar.after(now, now)
        if due is not None and grace is not None and now - due > span_ns(grace):
            due = calendar.after(now - span_ns(grace), now)  # those before are too late
        if due is not None:
            wheel.plan(job.name, calendar, due, job.jitter)
        return True

    def _retry(self, job: AnyJob) -> None:
        run = self._run
        pause = min(job.backoff * 2.0 ** min(run.tries, 64), MOST_BACKOFF)
        due = self._wheel.now(run.clock) + span_ns(pause)
        self._wheel.arm(replace(run, tries=run.tries + 1), due)

    def _call(self, job: AnyJob) -> bool:
        args, keywords = self._run.call.get("args", []), self._run.call.get("kw", {})
        try:
            result = job.function(*args, **keywords)
            if not inspect.iscoroutine(result):
                pass
            elif self._loop is None:
                asyncio.run(result)
            else:
                asyncio.run_coroutine_threadsafe(result, self._loop).result()
        except BaseException:  # sys.exit() ends the run, as in any thread
            log.exception("job %r raised", job.name)
            return False
        return True
