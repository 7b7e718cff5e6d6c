"""The daemon's snapshots: restored at start, written every few seconds and at the end.

They serve restarts of the host, or of the daemon, that lose the shared memory. See
docs/snapshots.md.
"""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import numpy as np

from wheeld.config.settings import Config
from wheeld.resources.events import Kind
from wheeld.resources.owned import Resources
from wheeld.snapshot import file as snapshot_file
from wheeld.snapshot.collect import collect, comp_head
from wheeld.snapshot.contents import Clocks, Snapshot, SnapshotError
from wheeld.snapshot.keys import Directory
from wheeld.snapshot.restore import Restoration, apply, plan_restore
from wheeld.supervisor.workers import Workers
from wheeld.tables.registry import OnDeath, RowState
from wheeld_core import _native, packing, runtime, segments
from wheeld_core.errors import WheelError

log = logging.getLogger("wheeld")

_RECLAIMED = np.uint64(packing.completion(packing.Stage.RECLAIMED, 0, 0))
"""`link.completion` of a slot without an owner."""


class Snapshots:
    """Writes and restores the snapshot of one daemon; does nothing without --state-dir."""

    def __init__(self, resources: Resources, workers: Workers, fresh: bool = False) -> None:
        self._resources = resources
        self._workers = workers
        self._fresh = fresh
        self._served = False
        self._job: asyncio.Future[Snapshot] | None = None
        self._path: Path | None = None
        if self._config.state_dir is not None:
            directory = snapshot_file.make_directory(self._config.state_dir)
            self._path = snapshot_file.path_of(directory, self._config.name)

    @property
    def _config(self) -> Config:
        return self._resources.config

    def _clocks(self, restoring: bool) -> Clocks:
        if self._config.virtual_clock:
            return Clocks.of_virtual(int(self._resources.wheel.header["virtual_now"]))
        return Clocks.read(restoring=restoring)

    # -- restore --------------------------------------------------------------------------------

    def restore(self) -> None:
        """Arm the timers of the last snapshot, in fresh segments and before the first clock.

        Owners get rows under their names, as kept workers. A damaged file is set aside, and the
        daemon starts without it.

        `WheelError`: the snapshot is whole but does not fit this configuration.
        """
        if self._path is None or self._fresh or not self._path.exists():
            return
        try:
            snapshot = snapshot_file.read(self._path)
        except SnapshotError as error:
            aside = snapshot_file.set_aside(self._path)
            log.warning("%s; it is kept as %s, and the daemon starts empty", error, aside)
            return
        plan = plan_restore(
            snapshot,
            self._clocks(restoring=True),
            self._config.all_slots,
            max(self._config.payload_room, self._config.max_payload_bytes),
            self._config.restore,
            self._config.misfire,
        )
        self._arm(plan)
        log.info(
            "restored %d timers of %d workers from %s: %d fell due meanwhile, %d were skipped",
            len(plan.timers),
            len(plan.workers),
            self._path,
            plan.late,
            plan.skipped,
        )
        if plan.doubled:
            text = (
                f"{plan.doubled} timers were dropped: for each the snapshot has another one with "
                "the same key, which was armed later"
            )
            log.warning("%s", text)
            self._resources.events.note(Kind.DROPPED, text, dropped=plan.doubled)

    def _arm(self, plan: Restoration) -> None:
        registry, slots = self._workers.registry, self._resources.slots
        rows = {}
        for name in plan.workers:
            tenant = registry.allocate(name, 0, plan.uid_of(name), OnDeath.KEEP)
            made = self._resources.make_worker_segment(tenant.row)
            registry.note_segment(tenant, segments.inode_word(made))
            self._resources.make_fifo(runtime.worker_fifo(tenant.row))
            registry.set_state(tenant, RowState.KEPT)
            rows[name] = tenant.row, tenant.incarnation
        groups = {name: registry.group_bit(name).bit_length() - 1 for name in plan.groups}
        used = plan.snapshot.slabs[plan.snapshot.slabs < self._config.shared_slabs]
        self._resources.back(int(used.max()) + 1 if len(used) else 0)
        grow, wheel = self._resources.grow_heap, self._resources.wheel
        apply(plan, slots, wheel, rows, groups, grow, self._keys())
        # Slots of slabs without an owner are not being returned to any worker: record that.
        nobodys = (slots.owner_words(self._resources.wheel) == 0) & (slots.states != 0)
        links = self._resources.wheel.links[: len(slots.states)]
        links["completion"][nobodys] = _RECLAIMED
        links["gen"][nobodys] = (slots.states[nobodys] >> np.uint64(32)).astype(np.uint32)

    # -- write ----------------------------------------------------------------------------------

    async def keep_writing(self) -> None:
        """Write a snapshot every `snapshot_every`, until cancelled, while the daemon serves."""
        self._served = True
        while self._path is not None:
            await asyncio.sleep(self._config.snapshot_every_ns / 1e9)
            try:
                self._job = asyncio.get_running_loop().run_in_executor(None, self._write)
                await asyncio.shield(self._job)
            except Exception as error:  # a full disk must not end the daemon, nor the snapshots
                log.warning("no snapshot was written: %s", str(error) or repr(error))

    async def write_last(self) -> None:
        """Write the pending timers when the daemon stops. The clock has stopped.

        A daemon that never served does not touch a snapshot that it could not restore.

        `WheelError`: it could not be written; the message says what to do.
        """
        if self._job is not None:
            await asyncio.gather(self._job, return_exceptions=True)
        if self._path is None or not self._served:
            return
        try:
            written = self._write()
        except Exception as error:
            raise WheelError(
                f"the last snapshot was not written: {str(error) or repr(error)}. The timers stay "
                f"in memory: make room for {self._path}, then `wheeld start` with the same options "
                "takes them over, and the next stop writes them"
            ) from error
        log.info("wrote %d pending timers to %s", len(written.timers), self._path)

    def _write(self) -> Snapshot:
        assert self._path is not None
        snapshot = collect(
            self._resources.wheel,
            self._resources.slots,
            self._workers.registry.view,
            self._clocks(restoring=False),
            name=self._config.name,
            heads=self._heads(),
            keys=self._keys(),
        )
        snapshot_file.write(self._path, snapshot)
        return snapshot

    def _keys(self) -> Directory:
        memories = self._resources.memories
        return Directory.of(memories["keys"], memories["wheel"])

    def _heads(self) -> dict[int, Any]:
        heads = {}
        for row in list(self._workers.registry.tenants):
            name = self._resources.names.get(runtime.worker_segment(row))
            if name is None:
                continue
            try:
                memory = segments.attach(name, _native.KIND_WORKER, writable=False)
            except (WheelError, OSError):
                continue  # it is leaving
            heads[row] = comp_head(memory)
        return heads
