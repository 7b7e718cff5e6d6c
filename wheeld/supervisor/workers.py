"""The workers of a daemon: how they arrive, reconnect, and depart.

A worker is a process with a row of the worker table. It departs by a good-bye or by its death
(pidfd), not by the end of its connection (`FencedWorkers`). Both lead to the same departure, which
begins once. Its policy decides whether its timers are dropped, kept, or rerouted.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from wheeld.clock.guard import ClockGone, ClockGuard
from wheeld.config.settings import Config
from wheeld.processes.journal import about
from wheeld.processes.messages import Order
from wheeld.processes.pidfd import ended, has_ended, kill, wait_for_end
from wheeld.resources.events import Kind
from wheeld.resources.owned import Resources
from wheeld.resources.remains import KINDS
from wheeld.supervisor.access import Caller
from wheeld.tables.registry import (
    ANY_UID,
    JOINED_GROUP,
    KEEPER,
    OWN_GROUP,
    OnDeath,
    Registry,
    RowState,
    Tenant,
    targets,
)
from wheeld_core import _native, runtime, segments
from wheeld_core.control import time_namespace
from wheeld_core.control.messages import Back, Message, Request, Welcome
from wheeld_core.errors import DaemonNotRunning, LayoutMismatch, WheelError
from wheeld_core.views import record


class Workers:
    """Registers workers, watches their processes, and cleans up after them."""

    def __init__(self, resources: Resources) -> None:
        self._resources = resources
        self.registry = Registry(resources.memories["registry"])
        resources.is_table_intact = self.registry.is_intact
        self.clock: ClockGuard
        self.on_arrival: Callable[[Tenant], None] = lambda tenant: None
        """Called for each new worker before the clock serves it."""
        self.on_departure: Callable[[Tenant], None] = lambda tenant: None
        """Called for each worker whose row is about to be free."""
        self._token = int(record(resources.memories["wheel"], "head")["token"])
        self._pidfds: dict[int, int] = {}
        self._departures: dict[int, asyncio.Task[None]] = {}
        self.fenced = FencedWorkers(resources)
        self._kept = KeptWorkers(resources, self.registry, self.fenced, self._depart)
        self.connections = Connections()
        self._addressing = asyncio.Lock()
        self.last_left = time.monotonic()
        """When the last worker left a free row."""
        self._killed: dict[int, int] = {}
        """Row -> pidfd of a departing worker that may not be dead yet."""

    @property
    def _config(self) -> Config:
        return self._resources.config

    # -- for a new clock ------------------------------------------------------------------------

    def attachments(self) -> list[Message]:
        """All workers that a new clock serves from its start."""
        for row in self.registry.tenants:
            self._resources.mend_worker(row)
        return [
            self._attachment(tenant)
            for tenant in self.registry.tenants.values()
            if runtime.worker_segment(tenant.row) in self._resources.names
        ]

    def _attachment(self, tenant: Tenant) -> Message:
        return {
            "row": tenant.row,
            "incarnation": tenant.incarnation,
            "segment": self._resources.names[runtime.worker_segment(tenant.row)],
            "bell": str(self._resources.directory / runtime.worker_fifo(tenant.row)),
            "groups": ALL_GROUPS if tenant.is_keeper else tenant.groups,
            "keep_ns": round(self._config.keep_for_s * 1e9) if tenant.is_keeper else None,
            "present": self._is_present(tenant),
        }

    def damaged(self, found: list[tuple[int, str]]) -> None:
        """Remove workers whose segments a new clock found unusable; `found`: rows, reasons."""
        for row, why in found:
            tenant = self.registry.tenants.get(row)
            if tenant is not None:
                # It would go on writing into slots that belong to others by then.
                said = "(pid %d): its segment is damaged: %s: killed"
                about(tenant.name).warning(said, tenant.pid, why)
                if row in self._pidfds:
                    kill(self._pidfds[row])
                    self._killed[row] = os.dup(self._pidfds[row])
                self._resources.disuse_segment(runtime.worker_segment(row))
                self.registry.retire(tenant, OnDeath.DROP)
                self._depart(tenant, "is out")

    # -- a supervisor that comes after a killed one -----------------------------------------------

    def adopt(self) -> None:
        """Take over the workers of a killed supervisor, and find their segments; nothing runs
        yet."""
        gone = (RowState.FREE, RowState.KEPT)
        tenants = self.registry.tenants
        self._resources.sharing.resume(
            [row for row, tenant in tenants.items() if self.registry.state(tenant) not in gone]
        )
        for tenant in list(self.registry.tenants.values()):
            try:
                self._resources.find_worker_segment(tenant.row)
                self._resources.make_fifo(runtime.worker_fifo(tenant.row), keep=True)
            except (WheelError, OSError) as error:
                about(tenant.name).warning("has no usable segment: %s", error)
                pidfd = self.registry.open_process(tenant)
                if pidfd is not None:
                    if self.registry.state(tenant) in (RowState.ACTIVE, RowState.DYING):
                        kill(pidfd)  # as in `damaged`
                        wait_for_end(pidfd)
                    os.close(pidfd)
                self._evict(tenant)
                self._drop_segment(tenant)
                self.registry.set_state(tenant, RowState.FREE)

    def watch_adopted(self) -> None:
        """Watch the live workers, and begin the departure of the others. Called once the clock
        runs."""
        for tenant in list(self.registry.tenants.values()):
            state = self.registry.state(tenant)
            pidfd = self.registry.open_process(tenant)
            if state == RowState.KEPT:
                self._kept.add(tenant)
            elif pidfd is None or self.fenced.said_goodbye(tenant):
                self._depart(tenant, f"{DIED} or left while there was no supervisor")
            else:
                self._watch(tenant, pidfd)
                about(tenant.name).info("(pid %d) is still running", tenant.pid)
                self.connections.await_reconnect(tenant.row)
                if state != RowState.ACTIVE:
                    self._fence(tenant)
                continue
            if pidfd is not None:
                os.close(pidfd)

    def look_for_goodbyes(self) -> None:
        """Of those that have not reconnected: the segment of a successor says good-bye until its
        client has it."""
        for tenant in list(self.registry.tenants.values()):
            active = self.registry.state(tenant) == RowState.ACTIVE
            if active and self.connections.awaits(tenant) and self.fenced.said_goodbye(tenant):
                self._depart(tenant, "left while there was no supervisor")

    def _watch(self, tenant: Tenant, pidfd: int) -> None:
        self._pidfds[tenant.row] = pidfd
        asyncio.get_running_loop().add_reader(pidfd, lambda: self.depart(tenant, DIED))

    # -- a worker without a connection ------------------------------------------------------------

    def hang_up(self, tenant: Tenant) -> None:
        """Called when a worker's connection has ended: the worker departs, or is fenced if its
        process lives and has not said good-bye. A dying process closes its connection before it is
        dead."""
        if not self.connections.closed(tenant) or self.registry.state(tenant) != RowState.ACTIVE:
            return
        if not self.registry.is_tenant(tenant):
            return  # its successor is there already
        pidfd = self._pidfds.get(tenant.row)
        if pidfd is None or self.fenced.said_goodbye(tenant):
            self._depart(tenant, "closed its connection")
        elif has_ended(pidfd):  # its end may come before the readiness of its pidfd
            self._depart(tenant, DIED)
        else:
            self._fence(tenant)

    def _fence(self, tenant: Tenant) -> None:
        self.registry.set_state(tenant, RowState.DYING)
        self.set_presence(tenant)
        self.fenced.add(tenant)

    # -- arrival ----------------------------------------------------------------------------------

    async def arrive(self, message: Message, caller: Caller) -> tuple[Tenant, Welcome]:
        """Register a worker; returns its tenancy and the answer to its hello."""
        pid, uid = caller.pid, caller.uid
        check_compatible(message)
        on_death, groups = policy_of(message, self.registry, self._resources)
        name = message.get("worker")
        if name is not None:
            self.registry.check_name(name)
        if on_death == OnDeath.KEEP and name is None:
            raise ValueError("on_death='keep' needs a worker name, which its successor uses")
        if pid == 0:
            raise WheelError("a worker must be in the daemon's pid namespace (or one below it)")
        try:
            self._resources.check_and_mend()
        except WheelError:
            self.clock.look_soon()  # which ends the daemon
            raise
        for left in self.fenced.left():
            self._depart(left, "left after it had lost its connection")
        name, kept = await self._place_of(name, bool(message.get("numbered")), uid)
        groups |= self.registry.own_group(name) if name is not None else 0
        pidfd = caller.open_process()
        try:
            if kept is not None:
                tenant = await self._succeed(kept, pid, uid, on_death, groups)
            else:
                tenant = self.registry.allocate(name, pid, uid, on_death, groups)
                await self._furnish(tenant)
        except BaseException:
            os.close(pidfd)
            raise
        self._watch(tenant, pidfd)
        self.connections.opened(tenant)
        about(tenant.name).info("(pid %d) %s", pid, "came back" if kept else "connected")
        self._kept.offer_all()
        return tenant, welcome_of(tenant, bool(kept), self._resources, self._token)

    async def _place_of(
        self, name: str | None, numbered: bool, uid: int
    ) -> tuple[str | None, Tenant | None]:
        """The worker's name, and the kept tenant of that name. A forked child gets its parent's
        name with the first number that no live worker has, so that a later child can succeed it."""
        if name is None or not numbered:
            kept = await self._settled(name)
            if kept is not None:
                self.registry.check_successor(kept, uid)
            return name, kept
        one = name
        for number in range(1, self._config.max_workers + 2):  # each of the others has a row
            one = with_number(name, number)
            kept = await self._settled(one)
            if kept is not None:
                with contextlib.suppress(PermissionError):  # another user's: try the next number
                    self.registry.check_successor(kept, uid)
                    return one, kept
            elif self.registry.find(one) is None:
                break
        return one, None

    async def _settled(self, name: str | None) -> Tenant | None:
        """The kept tenant of that name, after waiting for a departure in progress."""
        tenant = self.registry.find(name) if name is not None else None
        if tenant is not None:
            await self.fenced.await_end(tenant)
            if has_ended(self._pidfds.get(tenant.row)):
                self._depart(tenant, DIED)
        if tenant is not None and tenant.row in self._departures:
            with contextlib.suppress(WheelError, TimeoutError):
                await asyncio.wait_for(asyncio.shield(self._departures[tenant.row]), 10)
            tenant = self.registry.find(str(name))
        kept = tenant is not None and self.registry.state(tenant) == RowState.KEPT
        return tenant if kept else None

    async def _succeed(
        self, kept: Tenant, pid: int, uid: int, on_death: OnDeath, groups: int
    ) -> Tenant:
        """Give it the row and what was left there, once the clock knows whose hands those are: what
        is in the hands of an absent worker goes to others."""
        self.fenced.await_client(kept)
        self._kept.remove(kept.row)
        tenant = self.registry.succeed(kept, pid, uid, on_death, groups)
        try:
            await self._attach(tenant)
            self._resources.sharing.seat(tenant.row, tenant.incarnation)
        except BaseException:  # such as the end of this daemon: its successor may ask the next one
            if self.registry.state(tenant) == RowState.ACTIVE:
                self.registry.put_back(kept)
                self.set_presence(kept)
                self._kept.add(kept)
            raise
        return tenant

    async def _attach(self, tenant: Tenant) -> None:
        """Have the clock serve it; a clock that comes meanwhile, as it is by then.
        WheelError: that clock has found its segment damaged."""

        def as_it_is() -> Message:
            self._check_here(tenant)
            return self._attachment(tenant)

        await self.clock.attach(tenant.row, as_it_is)
        self._check_here(tenant)

    def _check_here(self, tenant: Tenant) -> None:
        if not self._is_here(tenant):
            raise WheelError("the segment of this worker was damaged while it connected")

    def _is_here(self, tenant: Tenant) -> bool:
        return self.registry.state(tenant) in (RowState.ATTACHING, RowState.ACTIVE)

    def _is_present(self, tenant: Tenant) -> bool:
        return self._is_here(tenant) and not (tenant.is_keeper or tenant.drained)

    def set_presence(self, tenant: Tenant) -> None:
        """Tell the clock whether it may be given timers, and of which groups."""
        here, groups = self._is_present(tenant), tenant.groups
        self.clock.send(Order.PRESENCE, row=tenant.row, present=here, groups=groups)

    # -- detached timers --------------------------------------------------------------------------

    async def address(self, to: object) -> None:
        """Make sure that detached timers can wait for this receiver: make a row to keep them, and
        give its group a number. `ValueError`: the name is not allowed for a receiver. `WheelError`:
        no row or no number is free."""
        is_group = isinstance(to, str) and to.startswith("group:")
        name = str(to).removeprefix("group:") if is_group else to
        if is_group:
            self.registry.check_group(name)
        else:
            self.registry.check_name(name)
        async with self._addressing:
            bit = await self._number(str(name) if is_group else OWN_GROUP + str(name))
            tenant = None if is_group else self.registry.find(str(name))
            if tenant is not None:
                self._set_groups(tenant, tenant.groups | bit)

    async def _number(self, group: str) -> int:
        """The bit of a group for which detached timers can wait; makes the row that keeps them."""
        if self.registry.find(KEEPER) is None:
            keeper = self.registry.allocate(KEEPER, 0, ANY_UID, OnDeath.KEEP)
            await self._furnish(keeper, RowState.KEPT)
        wheel, slots = self._resources.wheel, self._resources.slots
        return self.registry.group_bit(group, lambda: targets(wheel, slots))

    def _set_groups(self, tenant: Tenant, groups: int) -> None:
        if tenant.groups == groups:
            return
        self.registry.set_groups(tenant, groups)
        if self.registry.state(tenant) != RowState.FREE:
            self.set_presence(tenant)

    async def join(self, message: Message, caller: Caller) -> Message:
        """Add a live worker to one more group, or remove it. `ValueError`: workers cannot join this
        group. Also raises as `resume` and `address` do."""
        group, tenant = message.get("group"), self._caller_of(message, caller)
        self.registry.check_group(group)
        if not str(group).startswith(JOINED_GROUP):
            raise ValueError(f"group {group!r}: expected {JOINED_GROUP!r} at its begin")
        async with self._addressing:
            bit = await self._number(str(group))
            if self.registry.is_tenant(tenant):
                leaves = message.get("op") == Request.LEAVE
                self._set_groups(tenant, tenant.groups & ~bit if leaves else tenant.groups | bit)
        return {"ok": True}

    async def _furnish(self, tenant: Tenant, state: RowState = RowState.ACTIVE) -> None:
        """Make its segment and FIFO, and have the clock serve it."""
        self.on_arrival(tenant)
        try:
            name = self._resources.make_worker_segment(tenant.row)
            self.registry.note_segment(tenant, segments.inode_word(name))
            self._resources.make_fifo(runtime.worker_fifo(tenant.row))
            await self._attach(tenant)
            if not tenant.is_keeper:
                self._resources.sharing.seat(tenant.row, tenant.incarnation)
        except BaseException:
            if self.registry.arrives(tenant):
                self._forget(tenant)
            raise
        self.registry.set_state(tenant, state)

    def resume(self, message: Message, caller: Caller) -> tuple[Tenant, Back]:
        """The tenancy of a live worker that lost its connection, and the answer to it.
        `DaemonNotRunning`: it is not this daemon's: the segments are different, or it was reaped
        meanwhile."""
        tenant = self._caller_of(message, caller)
        about(tenant.name).info("(pid %d) reconnected", tenant.pid)
        self.connections.opened(tenant)
        return tenant, back_of(tenant)

    def _caller_of(self, message: Message, caller: Caller) -> Tenant:
        check_compatible(message)
        if message.get("token") != self._token:
            raise DaemonNotRunning("the daemon was started with a fresh wheel; connect() again")
        row = message.get("row")
        tenant = self.registry.tenants.get(row) if type(row) is int else None
        if (
            tenant is None
            or tenant.incarnation != message.get("incarnation")
            or not self._is_of(tenant, caller)
            or not self._may_resume(tenant)
        ):
            raise DaemonNotRunning("the daemon no longer knows this worker; connect() again")
        return tenant

    def _is_of(self, tenant: Tenant, caller: Caller) -> bool:
        os.close(caller.open_process())
        alive = tenant.row in self._pidfds and not has_ended(self._pidfds[tenant.row])
        return alive and tenant.pid == caller.pid

    def _may_resume(self, tenant: Tenant) -> bool:
        if self.fenced.holds(tenant):
            return self.fenced.said_goodbye(tenant)
        return self.registry.state(tenant) == RowState.ACTIVE

    # -- departure --------------------------------------------------------------------------------

    def depart(self, tenant: Tenant, why: str) -> asyncio.Task[None] | None:
        """Begin a worker's departure, once; returns the task that completes it."""
        state = self.registry.state(tenant)
        if not self.registry.is_tenant(tenant) and state != RowState.DYING:
            return None  # its successor is there already
        if state in (RowState.FREE, RowState.KEPT):
            return None
        return self._depart(tenant, why)

    def _depart(self, tenant: Tenant, why: str) -> asyncio.Task[None]:
        if tenant.row not in self._departures:
            about(tenant.name).info("(pid %d) %s", tenant.pid, why)
            was_kept = self.registry.state(tenant) == RowState.KEPT
            if self.registry.is_tenant(tenant):
                self._set_groups(tenant, tenant.groups & ~self.registry.joined())
            self.registry.set_state(tenant, RowState.DYING)
            self._kept.remove(tenant.row)
            self._unwatch(tenant)
            self._departures[tenant.row] = asyncio.create_task(self._reap(tenant, why, was_kept))
        return self._departures[tenant.row]

    def _unwatch(self, tenant: Tenant) -> None:
        pidfd = self._pidfds.pop(tenant.row, None)
        self.connections.discard(tenant.row)
        self.fenced.remove(tenant.row)
        if pidfd is not None:
            asyncio.get_running_loop().remove_reader(pidfd)
            os.close(pidfd)

    async def _reap(self, tenant: Tenant, why: str, was_kept: bool) -> None:
        """Make the clock apply the policy; afterwards the row is free or kept."""
        before = self._dropped(tenant)
        policy = tenant.on_death
        if policy == OnDeath.REROUTE and not self._kept.has_receiver(tenant.groups):
            policy = OnDeath.KEEP
        try:
            if (pidfd := self._killed.pop(tenant.row, None)) is not None:
                await ended(pidfd)
            self._evict(tenant)
            kept = await self.clock.reap(tenant.row, policy.leave)
        except ClockGone:
            return  # the daemon stops; the row stays as it is
        finally:
            self._departures.pop(tenant.row)
        dropped = self._dropped(tenant) - before
        if why.startswith(DIED) or dropped or kept or was_kept or tenant.drained:
            self._note_departure(tenant, why, policy, kept, dropped, was_kept)
        if not kept:
            self._forget(tenant)
            return
        if tenant.on_death == OnDeath.REROUTE:
            # A group member may have part of it, whose records are still in its ring: no successor
            # may read them.
            tenant = self.registry.set_aside(tenant)
        self.registry.set_state(tenant, RowState.KEPT)
        self._kept.add(tenant)

    def note(self, kind: Kind, text: str, tenant: Tenant) -> None:
        about(tenant.name).warning("%s", text)
        self._resources.events.note(kind, text, tenant.name)

    def _dropped(self, tenant: Tenant) -> int:
        return int(self._resources.wheel.ports["dropped"][tenant.row])

    def _note_departure(
        self, tenant: Tenant, why: str, policy: OnDeath, kept: bool, dropped: int, was_kept: bool
    ) -> None:
        text = f"(pid {tenant.pid}) {why}"
        if dropped:
            text += f"; {dropped} timers were dropped" + (
                "" if was_kept or policy != OnDeath.DROP else ": its on_death is 'drop'"
            )
        elif kept:
            text += f"; its timers are kept for {self._config.keep_for}"
        elif policy == OnDeath.REROUTE and not was_kept:
            text += "; its group has its timers"
        kind = Kind.DEPARTURE
        if why.startswith(DIED):
            kind = Kind.DEATH
        elif dropped:
            kind = Kind.DROPPED
        elif why == INHERITED:
            kind = Kind.INHERITED
        self._resources.events.note(kind, text, tenant.name, dropped=dropped)

    def _evict(self, tenant: Tenant) -> None:
        """Remove a worker whose process has gone from the shared tables."""
        try:
            returned = self._resources.sharing.clear(tenant.row)
        except WheelError as error:
            about(tenant.name).error("cannot be removed from the shared tables: %s", error)
            self.clock.look_soon()  # if they are damaged the daemon ends
            return
        if returned > 0:
            about(tenant.name).info("left: %d bytes were returned to the pools", returned)

    def _drop_segment(self, tenant: Tenant) -> None:
        try:
            self._resources.drop_segment(runtime.worker_segment(tenant.row))
        except WheelError as error:  # not our error: the row must be freed all the same
            about(tenant.name).warning("left a segment: %s", error)

    def _forget(self, tenant: Tenant) -> None:
        self.on_departure(tenant)
        self._unwatch(tenant)
        self._evict(tenant)
        self._drop_segment(tenant)
        self._resources.drop_file(runtime.worker_fifo(tenant.row))
        self.registry.set_state(tenant, RowState.FREE)
        self.last_left = time.monotonic()

    def offences(self, tenant: Tenant) -> int:
        return int(self._resources.wheel.ports["offences"][tenant.row])

    def pidfd(self, tenant: Tenant) -> int | None:
        return self._pidfds.get(tenant.row)

    def give_up(self, kept: Tenant, why: str) -> None:
        self._depart(self.registry.retire(kept, OnDeath.DROP), why)

    async def close(self) -> None:
        for task in self._departures.values():
            task.cancel()
        await asyncio.gather(*self._departures.values(), return_exceptions=True)
        self._kept.close()
        self.fenced.close()
        for pidfd in [*self._pidfds.values(), *self._killed.values()]:
            os.close(pidfd)
        self._pidfds.clear()


