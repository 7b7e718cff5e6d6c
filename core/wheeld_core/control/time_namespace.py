"""Time namespaces: whether two processes read the same CLOCK_MONOTONIC and CLOCK_BOOTTIME.

Deadlines are absolute readings of these clocks, made by one process and compared by another. In a
time namespace (`unshare -T`, a container with time offsets, a restored checkpoint) they are ahead
of or behind those of other processes.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TypeGuard

_PROCESS = Path("/proc/self")


def of_this_process() -> list[object] | None:
    """The values that `difference` compares: the number of the namespace and its offsets; None:
    unknown."""
    try:
        own = os.stat(_PROCESS / "ns/time").st_ino
        inherited = os.stat(_PROCESS / "ns/time_for_children").st_ino
        offsets = " ".join((_PROCESS / "timens_offsets").read_text("utf-8").split())
    except OSError:  # a kernel without them has the same time for all processes
        return None
    # The file is about child processes. If their namespace differs, this process's offsets cannot
    # be read.
    return [own, offsets if own == inherited else None]


def children_differ() -> bool:
    """Whether child processes live in another time namespace than this process."""
    known = of_this_process()
    return known is not None and known[1] is None


def difference(daemon: object, other: object) -> str | None:
    """How the clocks of two processes differ, in words; None if they are equal or nobody can tell.

    Two namespaces with the same offsets count as one.
    """
    if daemon is None or other is None:
        return None
    if not (_is_answer(daemon) and _is_answer(other)):
        return f"{other!r}, the daemon's is {daemon!r}"
    (here, offsets), (there, others) = daemon, other
    if offsets is None or others is None:
        return None if here == there else f"time:[{there}], the daemon in time:[{here}]"
    return None if offsets == others else f"offsets {others}, the daemon's are {offsets}"


def _is_answer(found: object) -> TypeGuard[list[object]]:
    """Whether this could be a result of `of_this_process`. It comes from a client, which is not
    trusted."""
    return isinstance(found, list) and len(found) == 2
