"""A worker that runs jobs: it receives occurrences, runs them, and arms the next ones."""

from __future__ import annotations

import asyncio
import inspect
import logging
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Final

from wheeld_client.connection.reconnection import Reconnection
from wheeld_client.jobs.calendars import Calendar, of_spec
from wheeld_client.jobs.job import Job
from wheeld_client.jobs.occurrences import (
    Occurrence,
    Occurrences,
    drawn_ns,
    group_of,
    occurrence_of,
)
from wheeld_client.timers.observer import pending_timers
from wheeld_client.timers.timers import connect, payload_of
from wheeld_core.errors import DaemonNotRunning, WheelError

if TYPE_CHECKING:
    from wheeld_client.jobs.jobs import Jobs

log = logging.getLogger("wheeld.jobs")

AGAIN_SECONDS: Final = 0.05
"""Until an occurrence is offered again that this worker cannot run now."""
OTHERS_SECONDS: Final = 1.0
"""The same for one that only workers of another version can run."""
MOST_BACKOFF: Final = 3600.0
AWAY_SECONDS: Final = 0.5


class Runner:
    """Runs the jobs of one application in this process, until `stop`.

    An occurrence is held while it runs, and acknowledged at the end. It is run under the job's
    lock, and its account says whether it has been run before.
    """

    def __init__(
        self, jobs: Jobs, daemon: str, loop: asyncio.AbstractEventLoop | None, **options: Any
    ) -> None:
        self._jobs, self._loop = jobs, loop
        self._anew = False
        self.ended = self._stopping = False
        group = group_of(jobs.name)
        self.timers = connect(daemon, group=group, on_reconnect=self._came_back, **options)
        self._wheel = Occurrences(self.timers, jobs.name, jobs.version)
        self._free: SimpleQueue[None] = SimpleQueue()  # an item for each thread that is idle
        for _ in range(jobs.threads):
            self._free.put(None)

    def _came_back(self, event: Reconnection) -> None:
        log.warning("jobs of %r go on with a new daemon: %s", self._jobs.name, event)
        self._anew = True

    def stop(self) -> None:
        self._stopping = True
        self.timers._wake()

    def run(self) -> None:
        try:
            self._define()
            with ThreadPoolExecutor(self._jobs.threads, "wheeld-job") as pool:
                while not self._stopping:
                    self._turn(pool)
        finally:
            self.close()

    def close(self) -> None:
        self.ended = True
        self.timers.close()

    def _turn(self, pool: ThreadPoolExecutor) -> None:
        """Hand one occurrence to a thread; none is received while all are busy."""
        try:
            self._free.get(timeout=AWAY_SECONDS)
        except Empty:
            return
        event = None
        try:
            if self._anew:
                self._anew = False
                self._define()
            for event in self.timers.poll(AWAY_SECONDS, 1, hold=True):
                pool.submit(self._take, event, payload_of(event))
        except RuntimeError:  # the interpreter ends: this occurrence is another worker's
            if event is None:
                raise
            event, self._stopping = None, True
        except DaemonNotRunning as error:
            log.warning("jobs of %r wait for the daemon: %s", self._jobs.name, error)
            time.sleep(AWAY_SECONDS)
        finally:
            if event is None:
                self._free.put(None)

    # -- definitions ----------------------------------------------------------------------------

    def _define(self) -> None:
        """Begin the jobs that nobody has begun, change those of an older version, and end those
        that this version does not have."""
        wheel, version = self._wheel, self._jobs.version
        for job in self._jobs.jobs.values():
            calendar = job.calendar
            if calendar is None:
                continue
            known = wheel.definition(job.name)
            if known is None or (known.spec is None and known.version < version):
                self._arm_first(job, calendar)  # before it is defined: it has begun then
                wheel.define(job.name, calendar.spec)
            elif known.spec != calendar.spec and known.version < version:
                wheel.define(job.name, calendar.spec)
                if wheel.is_pending(job.name):  # else it is followed by the new schedule
                    self._arm_first(job, calendar, "replace")
        prefix = ("job-definition", self._jobs.name)
        for key in pending_timers(str(self.timers.directory), prefix=prefix).keys.values():
            name = str(key[2])  # type: ignore[index]
            job_of, known = self._jobs.jobs.get(name), wheel.definition(name)
            gone = job_of is None or job_of.calendar is None
            if gone and known is not None and known.spec and known.version < version:
                wheel.define(name, None)
                self.timers.cancel(key=wheel.key("job", name))

    def _arm_first(self, job: Job, calendar: Calendar, on_conflict: Any = "keep") -> None:
        due = calendar.after(None, self._now(calendar.clock))
        if due is not None:
            self._arm_at(job, calendar, due, on_conflict)

    def _arm_at(self, job: Job, calendar: Calendar, due: int, on_conflict: Any = "keep") -> None:
        run = Occurrence(job.name, due, self._jobs.version, calendar.spec, clock=calendar.clock)
        self._wheel.arm(run, due + drawn_ns(float_or_0(job.options.jitter)), on_conflict)

    def _now(self, clock: int) -> int:
        return int(self.timers._clock_ns(clock))

    # -- an occurrence --------------------------------------------------------------------------

    def _take(self, event: Any, payload: bytes) -> None:
        try:
            run = occurrence_of(payload)
            if run.spec is None and not run.planned:
                run.planned = int(event["deadline"])
            self._dispose(event, run)
        except WheelError as error:  # not acknowledged: it comes again
            log.warning("an occurrence in %r is left to others: %s", self._jobs.name, error)
        except Exception:
            log.exception("an occurrence in %r is left to others", self._jobs.name)
        finally:
            self._free.put(None)

    def _dispose(self, event: Any, run: Occurrence) -> None:
        job = self._jobs.jobs.get(run.job)
        if run.spec is None:
            if job is None:
                self.timers.nack(event, OTHERS_SECONDS)
            else:
                self._execute(event, job, run, None)
            return
        known = self._wheel.definition(run.job)
        spec = run.spec if known is None else known.spec
        if spec is None:
            log.info("job %r was removed: its last occurrence is left out", run.job)
            self.timers.acknowledge([int(event["timer_id"])])
            return
        own = None if job is None else job.calendar
        calendar = own if own is not None and own.spec == spec else of_spec(spec)
        if job is None or calendar is None:  # a worker of its version runs it
            self.timers.nack(event, OTHERS_SECONDS)
        elif not self._wheel.lock(run.job):
            self.timers.nack(event, AGAIN_SECONDS)
        else:
            try:
                self._execute(event, job, run, calendar)
            finally:
                self._wheel.unlock(run.job)

    def _execute(self, event: Any, job: Job, run: Occurrence, calendar: Calendar | None) -> None:
        """Run it, unless it was run or comes too late; then the next one is armed, and this one
        acknowledged."""
        ids = [int(event["timer_id"])]
        options, account = job.options, self._wheel.account(job.name)
        same = account.clock == run.clock
        done = calendar is not None and account.planned is not None and same
        began = self._now(run.clock)
        late = began - run.planned
        if done and run.planned <= account.planned:  # type: ignore[operator]
            pass
        elif (
            options.grace is not None
            and not run.tries
            and late > _ns_of(float_or_0(options.grace) + float_or_0(options.jitter))
        ):
            account.missed += 1
            account.planned, account.clock = run.planned, run.clock
            self._wheel.write(job.name, account)
            log.warning("job %r is %.3g s late: left out", job.name, late / 1e9)
        else:
            if options.at_most_once:
                if calendar is not None:
                    self._follow(job, run, calendar, began)
                if not self.timers.acknowledge(ids):
                    return
            failed = not self._call(job, run)
            account.runs += 1
            account.failures += failed
            account.lateness_ns, account.worker = late, self.timers.worker
            account.lasted_ns = self._now(run.clock) - began
            if failed and run.tries < options.retries and not options.at_most_once:
                self._wheel.write(job.name, account)
                self._retry(job, run)
                self.timers.acknowledge(ids)
                return
            account.planned, account.clock = run.planned, run.clock
            self._wheel.write(job.name, account)
        if calendar is not None:
            self._follow(job, run, calendar, began)
        self.timers.acknowledge(ids)

    def _follow(self, job: Job, run: Occurrence, calendar: Calendar, began: int) -> None:
        """Arm the next occurrence: after this one's planned time, not after now."""
        now = self._now(calendar.clock)
        if (
            calendar.clock != run.clock
        ):  # a new definition: the old one's times are of another clock
            run = replace(run, planned=now)
        due = calendar.after(run.planned, now)
        if due is not None and job.options.overlap == "skip" and began < due <= now:
            due = calendar.after(now, now)
        grace = job.options.grace
        if due is not None and grace is not None and now - due > _ns_of(float_or_0(grace)):
            due = calendar.after(now - _ns_of(float_or_0(grace)), now)  # those before are too late
        if due is not None:
            self._arm_at(job, calendar, due)

    def _retry(self, job: Job, run: Occurrence) -> None:
        pause = min(float_or_0(job.options.backoff) * 2.0**run.tries, MOST_BACKOFF)
        run.tries += 1
        self._wheel.arm(run, self._now(run.clock) + _ns_of(pause))

    def _call(self, job: Job, run: Occurrence) -> bool:
        args, keywords = run.call.get("args", []), run.call.get("kw", {})
        try:
            if not inspect.iscoroutinefunction(job.function):
                job.function(*args, **keywords)
            elif self._loop is None:
                asyncio.run(job.function(*args, **keywords))
            else:
                coroutine = job.function(*args, **keywords)
                asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()
        except Exception:
            log.exception("job %r raised", job.name)
            return False
        return True


def float_or_0(seconds: Any) -> float:
    return 0.0 if seconds is None else float(seconds)


def _ns_of(seconds: float) -> int:
    return int(seconds * 1e9)