DIED: Final = "died"
INHERITED: Final = "is inherited by its group"
"""Why a row is given up, in the words of the log and of `wheeld events`."""
ALL_GROUPS: Final = 2**64 - 1
NOTICE_SECONDS: Final = 1.0
"""Seconds that a process may take to die once it has closed its connection; then that is logged."""


class FencedWorkers:
    """The fenced workers, and flags in workers' segments that their clients set.

    The end of a connection is not a departure: a process may close all its descriptors and live on.
    Its worker is fenced then: its row is no longer ACTIVE, so its calls are refused, but it keeps
    its slots until the process ends or says good-bye.
    """

    def __init__(self, resources: Resources) -> None:
        self._resources = resources
        self._fenced: dict[int, tuple[Tenant, asyncio.Event]] = {}

    def add(self, tenant: Tenant) -> None:
        self.remove(tenant.row)
        removed = asyncio.Event()
        self._fenced[tenant.row] = tenant, removed
        asyncio.get_running_loop().call_later(NOTICE_SECONDS, self._warn, tenant, removed)

    def remove(self, row: int) -> None:
        if row in self._fenced:
            self._fenced.pop(row)[1].set()

    def holds(self, tenant: Tenant) -> bool:
        return tenant.row in self._fenced and self._fenced[tenant.row][0] is tenant

    async def await_end(self, tenant: Tenant) -> None:
        if self.holds(tenant):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._fenced[tenant.row][1].wait(), NOTICE_SECONDS)

    def left(self) -> list[Tenant]:
        return [tenant for tenant, _ in self._fenced.values() if self.said_goodbye(tenant)]

    def close(self) -> None:
        for row in list(self._fenced):
            self.remove(row)

    def said_goodbye(self, tenant: Tenant) -> bool:
        return self._is_set(tenant, "goodbye")

    def receives(self, tenant: Tenant) -> bool:
        return self._is_set(tenant, "receives")

    def await_client(self, tenant: Tenant) -> None:
        """Prepare the segment for a successor; no process uses it until the successor's client
        attaches."""
        fields = record(self._resources.find_worker_segment(tenant.row), "worker")
        fields["goodbye"], fields["receives"] = 1, 0

    def _is_set(self, tenant: Tenant, word: str) -> bool:
        try:
            return bool(record(self._resources.find_worker_segment(tenant.row), "worker")[word])
        except (WheelError, OSError) as error:
            about(tenant.name).warning("has no usable segment: %s", error)
            return False

    def _warn(self, tenant: Tenant, removed: asyncio.Event) -> None:
        if not removed.is_set():
            about(tenant.name).warning(
                "(pid %d) closed its connection without leaving, but still runs: its "
                "calls are refused, and it keeps its timers until the process ends",
                tenant.pid,
            )


