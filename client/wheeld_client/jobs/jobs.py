"""Jobs: the named callbacks of an application."""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import threading
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from queue import Empty, SimpleQueue
from typing import Any, Final, ParamSpec, Protocol, TypeVar, Unpack, overload

from wheeld_client.aio.timers import AsyncTimers
from wheeld_client.connection.options import MOST_SECONDS, ConnectKeywords, can_be_group
from wheeld_client.integrations.process import RETRY_SECONDS, ProcessTimers, forgets_in_child
from wheeld_client.jobs.arguments import packed
from wheeld_client.jobs.calendars import Calendar, Cron, Every, Trigger
from wheeld_client.jobs.job import AnyJob, Job, JobKeywords, JobOptions
from wheeld_client.jobs.occurrences import Occurrences
from wheeld_client.jobs.records import MOST_INT, group_of
from wheeld_client.jobs.runner import Runner
from wheeld_client.timers.policies import span_of
from wheeld_client.timers.timers import Timers
from wheeld_core.arguments import Seconds, made_of, shown
from wheeld_core.errors import WheelError
from wheeld_core.runtime import GROUP_NAME_BYTES
from wheeld_core.timer_options import Conflict, Key

log = logging.getLogger("wheeld.jobs")

THREADS: Final = 4
VISIBILITY: Final = 3600.0
P = ParamSpec("P")
R = TypeVar("R")


class Decorator(Protocol):
    def __call__(self, function: Callable[P, R], /) -> Job[P, R]: ...


