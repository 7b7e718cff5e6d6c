"""Workers that a start cannot see, because the earlier daemon was in another PID namespace.

Their process ids stand for other processes here, or none, and they would be taken for dead. The
kernel knows whether they live: it grants a write lease of a worker's segment only if no other
process has it open or mapped, in any namespace.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import Mapping
from pathlib import Path

from wheeld.resources.vital_signs import own_pid_namespace
from wheeld.tables.registry import Registry, RowState, Tenant
from wheeld_core import runtime, segments
from wheeld_core.errors import WheelError
from wheeld_core.views import RegistryView


def note_namespace(registry: mmap.mmap) -> None:
    RegistryView(registry).header["pid_ns"] = own_pid_namespace()


def check(name: str, prefix: str, memory: mmap.mmap) -> None:
    """Raise if a worker is alive in a namespace that this start cannot see.

    Parameters
    ----------
    name : str
        Name of the daemon.
    prefix : str
        What the names of its segments begin with.
    memory : mmap
        Its worker table.

    Raises
    ------
    WheelError
        One of them lives.
    """
    theirs, own = int(RegistryView(memory).header["pid_ns"]), own_pid_namespace()
    if theirs in (0, own):
        return
    registry, there = Registry(memory), segments.of_daemon(prefix, os.getuid())
    living = [one.name for one in registry.tenants.values() if _may_live(registry, one, there)]
    if living:
        raise WheelError(
            f"the last daemon {name!r} left a wheel in use in another PID namespace (pid:[{theirs}]"
            f", this start: pid:[{own}]), where workers, or processes that they started, still "
            f"run: {', '.join(living)}; start in that namespace (nsenter --pid, docker run --pid), "
            "or after they have ended, or with --fresh to discard it"
        )


def _may_live(registry: Registry, tenant: Tenant, there: Mapping[str, str]) -> bool:
    state = registry.state(tenant)
    if state == RowState.KEPT:
        return False
    kind = runtime.worker_segment(tenant.row)
    if kind not in there:  # removed although its worker lives, or not made yet
        return state != RowState.ATTACHING
    return _is_in_use(Path(segments.SHM_DIRECTORY, there[kind]))


def _is_in_use(path: Path) -> bool:
    """Does any process have that file open or mapped? True if that is unknown."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return True
    try:  # who opens it now waits until we close it; the SIGIO is ignored
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False