MEMBER_LOOK_SECONDS: Final = 0.25
"""Seconds between checks whether a member of the inheriting group has begun to receive."""


class KeptWorkers:
    """Rows of departed workers that are kept for a limited time, for a successor or their group."""

    def __init__(
        self,
        resources: Resources,
        registry: Registry,
        fenced: FencedWorkers,
        depart: Callable[[Tenant, str], object],
    ) -> None:
        self._resources, self._registry, self._fenced = resources, registry, fenced
        self._depart = depart
        self._expiries: dict[int, asyncio.TimerHandle] = {}
        self._offers: dict[int, asyncio.TimerHandle] = {}

    def add(self, tenant: Tenant) -> None:
        """Keep a row until a successor connects or its time is over; its group may inherit it at
        once."""
        if tenant.is_keeper:
            return
        loop = asyncio.get_running_loop()
        patience = self._resources.config.keep_for_s
        self._expiries[tenant.row] = loop.call_later(patience, self._expire, tenant)
        self._offer(tenant)

    def remove(self, row: int) -> None:
        for timers in (self._expiries, self._offers):
            if (timer := timers.pop(row, None)) is not None:
                timer.cancel()

    def close(self) -> None:
        for row in {*self._expiries, *self._offers}:
            self.remove(row)

    def offer_all(self) -> None:
        for tenant in list(self._registry.tenants.values()):
            self._offer(tenant)

    def has_receiver(self, groups: int) -> bool:
        return any(self._fenced.receives(member) for member in self._registry.members(groups))

    def _expire(self, tenant: Tenant) -> None:
        if self._registry.state(tenant) == RowState.KEPT:
            retired = self._registry.retire(tenant, OnDeath.DROP)
            self._depart(retired, f"had no successor within {self._resources.config.keep_for}")

    def _offer(self, tenant: Tenant) -> None:
        """Pass a kept row to a member that receives; if there may be one soon, check again
        later."""
        self._offers.pop(tenant.row, None)
        if tenant.on_death != OnDeath.REROUTE or self._registry.state(tenant) != RowState.KEPT:
            return
        if self.has_receiver(tenant.groups):
            self._depart(tenant, INHERITED)
        elif self._registry.members(tenant.groups):
            loop = asyncio.get_running_loop()
            self._offers[tenant.row] = loop.call_later(MEMBER_LOOK_SECONDS, self._offer, tenant)


