"""The files and segments that a daemon makes and removes on the system: segments, FIFOs, files.

Everything made here is recorded in the object at once, so that `close` removes it whatever happens
in between. A killed daemon leaves everything, and the next one takes it over.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from wheeld.config.settings import Config
from wheeld.resources import (
    ownership,
    room,
    takeover,
    trace_directory,
    trace_segment,
)
from wheeld.resources.events import Events
from wheeld.resources.handover import Handover
from wheeld.resources.remains import own_pid_namespace
from wheeld.snapshot import file as snapshot_file
from wheeld.tables import sharing
from wheeld.tables.heads import SHARED, SharedHeads, WorkerHead, heap_hole
from wheeld_core import _native, runtime, segments, trust
from wheeld_core.control import time_namespace
from wheeld_core.errors import WheelError
from wheeld_core.views import RegistryView, SlotsView, WheelView

log = logging.getLogger("wheeld")

RECORDER_LOCK = "recorder.lock"
"""Lock file of the recorder in the runtime directory, so that only one recorder empties a ring."""
PRIVATE_HEAD = 256
"""Bytes at the beginning of a wheel and of a trace that never change."""
_TRIES = 16


class Resources:
    """The runtime directory, the shared segments and the FIFOs of one daemon.

    Only the supervisor makes one. The directory stays locked (flock) as long as this object exists,
    so a second daemon of the same name is refused. `fresh` discards what a killed daemon of that
    name left, instead of taking it over; `handover` comes from the previous incarnation of this
    process.

    `bells_removed`: Set if FIFOs that workers have open were removed. `taken_over`: the segments
    are those of a killed daemon, and may have live workers. `lost_slots`: another process truncated
    the slots while the clock ran.
    """

    def __init__(
        self, config: Config, fresh: bool = False, handover: Handover | None = None
    ) -> None:
        self.events = Events()
        self._left: dict[str, str] = {}
        """Segments that exist but that a clock may not attach, either not yet or no longer."""
        self.memories: dict[str, _native.Memory] = {}
        self._held: int | None = None
        self._owned: dict[Path, int] = {}
        """Locks of files that it writes elsewhere, and their descriptors."""
        self.lost_slots = False
        self._wholes: dict[str, _native.Whole] = {}
        if time_namespace.children_differ():  # the clock is a child
            raise WheelError(
                "this process and its children are in different time namespaces, so its clock "
                "would be in the wrong one; start the daemon with `unshare --fork`"
            )
        self.trace = trace_directory.prepare(config.trace) if config.trace is not None else None
        if self.trace is not None:
            trace_directory.check_pyarrow()
        self.config = config
        self.segment_prefix = ""
        """The prefix of its segments' names; empty if it has no segments."""
        self.names: dict[str, str] = {}
        self.bells_removed = False
        self.pools = config.memory_pools
        self._files: list[Path] = []
        self._made: dict[str, tuple[int, int]] = {}
        """Device and inode of the files that are served, by name."""
        self._gid = config.gid
        self._open_directory(handover)
        try:
            self._own(handover.owned if handover is not None else [])
            living = takeover.take_over(
                self.directory,
                config.name,
                config.native(),
                config.memory_pools,
                fresh,
                config.state_dir is not None,
            )
            self.taken_over = living is not None
            room.check(config, over_living=self.taken_over)
            if living is not None:
                self._take(*living)
            else:
                self._make()
            RegistryView(self.memories["registry"]).header["pid_ns"] = own_pid_namespace()
            self.wheel = WheelView(self.memories["wheel"])
            self._held = takeover.hold(self.segment_prefix)
            self._settle_trace()
            self.make_fifo(runtime.CLOCK_FIFO, keep=self.taken_over)
            self._files += [
                self.directory / name
                for name in (runtime.CLOCK_LOCK, RECORDER_LOCK, runtime.DAEMON_FILE)
            ]
            self.slots = SlotsView(self.memories["slots"], config.all_slots, config.payload_room)
        except BaseException as error:
            self.close(discard=not getattr(self, "taken_over", True))
            if isinstance(error, OSError):
                raise WheelError(f"{error.filename or self.directory}: {error.strerror}") from error
            raise
        self._watch_memory()

    def _watch_memory(self) -> None:
        for kind in SHARED:
            memory = self.memories[kind]
            self._wholes[kind] = _native.Whole(
                memory, segments.open_to_grow(self.names[kind], memory)
            )
        self._inodes = segments.mapped(self.segment_prefix)
        self._fixed = list(self._heads.parts(self.memories["pools"]))
        self._private = {
            kind: bytes(memoryview(self.memories[kind])[:PRIVATE_HEAD])
            for kind in ("wheel", trace_segment.KIND)
            if kind in self.memories
        }
        self.is_table_intact: Callable[[], bool] = lambda: True
        """Whether the worker table is still as the supervisor wrote it."""
        self.sharing = sharing.Sharing(
            self.memories, self.config.all_slots, self.check_and_mend, self.ring_worker
        )
        self.worker_bytes = _native.geometry(**self.config.native())["worker_bytes"]
        self._worker_head = WorkerHead(self.memories["wheel"], self.worker_bytes)

    def _own(self, inherited: Sequence[int]) -> None:
        config, locks = self.config, dict[str, Path]()
        if config.state_dir is not None:
            at = snapshot_file.make_directory(config.state_dir)
            locks["--state-dir"] = ownership.of_snapshot(at, config.name)
        if self.trace is not None:
            spool = self.trace / trace_directory.SPOOL_FOLDER
            locks["--trace"] = ownership.of_trace(spool, config.name)
        who = f"daemon {config.name!r} (pid {os.getpid()}) of {self.directory}"
        for option, path in locks.items():
            self._owned[path] = ownership.take(path, option, who, inherited)
        for left in set(inherited) - set(self._owned.values()):  # of a directory of before
            os.close(left)

    def _take(self, prefix: str, memories: dict[str, _native.Memory], heads: SharedHeads) -> None:
        self.segment_prefix = prefix
        self.memories = memories
        self._heads, self.pools = heads, heads.pools  # in the order of the wheel
        self.names = {kind: prefix + kind for kind in memories}
        inodes = RegistryView(memories["registry"]).segment_inodes()
        there = segments.of_daemon(prefix, os.getuid(), inodes).items()
        self._left = {kind: name for kind, name in there if kind not in memories}

    def _make(self) -> None:
        """Make new segments. Another user who sees the first one could take the names of the
        others; then all of them are made again under another prefix."""
        made, tries = False, 0
        while not made:
            self.segment_prefix = takeover.new_prefix(self.directory, self.config.name)
            self.write_daemon_file()  # first, so that they are found if we die here
            try:
                self._make_wheel()
                made = True
            except segments.NameTaken:
                segments.unlink_all(self.segment_prefix)
                self.names, self.memories = {}, {}
                tries += 1
                if tries == _TRIES:
                    raise

    def _make_wheel(self) -> None:
        native = self.config.native()
        sizes = _native.geometry(**native)
        backed = self.config.first_slabs
        wheel_holes, slots_holes = _native.spans(backed, self.config.shared_slabs, **native)
        slots_holes += heap_hole(native, self.config.first_chunks)
        # The wheel and the table of workers are for clients to read.
        for kind, mode, holes in (
            ("wheel", 0o640, wheel_holes),
            ("slots", 0o660, slots_holes),
            ("registry", 0o640, []),
        ):
            size = sizes[f"{kind}_bytes"]
            self.memories[kind] = self.make_segment(kind, size, mode, holes)
        origin = self.config.virtual_start if self.config.virtual_clock else _native.read_clock()
        _native.create(
            self.memories["wheel"],
            self.memories["slots"],
            self.memories["registry"],
            takeover.BOOT_ID.read_text("utf-8").strip(),
            **native,
            origin_ns=origin,
            backed=backed,
            heap_backed=self.config.first_chunks,
            token=(token := int.from_bytes(os.urandom(8)) >> 1),
        )
        self._make_shared(token)

    def _make_shared(self, token: int) -> None:
        workers, pools = self.config.max_workers, self.config.memory_pools
        capacity = self.config.all_slots
        for kind, size in sharing.sizes(workers, capacity, len(pools)).items():
            holes = sharing.holes(kind, workers, capacity)
            self.memories[kind] = self.make_segment(kind, size, holes=holes)
        sharing.create(self.memories, workers, capacity, token, pools)
        self._heads = SharedHeads(self.memories["wheel"], pools)

    def _settle_trace(self) -> None:
        """Make a trace segment if one is wanted, or take over the last daemon's."""
        left = None
        if self.taken_over:
            name = self._left.get(trace_segment.KIND)
            left = trace_segment.find(name, self.memories["wheel"], self.config)
            if left is not None:
                self.names[trace_segment.KIND] = str(name)
        if left is None and self.trace is not None:
            self.drop_segment(trace_segment.KIND)  # one that is not usable
            size = trace_segment.size(self.config)
            left = self.make_hidden(trace_segment.KIND, size, trace_segment.MODE)
            trace_segment.fill(left, self.memories["wheel"], self.config)
        if left is not None:
            self.memories[trace_segment.KIND] = left
        else:
            self.drop_segment(trace_segment.KIND)

    # -- files of the runtime directory ----------------------------------------------------------

    def _open_directory(self, handover: Handover | None) -> None:
        config = self.config
        self.directory = runtime.create(config.name, config.runtime_dir, self._gid)
        self._lock = handover.lock if handover is not None else -1
        if not self.leads_here():
            before, self._lock = self._lock, self._lock_directory()
            if before >= 0:  # the directory was replaced meanwhile
                os.close(before)

    def leads_here(self) -> bool:
        with contextlib.suppress(OSError):
            return os.path.samestat(os.fstat(self._lock), os.stat(self.directory))
        return False

    def note(self, file_name: str, file: tuple[int, int] | None = None) -> None:
        """Remember the device and inode of the file served under a name; None: of the file that is
        there now."""
        self._made[file_name] = file or file_at(self.directory / file_name)

    def lost(self) -> set[str]:
        return {name for name, known in self._made.items() if self._is_now(name) != known}

    def _is_now(self, file_name: str) -> tuple[int, int] | None:
        with contextlib.suppress(OSError):
            return file_at(self.directory / file_name)
        return None

    def renew(self, lost: set[str]) -> None:
        """Make the directory again if it was removed or replaced, and the FIFOs of these names.
        `OSError`, `WheelError`: it is not possible now."""
        if not self.leads_here():
            with contextlib.suppress(FileExistsError):
                self.directory.parent.mkdir(mode=0o755 if self._gid is not None else 0o700)
            runtime.create(self.config.name, self.directory.parent, self._gid)
            before, self._lock = self._lock, self._lock_directory()
            os.close(before)
        for name in sorted(lost):
            if name.endswith(".fifo"):
                self.make_fifo(name)

    def _lock_directory(self) -> int:
        fd = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            same = os.path.samestat(os.fstat(fd), os.stat(self.directory))
        except (BlockingIOError, FileNotFoundError):
            same = False
        if not same:
            os.close(fd)
            raise WheelError(
                f"a wheeld daemon {self.config.name!r} {runtime.ALREADY} {self.directory}; "
                f"stop it with `wheeld stop --name {self.config.name}`"
            )
        return fd

    def _mode(self, shared: int) -> int:
        return shared if self._gid is not None else shared & 0o700

    def make_fifo(self, file_name: str, keep: bool = False) -> Path:
        """Make a FIFO in the runtime directory, replacing what an earlier daemon left.

        With `keep` this user's existing FIFO stays, because live workers have it open.
        """
        path = self.directory / file_name
        if path not in self._files:
            self._files.append(path)
        with contextlib.suppress(FileNotFoundError):
            status = path.lstat()
            if keep and stat.S_ISFIFO(status.st_mode) and status.st_uid == os.getuid():
                self._share(path, 0o620)
                self.note(file_name)
                return path
        self.bells_removed |= keep
        fresh = path.with_name(f"{file_name}.new")
        fresh.unlink(missing_ok=True)
        os.mkfifo(fresh, 0o600)
        self._share(fresh, 0o620)  # a reader could take others' wake-ups
        self.note(file_name, file_at(fresh))
        fresh.rename(path)  # there is always one for workers that reconnect
        return path

    def open_worker_fifo(self, row: int) -> int:
        """A descriptor of the doorbell of the worker in `row`, to be passed to it for reading:
        other processes may only write to the FIFO."""
        return os.open(self.directory / runtime.worker_fifo(row), trust.FIFO_FLAGS)

    def ring_worker(self, row: int) -> None:
        with contextlib.suppress(OSError):  # a full FIFO wakes it already
            bell = self.open_worker_fifo(row)
            try:
                os.write(bell, b"\1")
            finally:
                os.close(bell)

    def _share(self, path: Path, mode: int = 0o660) -> None:
        if self._gid is not None:
            os.chown(path, -1, self._gid)
        path.chmod(self._mode(mode))

    def drop_file(self, file_name: str) -> None:
        path = self.directory / file_name
        self._made.pop(file_name, None)
        remove(path, self._lock)
        if path in self._files:
            self._files.remove(path)

    def clear_socket(self) -> None:
        """Remove a file that an earlier daemon, or another process, left at the control socket's
        path."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(runtime.CONTROL_SOCKET, dir_fd=self._lock)

    def socket_path(self) -> Path:
        path = self.directory / runtime.CONTROL_SOCKET
        if path not in self._files:
            self._files.append(path)
        return path

    def open_socket(self) -> None:
        """Let the clients' group in; if another file is there, `renew` makes the socket again. A
        socket that the service manager made has the mode given in its unit."""
        path = self.directory / runtime.CONTROL_SOCKET
        if path in self._files and runtime.CONTROL_SOCKET not in self.lost():
            self._share(path)

    def write_daemon_file(self, **facts: Any) -> None:
        path = self.directory / runtime.DAEMON_FILE
        fresh = path.with_suffix(".new")
        fresh.unlink(missing_ok=True)
        content = {
            "name": self.config.name,
            "segment_prefix": self.segment_prefix,
            "segments": self.names,
            "pools": [pool.text() for pool in self.pools],
            "time": time_namespace.of_this_process(),
            "shm": segments.place(),
            **facts,
        }
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        descriptor = os.open(fresh, flags, 0o600)
        try:
            with open(descriptor, "w") as file:
                json.dump(content, file, indent=1)
            self._share(fresh, 0o640)
            self.note(runtime.DAEMON_FILE, file_at(fresh))
            fresh.rename(path)
        except OSError:
            remove(fresh)
            raise

    # -- segments -------------------------------------------------------------------------------

    def make_segment(
        self, kind: str, size: int, mode: int = 0o660, holes: Sequence[tuple[int, int]] = ()
    ) -> _native.Memory:
        """Make the segment called `kind`; its name goes to `names`."""
        name = self.segment_prefix + kind
        memory = segments.create(name, size, self._mode(mode), self._gid, holes, self.config.huge)
        self.names[kind] = name
        return memory

    def back(self, slabs: int) -> None:
        """Reserve memory for the first `slabs` slabs. Once there is a clock, the clock does
        this."""
        back(self.names, self.memories, self.config, slabs)

    def grow_heap(self) -> bool:
        """Reserve some more memory for the payload heap. False: there is none. Once there is a
        clock, the clock does this."""
        backed = int(self.wheel.header["heap_backed"])
        end = min(2 * backed, self.config.heap_chunks)
        if end <= backed:
            return False
        offset, _ = heap_hole(self.config.native(), backed)[0]
        fd = segments.open_to_grow(self.names["slots"], self.memories["slots"])
        try:
            size = (end - backed) * _native.CHUNK_BYTES
            huge = self.memories["slots"] if self.config.huge else None
            segments.reserve(fd, self.names["slots"], offset, size, huge)
        except segments.SegmentError:
            return False
        finally:
            os.close(fd)
        _native.open_chunks(self.memories["wheel"], end)
        return True

    def make_hidden(self, kind: str, size: int, mode: int = 0o660) -> _native.Memory:
        """As `make_segment`, for a segment that is made once the prefix is public: its name has a
        random part, and is only passed over sockets."""
        self.drop_segment(kind)  # a killed daemon may have left one
        stem = self.segment_prefix + kind
        self.names[kind], memory = segments.create_unguessable(
            stem, size, self._mode(mode), self._gid, self.config.huge
        )
        return memory

    def make_worker_segment(self, row: int) -> str:
        """Make the segment of the worker in `row`, ready to attach; returns its name."""
        kind = runtime.worker_segment(row)
        memory = self.make_hidden(kind, self.worker_bytes)
        _native.create_worker(memory, self.memories["wheel"], row)
        return self.names[kind]

    def mend_worker(self, row: int) -> None:
        kind = runtime.worker_segment(row)
        if (name := self.names.get(kind) or self._left.get(kind)) is not None:
            self._worker_head.mend(name)

    def find_worker_segment(self, row: int) -> _native.Memory:
        """Map the segment of an earlier daemon's worker; its name goes to `names`."""
        kind = runtime.worker_segment(row)
        name = self.names.get(kind) or self._left.get(kind)
        if name is None:
            raise FileNotFoundError(f"there is no segment {kind} of this daemon")
        self.mend_worker(row)
        memory = segments.attach(name, _native.KIND_WORKER, writable=True, owner_uid=os.getuid())
        self.names[kind] = name
        return memory

    def drop_segment(self, kind: str) -> None:
        for names in (self.names, self._left):
            if (name := names.pop(kind, None)) is not None:
                segments.unlink(name)

    def disuse_segment(self, kind: str) -> None:
        if (name := self.names.pop(kind, None)) is not None:
            self._left[kind] = name

    def damage(self) -> str | None:
        """Describe what is wrong with the segments that the daemon needs; None: nothing. A process
        that may write a segment can also truncate it. Segments that all workers write get their
        length back; a segment that only the daemon writes is lost once another process has written
        to it."""
        for kind, memory in self.memories.items():
            path = Path(segments.SHM_DIRECTORY, self.names[kind])
            try:
                if kind in self._wholes and (left := self._wholes[kind].cut()) >= 0:
                    self.lost_slots |= self._heads.refill(kind, path.name, left)
                status = path.stat()
                size = status.st_size
                if status.st_ino != self._inodes.get(path.name):
                    return f"{path} was replaced while the daemon ran"
                if size != len(memory) and kind in SHARED:
                    self.lost_slots |= self._heads.mend(self.names)
                    continue
            except FileNotFoundError:
                return f"{path} was removed while the daemon ran"
            except (OSError, WheelError) as error:
                return f"{path} was truncated, and cannot be repaired: {error}"
            if size != len(memory):
                return f"{path} has {size} bytes, expected {len(memory)}: it was truncated"
        for kind, fixed in self._private.items():
            if bytes(memoryview(self.memories[kind])[:PRIVATE_HEAD]) != fixed:
                return self._overwritten(kind, "its head")
        if not self.is_table_intact():
            return self._overwritten("registry", "the worker table")
        return None

    def _overwritten(self, kind: str, what: str) -> str:
        path = Path(segments.SHM_DIRECTORY, self.names[kind])
        return f"{path}: {what} was overwritten by another process of this user"

    def mend(self) -> None:
        """Restore fixed contents that a worker, which can write there, has overwritten: otherwise
        no process could attach."""
        for kind, offset, fixed in self._fixed:
            memory, end = memoryview(self.memories[kind]), offset + len(fixed)
            if bytes(memory[offset:end]) != fixed:
                log.warning(
                    "the header of %s was overwritten by a worker: repaired", self.names[kind]
                )
                memory[offset:end] = fixed

    def check_and_mend(self) -> None:
        if (damage := self.damage()) is not None:
            raise WheelError(damage)
        self.mend()

    def shared_bytes(self) -> tuple[int, int]:
        """Bytes of the segments now, and when all slots are in use."""
        now, most = reserved_bytes(self.names.values())
        header = self.wheel.header
        unused = int(header["heap_chunks"]) - int(header["heap_backed"])
        return now, max(now, most - unused * _native.CHUNK_BYTES)  # a huge page holds some more

    def payload_heap(self) -> dict[str, int]:
        """Bytes of payloads in the heap, of its present memory, and of its limit."""
        header = self.wheel.header
        return {
            "bytes": _native.heap_bytes(self.memories["wheel"], self.memories["slots"]),
            "memory": int(header["heap_backed"]) * _native.CHUNK_BYTES,
            "memory_at_most": int(header["heap_chunks"]) * _native.CHUNK_BYTES,
        }

    def leave_locked(self, to: Handover, discard: bool = False) -> None:
        """Release everything except the locks, which are passed to the program that this process
        executes next. With `discard` the segments are removed."""
        if discard:
            segments.unlink_all(self.segment_prefix)
            self.drop_file(runtime.DAEMON_FILE)
        if self._held is not None:
            os.close(self._held)
        to.lock, to.owned = self._lock, list(self._owned.values())
        to.socket_file = list(self._made.get(runtime.CONTROL_SOCKET, ()))

    def close(self, discard: bool = True) -> None:
        """Remove everything that may be removed. Without `discard` only release it: everything that
        the next daemon of that name continues with stays."""
        if discard:
            if self.segment_prefix:  # else nothing was begun
                segments.unlink_all(self.segment_prefix)
            for path in [*self._files, self.directory / runtime.DAEMON_FILE]:
                remove(path, self._lock)
            if self.leads_here():
                with contextlib.suppress(OSError):
                    self.directory.rmdir()
            self._files.clear()
        elif self.directory / runtime.CONTROL_SOCKET in self._files:
            self.drop_file(runtime.CONTROL_SOCKET)  # a caller that waits for a stop sees it
        self._wholes.clear()
        for path, owned in self._owned.items():
            if ownership.is_of(owned, path):
                remove(path)
        for held in (self._held, self._lock, *self._owned.values()):
            if held is not None:
                os.close(held)


