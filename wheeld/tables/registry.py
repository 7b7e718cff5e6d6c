"""The worker table: the workers, with their rows and incarnations; and the groups.

The supervisor is its only writer. A row's `state` is written last when it is filled and first when
it is emptied, so a reader never takes a half-written row for an active one. The table outlives the
supervisor: the next one reads the workers from it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import numpy as np

from wheeld.processes import identity
from wheeld_core import _native
from wheeld_core.errors import NameInUse, WheelError, WorkersFull
from wheeld_core.packing import COMPLETION_STAGE, STATE_GEN, STATE_PHASE, Phase, Stage
from wheeld_core.runtime import GROUP_NAME_BYTES, WORKER_NAME_BYTES
from wheeld_core.views import RegistryView, SlotsView, WheelView


class RowState(IntEnum):
    """State of a row of the worker table."""

    FREE = 0
    ATTACHING = 1
    ACTIVE = 2
    DYING = 3
    KEPT = 4


ANY_UID: Final = 2**32 - 1
"""No user; for names restored from a snapshot without user ids."""
KEEPER: Final = "(detached)"
"""The name of the row without a process that keeps detached timers (clock/detached.h)."""
OWN_GROUP: Final = "="
"""A worker that receives detached timers is the only member of a group whose name is this prefix
and the worker's name. No user can join one."""
JOINED_GROUP: Final = "@"
"""Prefix of the names of groups that workers join and leave while running; `Deadlines` use them.
Only their events are for all members: a worker that dies leaves nothing else to them."""


class OnDeath(IntEnum):
    """A worker's policy for its timers, the value of `row.on_death`."""

    DROP = 0
    KEEP = 1
    REROUTE = 2

    @property
    def leave(self) -> int:
        return self + 1


@dataclass(eq=False)
class Tenant:
    """The worker in a row. The object is its identity, so changes are made in place."""

    row: int
    incarnation: int
    name: str
    pid: int
    on_death: OnDeath = OnDeath.DROP
    groups: int = 0
    """A bit per group."""
    named: bool = True
    """The user chose the name, so a successor can have it."""
    identity: int = 0
    uid: int = ANY_UID
    """The user of its process. Only that user may take over what it left."""
    drained: bool = False
    """Its group gives it nothing new; the next supervisor does not know that."""

    @property
    def is_keeper(self) -> bool:
        return self.name == KEEPER


def _encoded(what: str, name: object, most: int) -> bytes:
    encoded = name.encode(errors="replace") if isinstance(name, str) else b""
    if not 1 <= len(encoded) <= most or b"\0" in encoded:
        raise ValueError(f"{what}: expected 1 to {most} bytes of UTF-8")
    return encoded


def _check_printable(what: str, name: object) -> None:
    if not str(name).isprintable():
        raise ValueError(f"{what}: expected printable characters and no line breaks")