RING_LOOK_SECONDS: Final = 0.05
"""Seconds by which submissions of such workers may be late."""


class Connections:
    """How many connections each worker has, and which workers have not reconnected to a new
    supervisor yet.

    A worker has two connections when two of its threads have restored a lost one. It has hung up
    when both are closed. If the runtime directory was removed while there was no daemon, its FIFOs
    are new: live workers open those when they reconnect. Until then they ring the clock's former
    FIFO, and a worker that is not in a waiting call does not reconnect.
    """

    def __init__(self) -> None:
        self._rows: set[int] = set()
        self._connections: Counter[tuple[int, int]] = Counter()

    def opened(self, tenant: Tenant) -> None:
        self._connections[tenant.row, tenant.incarnation] += 1
        self.discard(tenant.row)

    def closed(self, tenant: Tenant) -> bool:
        """Note that one of its connections has ended; returns whether it was the last one."""
        who = tenant.row, tenant.incarnation
        self._connections[who] -= 1
        if self._connections[who] > 0:
            return False
        del self._connections[who]
        return True

    def await_reconnect(self, row: int) -> None:
        self._rows.add(row)

    def awaits(self, tenant: Tenant) -> bool:
        return tenant.row in self._rows

    def discard(self, row: int) -> None:
        self._rows.discard(row)

    async def poll_rings(self, look: Callable[[], None]) -> None:
        while self._rows:
            look()
            await asyncio.sleep(RING_LOOK_SECONDS)


