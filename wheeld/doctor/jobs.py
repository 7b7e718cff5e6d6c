"""The checks of `wheeld doctor` on jobs: whether workers run them, and have their functions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import numpy as np

from wheeld.doctor.machine import Finding, ok
from wheeld.fsck.image import FIRED, WheelImage
from wheeld.tables.registry import RowState
from wheeld_client import JobBoard, JobState
from wheeld_core.errors import WheelError
from wheeld_core.packing import FLAGS_CLOCK
from wheeld_core.units import duration
from wheeld_core.views import RegistryView

GROUP: Final = "jobs-"
"""Begins the name of each group of workers that run an application's jobs."""
LATE_NS: Final = 10 * 10**9
REMOVED: Final = "removed"


@dataclass(frozen=True)
class Queue:
    """Runs of an application that have fallen due, and that no worker has taken."""

    application: str
    runners: tuple[str, ...]
    """Workers that run its jobs."""
    waiting: int
    oldest_ns: int
    """For how long the first of them has waited."""


@dataclass(frozen=True)
class ObservedJobs:
    queues: tuple[Queue, ...]
    jobs: tuple[JobState, ...]
    wall_ns: int
    """The wheel's wall clock, as the times of the jobs."""


# -- reading ---------------------------------------------------------------------------------------


def queues(
    image: WheelImage, registry: RegistryView, names: Mapping[int, str], now: int
) -> Iterator[Queue]:
    """`now`: the wheel's base clock."""
    there = image.rows["state"] == RowState.ACTIVE
    fired = np.flatnonzero(image.phases == FIRED)
    slots = image.slots[fired]
    due = slots["deadline"] + image.clock_offsets[FLAGS_CLOCK.of(slots["flags"]).astype(np.int64)]
    for group, name in registry.group_names().items():
        if not name.startswith(GROUP):
            continue
        members = there & (image.rows["groups"] >> np.uint64(group) & np.uint64(1) == 1)
        mine = slots["target"] == registry.group_target(group)
        mine &= slots["payload_size"] != 0  # without one it is the end of a lock
        yield Queue(
            name.removeprefix(GROUP),
            tuple(names.get(row, f"row {row}") for row in np.flatnonzero(members).tolist()),
            int(mine.sum()),
            now - int(due[mine].min()) if mine.any() else 0,
        )


def gather(found: Sequence[Queue], wall_ns: int, directory: str) -> ObservedJobs:
    jobs: list[JobState] = []
    with suppress(WheelError, OSError):  # the daemon has just ended, or is another user's
        jobs = JobBoard(directory).jobs()
    return ObservedJobs(tuple(found), tuple(jobs), wall_ns)


# -- the checks ------------------------------------------------------------------------------------


def runners(o: ObservedJobs) -> Finding:
    """Check that each application's jobs are run by some worker, in time."""
    name, bad, idle, advice = "job runners", [], [], set()
    for queue in o.queues:
        jobs = [job for job in o.jobs if job.application == queue.application]
        due = [job.next for job in jobs if job.next is not None and job.schedule != REMOVED]
        since = f", the first for {duration(queue.oldest_ns)}" if queue.waiting else ""
        if not queue.runners and queue.waiting:
            bad.append(f"{queue.application}: no worker, {queue.waiting:,} runs wait{since}")
            advice.add("start a worker with `jobs.start()`, or the line of its server")
        elif not queue.runners and due:
            left = max(round(min(due) * 1e9) - o.wall_ns, 0)
            idle.append(f"{queue.application}: no worker, the next run is due in {duration(left)}")
        elif queue.oldest_ns >= LATE_NS:
            who = ", ".join(queue.runners)
            bad.append(f"{queue.application}: {queue.waiting:,} runs wait{since}; {who}")
            advice.add("all threads are in a job, or stopped: Jobs(threads=), or more workers")
    if not bad and not idle:
        return ok(name, f"{len(o.queues)} applications, nothing waits for long")
    return Finding(
        name, "warning" if bad else "note", "; ".join(bad + idle), "workers that run each job",
        "; ".join(sorted(advice)) or "they run when a worker starts, as late as `grace` allows",
    )  # fmt: skip


def functions(o: ObservedJobs) -> Finding:
    """Check that the workers have the functions of all jobs."""
    name = "job functions"
    bad = [job for job in o.jobs if job.unclaimed is not None]
    if not bad:
        return ok(name, f"{len(o.jobs)} jobs, none is offered in vain")
    texts = [
        f"{job.application}/{job.name} for "
        f"{duration(max(o.wall_ns - round((job.unclaimed or 0.0) * 1e9), 0))}"
        for job in bad
    ]
    return Finding(
        name, "warning", f"no worker that runs has {'; '.join(texts)}",
        "workers of the newest version",
        "deploy the version that has it; or start one with a larger `version` that does not have "
        "it, which ends a job with a schedule",
    )  # fmt: skip


CHECKS: tuple[Callable[[ObservedJobs], Finding], ...] = (runners, functions)
