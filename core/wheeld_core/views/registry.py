"""The worker table, and the groups."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from wheeld_core import _native, packing
from wheeld_core.errors import WheelError
from wheeld_core.runtime import worker_segment
from wheeld_core.views.structs import record, records

if TYPE_CHECKING:
    from collections.abc import Buffer


class RegistryView:
    """A registry segment: the worker table. WheelError: its head is damaged."""

    def __init__(self, memory: Buffer) -> None:
        self.header = record(memory, "registry")
        rows_off, count, groups_off = (
            int(self.header[field]) for field in ("rows_off", "row_count", "groups_off")
        )
        try:
            self.rows = records(memory, "row", rows_off, count)
            self.groups = records(memory, "group", groups_off, _native.GROUPS)
        except (ValueError, OverflowError) as error:
            raise WheelError(f"the head of the worker table is damaged: {error}") from None

    def names(self) -> dict[int, str]:
        """Row -> name of the workers that are active, or kept for a successor."""
        return {
            int(row): bytes(self.rows["name"][row]).decode(errors="replace")
            for row in np.flatnonzero(np.isin(self.rows["state"], (2, 4)))
        }

    def segment_inodes(self) -> dict[str, int]:
        """Kind of each worker's segment -> the stored part of its inode."""
        return {
            worker_segment(int(row)): int(self.rows["segment_ino"][row])
            for row in np.flatnonzero(self.rows["segment_ino"])
        }

    def group_names(self) -> dict[int, str]:
        """Index -> name of the groups; the index is a bit of `rows["groups"]`."""
        return {
            int(group): bytes(self.groups["name"][group]).decode(errors="replace")
            for group in np.flatnonzero(packing.GROUP_NAMED.of(self.groups["used"]))
        }

    def group_target(self, group: int) -> int:
        """The `target` word of a timer for that group; as wh_target_group."""
        return packing.target_group(group, packing.GROUP_USES.of(int(self.groups["used"][group])))

    def group_targets(self) -> dict[int, str]:
        """Target word -> name of each group."""
        return {self.group_target(group): name for group, name in self.group_names().items()}