def policy_of(message: Message, registry: Registry, resources: Resources) -> tuple[OnDeath, int]:
    """A worker's policy for its timers, and the bits of its groups. `ValueError`: there is no such
    policy; it needs a group; or the group's name is too long. `WheelError`: there is no room for
    another group."""
    policy, group = message.get("on_death", "drop"), message.get("group")
    names = [option.name.lower() for option in OnDeath]
    if policy not in names:
        raise ValueError(f"on_death={policy!r}: expected one of {', '.join(names)}")
    if policy == "reroute" and group is None:
        raise ValueError("on_death='reroute' needs a group")
    wheel, slots, bits = resources.wheel, resources.slots, 0
    if group is not None and str(group).startswith(JOINED_GROUP):
        raise ValueError(f"group {group!r}: {JOINED_GROUP!r} is reserved at its begin")
    joined = message.get("joined", [])
    for name in [*([group] if group is not None else []), *joined]:
        registry.check_group(name)
        bits |= registry.group_bit(name, lambda: targets(wheel, slots))
    return OnDeath[policy.upper()], bits


def with_number(name: str, number: int) -> str:
    suffix = f"-{number}"
    stem = name.encode()[: runtime.WORKER_NAME_BYTES - len(suffix)]
    return stem.decode(errors="ignore") + suffix