class Jobs:
    """Named functions that any worker of a host runs: each occurrence once.

    If a worker dies in an occurrence, another one runs it again. Creating `Jobs` and its jobs needs
    no daemon; `run` and `running` do, and `Job.schedule`.

    Parameters
    ----------
    name : str
        The application. All workers that run its jobs need the same functions under the same names.
    daemon : str
        Name of the daemon, or the path of its runtime directory; for `Job.schedule` where the jobs
        do not run.
    version : int, optional
        Among two definitions of a job, the one with the larger number counts; jobs that it lacks
        end. Default: the time when this object was made, ns.
    threads : int
        How many jobs this process runs at the same time.
    visibility : float or timedelta
        Seconds that a run may take. A run that takes longer hangs, and another worker runs it
        again; no worker does so earlier while this one lives.
    **options
        As in `connect`: `runtime_dir=...`
    """

    def __init__(
        self,
        name: str,
        *,
        daemon: str = "default",
        version: int | None = None,
        threads: int = THREADS,
        visibility: Seconds = VISIBILITY,
        **options: Unpack[ConnectKeywords],
    ) -> None:
        if not name or type(name) is not str or not can_be_group(group_of(name)):
            most = GROUP_NAME_BYTES - len(group_of(""))
            raise ValueError(
                f"Jobs({shown(name)}): expected a name, such as 'shop', of at most {most} bytes of "
                "UTF-8, printable"
            )
        if version is not None and type(version) is not int:
            raise TypeError(f"version={shown(version)}: expected an int")
        if version is not None and abs(version) > MOST_INT:
            raise ValueError(f"version={shown(version)}: expected an int of at most 64 bits")
        if type(threads) is not int or threads < 1:
            raise ValueError(f"threads={shown(threads)}: expected an int, 1 or more")
        self.visibility = min(span_of("visibility", visibility), MOST_SECONDS)
        if not self.visibility:
            raise ValueError("visibility=0: expected more than 0 seconds, longer than any run")
        self.name, self.threads = name, threads
        self.version = time.time_ns() if version is None else version
        self.jobs: dict[str, AnyJob] = {}
        self._place = (daemon, options.get("runtime_dir"))
        self._process = ProcessTimers(daemon, dispatch=False, **options)
        self._forget()
        forgets_in_child(self)

    def _forget(self) -> None:
        """In a forked child, no jobs run."""
        self._lock, self._stopping = threading.RLock(), False
        self._stopped: SimpleQueue[None] = SimpleQueue()
        self._runner: Runner | None = None
        self._thread: threading.Thread | None = None

    def every(self, period: Seconds, **options: Unpack[JobKeywords]) -> Decorator:
        """Decorate a function that runs at each multiple of a period, on the wheel's clock.

        Parameters
        ----------
        period : float or timedelta
        **options
            Of `JobOptions`.
        """
        return self._decorator("every", Every(period), options)

    def cron(
        self, expression: str, *, tz: str = "UTC", **options: Unpack[JobKeywords]
    ) -> Decorator:
        """Decorate a function that runs at the times of a cron expression.

        A fixed hour that occurs twice on a day, or not at all, runs once; a wildcard follows the
        clock.

        Parameters
        ----------
        expression : str
            Minute, hour, day, month, weekday, in the syntax of `cronsim`.
        tz : str
            Name of a zone.
        **options
            Of `JobOptions`.

        Raises
        ------
        CronError
            The expression is wrong or never matches, or there is no such zone. A ValueError.
        """
        return self._decorator("cron", Cron(expression, tz), options)

    def on(self, trigger: Any, **options: Unpack[JobKeywords]) -> Decorator:
        """Decorate a function that runs at the times of a trigger.

        Parameters
        ----------
        trigger : object
            An object with `get_next_fire_time(previous, now)`, such as APScheduler's triggers.
        **options
            Of `JobOptions`.
        """
        return self._decorator("on", Trigger(trigger), options)

    @overload
    def task(self, function: Callable[P, R]) -> Job[P, R]: ...
    @overload
    def task(self, function: None = None, **options: Unpack[JobKeywords]) -> Decorator: ...
    def task(
        self, function: Callable[..., Any] | None = None, **options: Unpack[JobKeywords]
    ) -> Any:
        """Decorate a function that runs when `schedule(delay, ...)` asks for it; `options` as in
        `JobOptions`."""
        decorate = self._decorator("task", None, options)
        return decorate if function is None else decorate(function)

    def _decorator(self, call: str, calendar: Calendar | None, options: JobKeywords) -> Decorator:
        checked = made_of(JobOptions, call, {**options})

        def decorate(function: Callable[P, R]) -> Job[P, R]:
            job = Job(self, function, calendar, checked)
            if job.name in self.jobs:
                raise ValueError(f"{self.name} has a job {job.name!r} already: give it a name=")
            self.jobs[job.name] = job
            return job

        return decorate

    def start(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        """Run the jobs in a thread of this process from now on, until `stop`.

        It does not wait: while the daemon that these `Jobs` were made with cannot be reached, the
        thread tries again each second. For servers there is one line each: `run_jobs` and
        `JobsMiddleware` in `wheeld_client.integrations`.

        Parameters
        ----------
        loop : asyncio loop, optional
            Where async functions run; default: each on a loop of its own.

        Raises
        ------
        RuntimeError
            They run in this process already.
        """
        with self._lock:
            self._refuse_second()
            self._stopping, self._stopped = False, SimpleQueue()
            self._thread = threading.Thread(
                target=self._keep_running, args=(loop,), name=f"jobs-{self.name}", daemon=True
            )
            self._thread.start()

    def _keep_running(self, loop: asyncio.AbstractEventLoop | None) -> None:
        said = ""
        daemon, place = self._place
        while not self._stopping:
            try:
                runner = self._runner = Runner(self, daemon, loop, runtime_dir=place)
                if self._stopped.empty():  # else it was not there to be stopped
                    runner.run()
                else:
                    runner.close()
                return
            except (WheelError, OSError, RuntimeError) as error:
                if str(error) != said:
                    said = str(error)
                    log.warning("jobs of %r wait for the daemon: %s", self.name, said)
            with suppress(Empty):
                self._stopped.get(timeout=RETRY_SECONDS)

    def run(self, timers: Timers | AsyncTimers) -> None:
        """Run the jobs of this application in this thread, until `stop` is called.

        Parameters
        ----------
        timers : Timers or AsyncTimers
            A connection to the daemon. The jobs make their own connection to the same daemon.

        Raises
        ------
        RuntimeError
            They run in this process already.
        DaemonNotRunning
            As `connect`. Once running, it waits for the daemon instead.
        """
        self._start(timers, None).run()

    def stop(self, *, wait: bool = False) -> None:
        """End `run`, from any thread, or the thread that `start` started.

        Parameters
        ----------
        wait : bool
            After `start`: wait until the runs that have begun are done. Not allowed inside a job.
        """
        self._stopping = True
        self._stopped.put(None)
        if self._runner is not None:
            self._runner.stop()
        if wait and self._thread is not None:
            self._thread.join()

    def running(
        self, timers: Timers | AsyncTimers | None = None
    ) -> AbstractAsyncContextManager[Jobs]:
        """Run the jobs while the block lasts: async functions on this loop, others in threads.

        Parameters
        ----------
        timers : Timers or AsyncTimers, optional
            As in `run`; default: the daemon that `Jobs` was made with.
        """

        @asynccontextmanager
        async def block() -> Any:
            loop = asyncio.get_running_loop()
            given = timers if timers is not None else await asyncio.to_thread(self._process.get)
            runner = await asyncio.to_thread(self._start, given, loop)
            thread = threading.Thread(target=runner.run, name=f"jobs-{self.name}", daemon=True)
            thread.start()
            try:
                yield self
            finally:
                runner.stop()
                await asyncio.shield(asyncio.to_thread(thread.join))

        return block()

    def _start(
        self, timers: Timers | AsyncTimers, loop: asyncio.AbstractEventLoop | None
    ) -> Runner:
        wheel = timers.timers if isinstance(timers, AsyncTimers) else timers
        with self._lock:
            self._refuse_second()
            self._runner = Runner(self, str(wheel.directory), loop)
        return self._runner

    def _refuse_second(self) -> None:
        thread, runner = self._thread, self._runner
        if (runner is not None and not runner.ended) or (thread is not None and thread.is_alive()):
            raise RuntimeError(f"the jobs of {self.name!r} run in this process already")

    def _schedule(
        self,
        job: AnyJob,
        delay: Seconds,
        args: tuple[Any, ...],
        keywords: dict[str, Any],
        key: Key | None,
        on_conflict: Conflict,
    ) -> int:
        try:
            inspect.signature(job.function).bind(*args, **keywords)
        except TypeError as error:
            raise TypeError(f"job {job.name!r}: {error}") from None
        text = {"args": json.loads(packed(list(args))), "kw": json.loads(packed(keywords))}
        runner = self._runner
        timers = runner.timers if runner is not None and not runner.ended else self._process.get()
        occurrences = Occurrences(timers, self.name, self.version)
        return occurrences.task(job.name, delay, text, key, on_conflict)
