"""The headers and lengths of segments that workers can write, but must not change.

A segment with a damaged header is never attached. A worker that overwrites another's header would
get that one killed; one that overwrites or truncates a shared segment would end the daemon and lock
the next one out of its wheel. All of these contents follow from the wheel and the daemon's options,
which workers cannot write, so they are restored first. Data beyond a truncated length stays lost.
"""

from __future__ import annotations

import contextlib
import logging
import mmap
import os
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from wheeld.config.pools import Pool
from wheeld.tables import sharing
from wheeld_core import _native, segments, trust
from wheeld_core.views import WheelView, dtype_of, record

log = logging.getLogger("wheeld")

SHARED: Final = ("slots", *sharing.KINDS)
"""Segments that all workers write."""
_FLAGS: Final = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
OPTIONS: Final = (
    "capacity", "homes", "max_workers", "tick_ns", "wheel_bits", "payload_bytes", "heap_chunks",
    "max_payload", "virtual_clock",
)  # fmt: skip
"""Words of the wheel's head from which all sizes follow."""


def heap_hole(native: Mapping[str, int], backed: int) -> list[tuple[int, int]]:
    """The part of the slots' segment behind the first `backed` chunks of the payload heap, which is
    not used yet, as offsets and sizes."""
    sizes = _native.geometry(**native)
    begin = sizes["heap_off"] + backed * _native.CHUNK_BYTES
    return [(begin, sizes["slots_bytes"] - begin)]


class WorkerHead:
    """The header of each worker's segment, which never changes."""

    def __init__(self, wheel: _native.Memory, size: int) -> None:
        fields = dtype_of("worker").fields
        assert fields is not None
        scratch = _native.Memory(-1, size, True)
        _native.create_worker(scratch, wheel, 0)
        self._size = size
        self._head = bytes(memoryview(scratch)[: int(fields["sub_tail"][1])])

    def mend(self, name: str) -> None:
        """Restore the header of a segment if it differs. A file that is not a complete segment of
        this user is left to the process that attaches it."""
        with contextlib.suppress(OSError, segments.SegmentError):
            fd = _open(name)
            try:
                if os.fstat(fd).st_size != self._size:
                    return
                if os.pread(fd, len(self._head), 0) != self._head:
                    log.warning("the header of %s was overwritten by a worker: repaired", name)
                    os.pwrite(fd, self._head, 0)
            finally:
                os.close(fd)