def welcome_of(tenant: Tenant, adopted: bool, resources: Resources, token: int) -> Welcome:
    names = resources.names
    return {
        **back_of(tenant),
        "token": token,
        "incarnation": tenant.incarnation,
        "worker": tenant.name,
        "adopted": adopted,
        "keep_for_s": resources.config.keep_for_s,
        "max_per_worker": resources.config.most_per_worker,
        "segments": {
            "worker": names[runtime.worker_segment(tenant.row)],
            **{kind: names[kind] for kind in KINDS},
        },
        "shm": segments.place(),
    }


def back_of(tenant: Tenant) -> Back:
    """The answer to a worker that reconnects; its FIFO and the clock's may have been made anew."""
    return {
        "ok": True,
        "row": tenant.row,
        "clock_fifo": runtime.CLOCK_FIFO,
        "worker_fifo": runtime.worker_fifo(tenant.row),
    }


def check_compatible(message: Message) -> None:
    """Check the versions and clocks that a client sends in its hello, or when it reconnects.
    `LayoutMismatch`: it has another version. `WheelError`: its clocks differ from the daemon's."""
    theirs = (message.get("layout"), message.get("fingerprint"))
    if theirs != (_native.LAYOUT_VERSION, _native.FINGERPRINT):
        raise LayoutMismatch(
            f"the daemon has layout version {_native.LAYOUT_VERSION} ({_native.FINGERPRINT}), the "
            f"client version {theirs[0]} ({theirs[1]}): install the same wheeld on both sides"
        )
    ours = time_namespace.of_this_process()
    if apart := time_namespace.difference(ours, message.get("time")):
        raise WheelError(
            f"this process is in another time namespace ({apart}): its timers would fire early "
            "or late; run both with the same time offsets"
        )


