"""Memory for slots, before there is a clock: see core/include/wheeld/shared/backing.h."""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Iterable, Mapping

from wheeld.config.settings import Config
from wheeld_core import _native, segments
from wheeld_core.views import WheelView


def back(
    names: Mapping[str, str], memories: Mapping[str, mmap.mmap], config: Config, slabs: int
) -> None:
    """Reserve memory for the first `slabs` slabs, except where there is some already.
    `SegmentError`: there is not enough memory."""
    backed = int(WheelView(memories["wheel"]).header["backed"])
    if slabs <= backed:
        return
    parts = _native.spans(backed, slabs, **config.native())
    for kind, spans in zip(("wheel", "slots"), parts, strict=True):
        fd = segments.open_to_grow(names[kind], memories[kind])
        try:
            for offset, size in spans:
                segments.reserve(fd, names[kind], offset, size)
        finally:
            os.close(fd)
    _native.open_slabs(memories["wheel"], slabs)


def shared_bytes(names: Iterable[str]) -> tuple[int, int]:
    """Bytes that segments have reserved now, and when all slots are needed."""
    now = most = 0
    for name in names:
        with contextlib.suppress(FileNotFoundError):
            status = os.stat(f"{segments.SHM_DIRECTORY}/{name}")
            now, most = now + 512 * status.st_blocks, most + status.st_size
    return now, most