class SharedHeads:
    """The fixed contents of the segments that all workers write: their lengths and headers."""

    def __init__(self, wheel: _native.Memory, pools: Sequence[Pool]) -> None:
        self.pools = list(pools)
        self._header = WheelView(wheel).header
        self._native = {key: int(self._header[key]) for key in OPTIONS}
        workers, head = self._native["max_workers"], record(wheel, "head")
        sizes = _native.geometry(**self._native)
        capacity = self._native["capacity"]
        shared = sharing.sizes(workers, capacity, len(pools))
        self.sizes = {"slots": sizes["slots_bytes"], **shared}
        fresh = sharing.blank(workers, capacity, len(pools))
        sharing.create(fresh, workers, capacity, int(head["token"]), self.pools)
        fresh["slots"] = _native.Memory(-1, mmap.PAGESIZE, True)  # nothing is fixed behind that
        slots, its_head = record(fresh["slots"], "slots"), record(fresh["slots"], "head")
        for field in (
            "owners_off", "states_off", "slots_off", "payloads_off", "blocks_off", "chunks_off",
            "heap_off",
        ):  # fmt: skip
            slots[field] = sizes[field]
        for field in head.dtype.names or ():
            its_head[field] = head[field]
        its_head["bytes"] = self.sizes["slots"]
        its_head["magic"] = int(head["magic"]) ^ _native.KIND_WHEEL ^ _native.KIND_SLOTS
        self._fresh = fresh

    def parts(self, pools: _native.Memory | bytes) -> Iterator[tuple[str, int, bytes]]:
        """Segment, offset and bytes of the fixed contents. The creation times of pools come from
        `pools`, the current segment, if they are plausible, because they are stored nowhere
        else."""
        fresh, now = self._fresh["pools"], time.monotonic_ns()
        for i in range(len(self.pools)):
            offset = int(record(fresh, "pools")["pools_off"]) + i * dtype_of("pool").itemsize
            made = int(record(pools, "pool", offset)["created"])
            record(fresh, "pool", offset)["created"] = made if 0 < made < now else now
        for kind, offset, size in sharing.fixed_parts(fresh):
            yield kind, offset, bytes(memoryview(self._fresh[kind])[offset : offset + size])

    def mend(self, names: Mapping[str, str]) -> bool:
        """Restore the lengths and headers of the segments of these names. If `watch` or `pools` is
        gone, make a new one. Returns whether a part of `slots` is lost.

        `OSError`, `SegmentError`: one is not a segment of this user, or /dev/shm has no room for
        the lost part.
        """
        with contextlib.ExitStack() as opened:
            fds: dict[str, int] = {}
            lost = False
            for kind in SHARED:
                fds[kind] = _open(names[kind], fds.get("slots"))
                opened.callback(os.close, fds[kind])
                lost |= self._mend_length(kind, names[kind], fds[kind])
            for kind, offset, fixed in self.parts(os.pread(fds["pools"], self.sizes["pools"], 0)):
                if os.pread(fds[kind], len(fixed), offset) != fixed:
                    log.warning(
                        "the header of %s was overwritten by a worker: repaired", names[kind]
                    )
                    os.pwrite(fds[kind], fixed, offset)
        return lost

    def refill(self, kind: str, name: str, size: int) -> bool:
        """Reinitialise a segment whose length was restored and whose data behind `size` was lost;
        returns whether these are slots. Raises as `mend`."""
        fd = _open(name)
        try:
            return self._refill(kind, name, fd, size)
        finally:
            os.close(fd)

    def _mend_length(self, kind: str, name: str, fd: int) -> bool:
        size, wanted = os.fstat(fd).st_size, self.sizes[kind]
        if size == wanted:
            return False
        os.ftruncate(fd, wanted)  # at once: touching what is missing means SIGBUS
        return self._refill(kind, name, fd, size)

    def _refill(self, kind: str, name: str, fd: int, size: int) -> bool:
        wanted = self.sizes[kind]
        holes = sharing.holes(kind, self._native["max_workers"], self._native["capacity"])
        if kind == "slots":
            shared = self._native["capacity"] // _native.SLAB_SLOTS - self._native["homes"]
            _, holes = _native.spans(int(self._header["backed"]), shared, **self._native)
            holes += heap_hole(self._native, int(self._header["heap_backed"]))
        segments.reserve_but(fd, name, wanted, holes)
        if kind != "slots":
            os.pwrite(fd, memoryview(self._fresh[kind])[size:], size)
        log.error(
            "%s/%s had %d bytes, expected %d: it was truncated; its length is restored, but the "
            "data there is lost",
            *(segments.SHM_DIRECTORY, name, size, wanted),
        )
        return kind == "slots" and size < wanted


def _open(name: str, model: int | None = None) -> int:
    """A descriptor of this user's segment; if it is missing, of a new one with the access rights of
    `model`."""
    path = f"{segments.SHM_DIRECTORY}/{trust.plain(name)}"
    try:
        fd = os.open(path, _FLAGS)
    except FileNotFoundError:
        if model is None:
            raise
        fd = os.open(path, _FLAGS | os.O_CREAT | os.O_EXCL, 0o600)
        os.fchown(fd, -1, os.fstat(model).st_gid)
        os.fchmod(fd, stat.S_IMODE(os.fstat(model).st_mode))
    status = os.fstat(fd)
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.getuid():
        os.close(fd)
        raise segments.SegmentError(f"{path} is not a shared memory segment of this daemon")
    return fd