class Registry:
    """Allocates rows and writes them. Rows in `memory` that are not free become tenants. The table
    is copied, and later only the copy is read, because another process may write to the segment."""

    def __init__(self, memory: _native.Memory) -> None:
        self._memory = memory
        self._copy = _native.Memory(-1, len(memory), True)
        memoryview(self._copy)[:] = memoryview(memory)
        self.view = RegistryView(self._copy)
        self._rows = self.view.rows
        self._shared = RegistryView(memory).rows
        # Random in a new table, so that incarnations of another wheel match no worker here.
        self._incarnations = (
            int(self._rows["incarnation"].max()) or int.from_bytes(os.urandom(3)) << 16
        )
        self.tenants: dict[int, Tenant] = {
            row: self._read(row) for row in range(len(self._rows)) if self._rows["state"][row]
        }

    def _read(self, row: int) -> Tenant:
        fields = self._rows[row]
        on_death = int(fields["on_death"])
        return Tenant(
            row,
            int(fields["incarnation"]),
            bytes(fields["name"]).decode(errors="replace"),
            int(fields["pid"]),
            OnDeath(on_death) if on_death in set(OnDeath) else OnDeath.DROP,
            int(fields["groups"]),
            bool(fields["named"]),
            int(fields["start_time"]),
            int(fields["uid"]),
        )

    def allocate(
        self,
        name: str | None,
        pid: int,
        uid: int,
        on_death: OnDeath = OnDeath.DROP,
        groups: int = 0,
    ) -> Tenant:
        """Give a new worker a row, state ATTACHING.

        It gets the row that last had this name, if that is free. Without a name it gets one made
        from `pid`.

        `ValueError`: the name is empty or too long. `NameInUse`: a worker of that name is
        connected. `WorkersFull`: every row is taken.
        """
        chosen = name if name is not None else f"pid-{pid}-{self._incarnations + 1 & 0xFFFF}"
        encoded = self.encode_name(chosen)
        if (tenant := self.find(chosen)) is not None:
            raise NameInUse(f"a worker {chosen!r} is already connected (pid {tenant.pid})")
        free = [row for row in range(len(self._rows)) if row not in self.tenants]
        if not free:
            raise WorkersFull(
                f"all {len(self._rows)} rows of the worker table are taken; start wheeld with a "
                "larger --max-workers"
            )
        row = min(free, key=lambda row: bytes(self._rows["name"][row]) != encoded)
        self._incarnations += 1
        self._put(
            row,
            incarnation=self._incarnations,
            name=encoded,
            named=name is not None,
            segment_ino=0,
        )
        tenant = self._fill(row, pid, uid, on_death, groups)
        self.set_state(tenant, RowState.ATTACHING)
        return tenant

    def _fill(self, row: int, pid: int, uid: int, on_death: OnDeath, groups: int) -> Tenant:
        self._put(
            row,
            pid=pid,
            uid=uid,
            start_time=identity.of_pid(pid),
            pid_ns=identity.pid_namespace(pid),
            on_death=on_death,
            groups=groups,
        )
        self.tenants[row] = self._read(row)
        return self.tenants[row]

    def _put(self, row: int, **fields: int | bytes) -> None:
        for rows in (self._rows, self._shared):
            for name, value in fields.items():
                rows[row][name] = value

    def is_intact(self) -> bool:
        return bytes(self._memory) == bytes(self._copy)  # views compare item by item

    def note_segment(self, tenant: Tenant, inode: int) -> None:
        self._put(tenant.row, segment_ino=inode)

    def succeed(self, kept: Tenant, pid: int, uid: int, on_death: OnDeath, groups: int) -> Tenant:
        tenant = self._fill(kept.row, pid, uid, on_death, groups)
        self.set_state(tenant, RowState.ACTIVE)
        return tenant

    def put_back(self, kept: Tenant) -> None:
        """Undo `succeed`."""
        self._fill(kept.row, kept.pid, kept.uid, kept.on_death, kept.groups)
        self.tenants[kept.row] = kept
        self.set_state(kept, RowState.KEPT)

    def retire(self, tenant: Tenant, on_death: OnDeath) -> Tenant:
        tenant.on_death = on_death
        self._put(tenant.row, on_death=on_death)
        return tenant

    def drain(self, tenant: Tenant, on_death: OnDeath) -> Tenant:
        tenant.drained = True
        return self.retire(tenant, on_death)

    def set_aside(self, tenant: Tenant) -> Tenant:
        """Release a departed worker's name for others; its row stays."""
        suffix = f" (left {tenant.incarnation})"
        stem = tenant.name.removesuffix(suffix).encode()[: WORKER_NAME_BYTES - len(suffix)]
        tenant.name = stem.decode(errors="ignore") + suffix
        self._put(tenant.row, name=tenant.name.encode())
        return tenant

    def find(self, name: str) -> Tenant | None:
        return next((tenant for tenant in self.tenants.values() if tenant.name == name), None)

    @staticmethod
    def check_successor(kept: Tenant, uid: int) -> None:
        """Raise PermissionError unless the kept tenant belonged to that user.

        Payloads and cookies that another user wrote must not be trusted, not even by root; nor may
        others read them.
        """
        if kept.uid not in (uid, ANY_UID):
            raise PermissionError(
                f"worker {kept.name!r} is kept for a successor of uid {kept.uid}: uid {uid} may "
                "not take over its timers; use another worker name, or run as that user"
            )

    @staticmethod
    def encode_name(name: object) -> bytes:
        """The name as the table stores it; ValueError if it is too long."""
        encoded = _encoded(f"worker name {name!r}", name, WORKER_NAME_BYTES)
        if encoded.startswith(b"group:"):
            raise ValueError(f"worker name {name!r}: 'group:' is reserved for group names")
        return encoded

    @classmethod
    def check_name(cls, name: object) -> None:
        cls.encode_name(name)
        _check_printable(f"worker name {name!r}", name)
        if name == KEEPER:
            raise ValueError(f"worker name {name!r}: this name is reserved for the daemon")

    @staticmethod
    def encode_group(name: object) -> bytes:
        return _encoded(f"group {name!r}", name, GROUP_NAME_BYTES)

    @classmethod
    def check_group(cls, name: object) -> None:
        cls.encode_group(name)
        _check_printable(f"group {name!r}", name)
        if str(name).startswith(OWN_GROUP):
            raise ValueError(f"group {name!r}: {OWN_GROUP!r} is reserved at its begin")

    def group_bit(self, name: object, targets: Callable[[], frozenset[int]] | None = None) -> int:
        """The bit of a group; a new group gets a number.

        When all numbers have names, the number of an empty group is reused. Such a group has no
        workers, not even kept ones, and is not among the `targets` of timers that are armed or not
        delivered yet. Without `targets` no number is reused.

        `ValueError`: the name is not allowed. `WheelError`: all 64 groups are in use.
        """
        encoded = self.encode_group(name)
        known = self.view.group_names()
        for number, other in known.items():
            if other == name:
                return 1 << number
        unnamed = (number for number in range(_native.GROUPS) if number not in known)
        group = next(unnamed, None)
        if group is None and targets is not None:
            group = self._empty_group(targets())
        if group is None:
            raise WheelError(
                f"all {_native.GROUPS} groups have workers or pending timers: "
                f"{', '.join(known.values())}"
            )
        for memory in (self._copy, self._memory):
            _native.name_group(memory, group, encoded.decode())
        return 1 << group

    def own_group(self, name: str) -> int:
        """The bit of the group that belongs to one worker alone; 0: it was never addressed."""
        own = OWN_GROUP + name
        return sum(1 << number for number, known in self.group_names().items() if known == own)

    def joined(self) -> int:
        """The bits of the groups that workers join as they run."""
        names = self.group_names()
        return sum(1 << n for n, name in names.items() if name.startswith(JOINED_GROUP))

    def set_groups(self, tenant: Tenant, groups: int) -> None:
        tenant.groups = groups
        self._put(tenant.row, groups=groups)

    def _empty_group(self, targets: frozenset[int]) -> int | None:
        """A group without members and timers: the one whose number was reused least often."""
        in_use = 0
        for tenant in self.tenants.values():
            in_use |= tenant.groups
        words = {group: self.view.group_target(group) for group in range(_native.GROUPS)}
        empty = [
            group for group in words if not in_use >> group & 1 and words[group] not in targets
        ]
        return min(empty, key=words.__getitem__, default=None)

    def group_names(self) -> dict[int, str]:
        return self.view.group_names()

    def members(self, groups: int) -> list[Tenant]:
        return [
            tenant
            for tenant in self.tenants.values()
            if tenant.groups & groups
            and not tenant.drained
            and self.state(tenant) == RowState.ACTIVE
        ]

    def set_state(self, tenant: Tenant, state: RowState) -> None:
        """Move a tenant to another state; FREE gives its row back."""
        for memory in (self._copy, self._memory):
            _native.set_row_state(memory, tenant.row, state)
        if state == RowState.FREE:
            del self.tenants[tenant.row]

    def is_tenant(self, tenant: Tenant) -> bool:
        """Whether it is still the tenant of its row. A successor, which has the same incarnation,
        is another tenant."""
        return self.tenants.get(tenant.row) is tenant

    def state(self, tenant: Tenant) -> RowState:
        """A tenant's state; FREE if the row belongs to another tenant."""
        now = self.tenants.get(tenant.row)
        if now is None or now.incarnation != tenant.incarnation:
            return RowState.FREE
        return RowState(int(self._rows["state"][tenant.row]))

    def arrives(self, tenant: Tenant) -> bool:
        return self.state(tenant) == RowState.ATTACHING

    def open_process(self, tenant: Tenant) -> int | None:
        pid_ns = int(self._rows["pid_ns"][tenant.row])
        uid = tenant.uid if tenant.uid != ANY_UID else None
        return identity.open_process(tenant.pid, tenant.identity, pid_ns, uid)


_NOBODY_ELSES: Final = (
    Stage.WAIT_RETURN,
    Stage.LENT,
    Stage.EXPIRED,
    Stage.RETURNED,
    Stage.RECLAIMED,
    Stage.HANDED,
)
"""Stages of a fired timer that its owner or its target already has, so no group will get it."""


def targets(wheel: WheelView, slots: SlotsView) -> frozenset[int]:
    """The `target` words of timers that are armed, fired and not delivered, offered, or taken.

    Timers armed in the meantime may be missed; their words say which use of a number they mean, see
    WH_GROUP_FIELDS in layout.h.
    """
    states = slots.states.copy()
    phases = STATE_PHASE.of(states)
    fired = np.flatnonzero(phases == Phase.FIRED)
    links = wheel.links[fired]
    known = links["gen"] == STATE_GEN.of(states[fired])
    over = known & np.isin(COMPLETION_STAGE.of(links["completion"]), _NOBODY_ELSES)
    index = np.concatenate(
        [np.flatnonzero(np.isin(phases, (Phase.ARMED, Phase.TAKEN))), fired[~over]]
    )
    return frozenset(np.unique(slots.slots["target"][index]).tolist())
