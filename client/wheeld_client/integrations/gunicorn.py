"""Hooks for gunicorn.conf.py: each worker process is a worker of the daemon from its start.

    from wheeld_client.integrations.gunicorn import connect_worker, leave_worker
    post_fork = connect_worker("default", group="web")
    worker_exit = leave_worker

`timers()` in the application gives the worker's connection, whose callbacks a thread dispatches.

    post_worker_init = run_jobs("shop.work:jobs")

has each worker process run jobs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Unpack

from wheeld_client.connection.options import ConnectKeywords
from wheeld_client.integrations.process import ProcessTimers, RunsJobs, jobs_of
from wheeld_client.timers.timers import Timers

__all__ = ["connect_worker", "leave_worker", "run_jobs", "timers"]

_processes: list[ProcessTimers] = []


def connect_worker(
    daemon: str = "default", **options: Unpack[ConnectKeywords]
) -> Callable[[Any, Any], None]:
    """A `post_fork` hook that connects.

    Without a daemon the worker still starts, because gunicorn would otherwise restart it over and
    over.

    Parameters
    ----------
    daemon : str
        Name of the daemon, or the path of its runtime directory.
    **options
        As in `connect`. `worker` gets the worker's number in `{age}`, such as "web-{age}"; a
        number is used once.

    Raises
    ------
    ValueError
        `worker` has other words than `{age}` in braces.
    """
    process = ProcessTimers(daemon, **options)
    name = options.get("worker")
    if name is not None:
        try:
            name.format(age=1)
        except (LookupError, ValueError, AttributeError) as error:
            message = f"worker={name!r}: expected a name, with {{age}} for a number: 'web-{{age}}'"
            raise ValueError(message) from error
    _processes[:] = [process]

    def post_fork(server: Any, worker: Any) -> None:
        if name is not None:
            process.rename(name.format(age=worker.age))
        process.find()

    return post_fork


def leave_worker(server: Any, worker: Any) -> None:
    """The `worker_exit` hook that leaves the daemon."""
    for process in _processes:
        process.close()


def run_jobs(jobs: RunsJobs | str) -> Callable[[Any], None]:
    """A `post_worker_init` hook: the worker process runs jobs from its start to its exit.

    It does so without a request; while there is no daemon, it waits for one. At its exit it
    completes the runs that have begun. If they take longer than gunicorn's `graceful_timeout`,
    gunicorn kills it, and another worker runs them again.

    Parameters
    ----------
    jobs : Jobs or str
        "shop.work:jobs" is imported by the worker, so that a reload (HUP) takes new code.
    """

    def post_worker_init(worker: Any) -> None:
        found, ended = jobs_of(jobs), worker.cfg.worker_exit

        def worker_exit(server: Any, leaving: Any) -> None:
            found.stop(wait=True)
            ended(server, leaving)

        worker.cfg.set("worker_exit", worker_exit)
        found.start()

    return post_worker_init


def connected() -> ProcessTimers | None:
    """The connection of `connect_worker`, for `TimeoutMiddleware`."""
    return _processes[0] if _processes else None


def timers() -> Timers:
    """This process's worker; errors as in `connect` if there is no daemon.

    Raises
    ------
    RuntimeError
        `connect_worker` was not called.
    """
    if (process := connected()) is None:
        raise RuntimeError(
            "this process is not connected; set in gunicorn.conf.py: "
            "post_fork = wheeld_client.integrations.gunicorn.connect_worker(...)"
        )
    return process.get()
