"""The worker table, and the groups."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from wheeld_core import _native, packing
from wheeld_core.runtime import worker_segment
from wheeld_core.views.structs import record, records

if TYPE_CHECKING:
    from collections.abc import Buffer


class RegistryView:
    """A registry segment: the worker table."""

    def __init__(self, memory: Buffer) -> None:
        self.header = record(memory, "registry")
        self.rows = records(
            memory, "row", int(self.header["rows_off"]), int(self.header["row_count"])
        )
        self.groups = records(memory, "group", int(self.header["groups_off"]), _native.GROUPS)

    def names(self) -> dict[int, str]:
        """Row -> name of the workers that are active, or kept for a successor."""
        return {
            int(row): bytes(self.rows["name"][row]).decode()
            for row in np.flatnonzero(np.isin(self.rows["state"], (2, 4)))
        }

    def segment_inodes(self) -> dict[str, int]:
        """Kind of a worker's segment -> the stored part of its inode."""
        return {
            worker_segment(int(row)): int(self.rows["segment_ino"][row])
            for row in np.flatnonzero(self.rows["segment_ino"])
        }

    def group_names(self) -> dict[int, str]:
        """Index -> name of the groups; the index is a bit of `rows["groups"]`."""
        return {
            int(group): bytes(self.groups["name"][group]).decode()
            for group in np.flatnonzero(packing.GROUP_NAMED.of(self.groups["used"]))
        }

    def group_target(self, group: int) -> int:
        """The `target` word of a timer for that group; as wh_target_group."""
        return packing.target_group(group, packing.GROUP_USES.of(int(self.groups["used"][group])))

    def group_targets(self) -> dict[int, str]:
        """The same word -> name of the groups."""
        return {self.group_target(group): name for group, name in self.group_names().items()}
