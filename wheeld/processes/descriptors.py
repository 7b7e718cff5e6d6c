"""How many file descriptors a daemon needs, and whether it may have them.

For each worker the supervisor has its connection and its pidfd, and the clock its segment and its
FIFO. A shortage is reported before anything is made: later it might be a new clock that cannot
start.
"""

from __future__ import annotations

import resource

from wheeld_core.errors import WheelError

OWN = 40
"""Descriptors for the daemon's own files, segments and children, including restarts of children."""
COMMANDS = 24
"""Connections of other processes, in addition to all workers."""


def needed(max_workers: int) -> int:
    return 2 * max_workers + OWN + COMMANDS


def take_all() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def claim(max_workers: int) -> None:
    """As `take_all`, but check that they are enough. `WheelError`: they are too few for this many
    workers."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = needed(max_workers)
    if hard != resource.RLIM_INFINITY and hard < wanted:
        fewer = (hard - needed(0)) // 2
        instead = f", or start with --max-workers {fewer}" if fewer > 0 else ""
        raise WheelError(
            f"{hard} open files are allowed (RLIMIT_NOFILE), expected {wanted} or more for "
            f"{max_workers} workers: raise the limit (`ulimit -n {wanted}`, or LimitNOFILE= in the "
            f"unit){instead}"
        )
    take_all()


def most_connections(workers: int) -> int:
    """How many connections may be open, besides the pidfds of `workers` and the daemon's own files.

    The limit may have been lowered since the start.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft - min(OWN, soft // 2) - workers