def file_at(path: Path) -> tuple[int, int]:
    """Device and inode of the file that has this name now."""
    status = os.lstat(path)
    return status.st_dev, status.st_ino


def remove(path: Path, directory: int | None = None) -> None:
    """Remove a file if it is there. `directory` is a descriptor of the directory, because the path
    may already lead to another one."""
    try:
        os.unlink(path if directory is None else path.name, dir_fd=directory)
    except FileNotFoundError:
        pass
    except OSError as error:
        log.warning("cannot remove %s: %s", path, error.strerror)


def back(
    names: Mapping[str, str], memories: Mapping[str, _native.Memory], config: Config, slabs: int
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
                huge = memories[kind] if config.huge else None
                segments.reserve(fd, names[kind], offset, size, huge)
        finally:
            os.close(fd)
    _native.open_slabs(memories["wheel"], slabs)


def reserved_bytes(names: Iterable[str]) -> tuple[int, int]:
    """Bytes reserved for segments now, and when all slots are in use. The directory of keys
    counts with its present size, because it grows with the keys, not with the slots."""
    now = most = 0
    for name in names:
        with contextlib.suppress(FileNotFoundError):
            status = os.stat(f"{segments.SHM_DIRECTORY}/{name}")
            has = 512 * status.st_blocks
            now, most = now + has, most + (has if name.endswith("-keys") else status.st_size)
    return now, most
