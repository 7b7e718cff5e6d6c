"""The worker table: who is connected, in which row, under which incarnation.

The supervisor is its only writer. A row's `state` is written last when it is filled and first when
it is emptied, so a reader never takes a half-written row for an active one.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path

from wheeld_core import _native
from wheeld_core.errors import WheelError
from wheeld_core.views import RegistryView

NAME_BYTES = 63


class RowState(IntEnum):
    """State of a row of the worker table."""

    FREE = 0
    ATTACHING = 1
    ACTIVE = 2
    DYING = 3


@dataclass(frozen=True)
class Tenant:
    """The worker in a row."""

    row: int
    incarnation: int
    name: str
    pid: int


def process_start_time(pid: int) -> int:
    """When `pid` started, in clock ticks since boot; 0 when it is gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return int(stat.rpartition(")")[2].split()[19])


def _pid_namespace(pid: int) -> int:
    with contextlib.suppress(OSError):
        return os.stat(f"/proc/{pid}/ns/pid").st_ino
    return 0


class Registry:
    """Allocates rows and writes them."""

    def __init__(self, memory: mmap.mmap) -> None:
        self._memory = memory
        self._rows = RegistryView(memory).rows
        self._incarnations = 0
        self.tenants: dict[int, Tenant] = {}

    def allocate(self, name: str, pid: int, uid: int) -> Tenant:
        """Give a new worker a row, state ATTACHING.

        The row that had the same name before is taken again if it is free.

        Raises
        ------
        ValueError
            The name is empty, too long, or in use.
        WheelError
            Every row is taken.
        """
        encoded = name.encode()
        if not 1 <= len(encoded) <= NAME_BYTES or "\0" in name:
            raise ValueError(f"worker name {name!r}: expected 1 to {NAME_BYTES} bytes of UTF-8")
        for tenant in self.tenants.values():
            if tenant.name == name:
                raise ValueError(f"a worker {name!r} is connected already (pid {tenant.pid})")
        free = [row for row in range(len(self._rows)) if row not in self.tenants]
        if not free:
            raise WheelError(
                f"all {len(self._rows)} rows of the worker table are taken; start wheeld with a "
                "larger --max-workers"
            )
        row = next((row for row in free if bytes(self._rows["name"][row]) == encoded), free[0])
        self._incarnations += 1
        fields = self._rows[row]
        fields["pid"] = pid
        fields["uid"] = uid
        fields["incarnation"] = self._incarnations
        fields["start_time"] = process_start_time(pid)
        fields["pid_ns"] = _pid_namespace(pid)
        fields["name"] = encoded
        tenant = Tenant(row, self._incarnations, name, pid)
        self.tenants[row] = tenant
        self.set_state(tenant, RowState.ATTACHING)
        return tenant

    def set_state(self, tenant: Tenant, state: RowState) -> None:
        """Move a tenant on; FREE gives its row back."""
        _native.set_row_state(self._memory, tenant.row, state)
        if state == RowState.FREE:
            del self.tenants[tenant.row]

    def state(self, tenant: Tenant) -> RowState:
        """Where a tenant stands."""
        if self.tenants.get(tenant.row) != tenant:
            return RowState.FREE
        return RowState(int(self._rows["state"][tenant.row]))
