"""How many file descriptors a daemon needs, and whether it may have them.

For each worker the supervisor has its connection and its pidfd, and the clock its segment and its
FIFO. What is missing is said before anything is made: later it would be a new clock that finds no
room.
"""

from __future__ import annotations

import resource

from wheeld_core.errors import WheelError

OWN = 40
"""What the daemon keeps for itself: files, segments, its children, and a restart of these."""
COMMANDS = 24
"""Connections that are no worker's, with all workers there."""


def needed(max_workers: int) -> int:
    """The descriptors of a daemon with that many workers."""
    return 2 * max_workers + OWN + COMMANDS


def take_all() -> None:
    """Take as many as are allowed, for this process and its children."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def claim(max_workers: int) -> None:
    """The same, if they are enough.

    Raises
    ------
    WheelError
        They are too few for so many workers.
    """
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
    """How many may be open beside the pidfds of so many workers, and what the daemon needs itself.

    The limit may have been lowered since the start.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return soft - min(OWN, soft // 2) - workers
