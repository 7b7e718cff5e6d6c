"""How many operations wait in the workers' purgatories, read from the watch segment."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from wheeld_core import _native
from wheeld_core.views.structs import record, records

if TYPE_CHECKING:
    from collections.abc import Buffer


class Size(NamedTuple):
    """The figures of a purgatory."""

    delayed: int
    watched: int
    """How many keys they wait under, in total."""


class SizesView:
    """The lines of core/include/wheeld/sharing/sizes.h. Workers' native code writes them."""

    def __init__(self, memory: Buffer) -> None:
        header = record(memory, "watch")
        rows = int(header["row_count"])
        lines = records(memory, "size", int(header["sizes_off"]), rows * _native.SIZES)
        self.lines = lines.reshape(rows, _native.SIZES)

    def of(self, row: int) -> dict[str, Size]:
        found: dict[str, Size] = {}
        for line in self.lines[row]:
            made = int(line["made"])  # pairs: size-made - after it the name is whole
            name = bytes(line["name"]).decode(errors="replace")
            size = Size(int(line["delayed"]), int(line["watched"]))
            if made & 1 and int(line["made"]) == made:  # pairs: size-made - else it is another's
                known = found.get(name, Size(0, 0))  # names that were cut off may be the same
                found[name] = Size(known.delayed + size.delayed, known.watched + size.watched)
        return found