END_SECONDS: Final = 8.0
"""Seconds that a killed worker may take to end; the command waits for ten."""
EVICTED_LOOK_SECONDS: Final = 0.01


def evict_offenders(workers: Workers, limit: int | None) -> None:
    """Kill workers that misbehave more than `limit` allows. Ignoring them is not enough: they could
    write into slots that have passed to others."""
    if limit is None:
        return
    for tenant in list(workers.registry.tenants.values()):
        offences, pidfd = workers.offences(tenant), workers.pidfd(tenant)
        if offences >= limit and pidfd is not None:
            text = f"(pid {tenant.pid}): {offences} offences: killed"
            workers.note(Kind.EVICTION, text, tenant)
            kill(pidfd)


async def evict(workers: Workers, message: Message) -> dict[str, Any]:
    """Kill a worker's process, or drop what a dead one left; the answer to `evict`. `ValueError`:
    there is no worker of that name. `WheelError`: its process does not end."""
    name = message.get("worker")
    tenant = workers.registry.find(name) if isinstance(name, str) else None
    if tenant is None:
        known = sorted(one.name for one in workers.registry.tenants.values())
        raise ValueError(f"no worker {name!r}; connected: {', '.join(known) or 'none'}")
    kept, pidfd = workers.registry.state(tenant) == RowState.KEPT, workers.pidfd(tenant)
    workers.note(Kind.EVICTION, f"(pid {tenant.pid}): evicted", tenant)
    if kept:
        workers.give_up(tenant, "is evicted")
    elif pidfd is not None:
        kill(pidfd)
    give_up = time.monotonic() + END_SECONDS
    while not _evicted(workers, tenant, kept):
        if time.monotonic() > give_up:
            raise WheelError(f"worker {name!r} (pid {tenant.pid}) was killed but has not ended")
        await asyncio.sleep(EVICTED_LOOK_SECONDS)
    left = workers.registry.find(tenant.name)
    return {
        "ok": True, "worker": tenant.name, "pid": tenant.pid, "killed": not kept,
        "kept": left is not None and workers.registry.state(left) == RowState.KEPT,
    }  # fmt: skip


def _evicted(workers: Workers, tenant: Tenant, kept: bool) -> bool:
    """Whether it is gone, replaced, or now kept for a successor."""
    now = workers.registry.find(tenant.name)
    if now is not tenant:
        return True
    return not kept and workers.registry.state(tenant) == RowState.KEPT
