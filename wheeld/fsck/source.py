"""Where `wheeld fsck` finds its wheel: a running daemon's memory, or what a dead one left."""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import stat
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from wheeld.fsck.image import Array, Damage, Memories, geometry_of, of_texts
from wheeld.processes.identity import lives
from wheeld.resources import trace_segment as segment
from wheeld.resources.leftovers import KINDS
from wheeld.resources.vital_signs import is_locked, own_pid_namespace
from wheeld.tables import sharing
from wheeld_core import _native, runtime, segments, trust
from wheeld_core.control import Connection
from wheeld_core.control.messages import Request
from wheeld_core.errors import DaemonNotRunning, LayoutMismatch, WheelError
from wheeld_core.views import RegistryView, dtype_of, record

MODES = (0o600, 0o640, 0o660)
"""For one user; for a group that reads; for a group that reads and writes."""
_FIELDS = {
    "wheel": "levels lanes lists slab_count sub_bits comp_bits ret_bits lines_off undo_off "
    "lanes_off summary_off occupancy_off links_off",
    "slots": "owners_off states_off slots_off payloads_off",
    "registry": "rows_off groups_off",
    "worker": "sub_off comp_off ret_off",
}


def find(name: str, runtime_dir: Path | None = None) -> Path:
    """The runtime directory of a daemon, running or dead.

    Raises
    ------
    DaemonNotRunning
        There is none; the message names the directories that were searched.
    """
    if "/" in name:
        candidates = [Path(name)]
    else:
        bases = [runtime_dir] if runtime_dir else runtime.base_directories()
        candidates = [base / runtime.check_name(name) for base in bases]
    for candidate in candidates:
        if (candidate / runtime.DAEMON_FILE).exists():
            trust.check(candidate)
            return candidate
    return runtime.find(name, runtime_dir)


def daemon_file(directory: Path) -> dict[str, Any]:
    """The contents of a directory's daemon.json; {} if there is none."""
    with contextlib.suppress(FileNotFoundError, ValueError):
        facts = json.loads((directory / runtime.DAEMON_FILE).read_text("utf-8"))
        return facts if isinstance(facts, dict) else {}
    return {}


def locked(path: Path) -> bool:
    """Whether some process holds the file lock on `path`."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    return is_locked(fd)


class DaemonMemory:
    """The segments of one daemon, found through its control socket or its daemon.json.

    Attributes
    ----------
    status : dict or None
        The daemon's answer; None: none answers.
    """

    def __init__(self, directory: Path, timeout: float = 5.0) -> None:
        self.directory = directory
        self.facts = daemon_file(directory)
        self.status = _ask(directory, timeout)
        prefix = self.facts.get("segment_prefix")
        if self.status is not None:
            prefix = self.status["segments"]["wheel"].removesuffix("wheel")
        if not isinstance(prefix, str) or "/" in prefix:
            raise DaemonNotRunning(
                f"no daemon answers in {directory}, and its daemon.json names no shared memory; "
                "start it with `wheeld start`"
            )
        self.prefix = prefix
        self._base: dict[str, mmap.mmap] = {}
        self.uid = directory.stat().st_uid

    def clock_runs(self) -> bool:
        """Whether a clock writes this wheel."""
        lock = self.directory / runtime.CLOCK_LOCK
        if lock.exists():
            return locked(lock)
        return self.status is not None

    def racing(self) -> bool:
        return self.clock_runs() or self.workers_live()

    def workers_live(self) -> bool:
        """Whether any worker is alive, with or without a clock. One that cannot be seen counts as
        alive."""
        registry = self._base.get("registry")
        if registry is None:
            return False
        rows = RegistryView(registry).rows
        taken = rows[rows["state"] != 0]
        if self.facts.get("pid_namespace") not in (None, own_pid_namespace()):
            return bool(len(taken))
        return any(
            int(row["pid"]) and lives(int(row["pid"]), int(row["start_time"]), int(row["pid_ns"]))
            for row in taken
        )

    def headers(self) -> list[Damage]:
        """Check the files and headers of all segments, and map the base ones that are intact.

        Raises
        ------
        LayoutMismatch
            All of them were made by another version.
        WheelError
            None of them is there.
        """
        texts: list[str] = []
        heads = {}
        for kind, number in KINDS.items():
            heads[kind] = self._head(self.prefix + kind, number, texts)
        self._refuse(heads)
        if (trace := self.trace_name()) is not None:
            heads[segment.KIND] = self._head_of_trace(trace, texts)
        workers = self.worker_names() if self._map_base(heads, texts) else {}
        for row, name in workers.items():
            heads[runtime.worker_segment(row)] = self._head(name, _native.KIND_WORKER, texts)
        tokens = Counter(int(head["token"]) for head in heads.values() if head is not None)
        common = tokens.most_common(1)[0][0] if tokens else 0
        texts += [
            f"{self.prefix}{kind}: token {int(head['token']):x}, expected {common:x} as in the "
            "others"
            for kind, head in heads.items()
            if head is not None and int(head["token"]) != common
        ]
        return [of_texts(texts)]

    def _head(self, name: str, kind: int, texts: list[str]) -> Array | None:
        """A segment's header; None, and an added message, when there is no valid one."""
        try:
            # O_NONBLOCK: it may be a FIFO
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
            fd = os.open(Path(segments.SHM_DIRECTORY, name), flags)
        except PermissionError as error:
            raise PermissionError(
                f"no access to {name}: that daemon runs as another user"
            ) from error
        except OSError as error:
            texts.append(f"{name}: {error.strerror}")
            return None
        try:
            status = os.fstat(fd)
            regular = stat.S_ISREG(status.st_mode)
            start = os.pread(fd, dtype_of("head").itemsize, 0) if regular else b""
        finally:
            os.close(fd)
        texts += [f"{name}: {text}" for text in _file_faults(status, self.uid)]
        if not regular:
            return None
        if len(start) < dtype_of("head").itemsize:
            texts.append(f"{name}: {len(start)} bytes, too short for a segment")
            return None
        head: Array = np.frombuffer(start, dtype_of("head")).reshape(())
        found = _native.attach_status(start, kind)[0]
        if found not in (_native.ATTACH_READY, _native.ATTACH_TOO_SHORT):
            texts.append(f"{name}: {_HEAD_FAULTS[found]}")
        elif int(head["bytes"]) != status.st_size:
            texts.append(f"{name}: it says {int(head['bytes'])} bytes, it has {status.st_size}")
        else:
            return head
        return None

    def trace_name(self) -> str | None:
        return segments.of_daemon(self.prefix, self.uid).get(segment.KIND)

    def _head_of_trace(self, name: str, texts: list[str]) -> Array | None:
        """The same for the trace segment, and what is wrong in it."""
        if (head := self._head(name, _native.KIND_TRACE, texts)) is not None:
            with contextlib.suppress(OSError, WheelError):  # gone: its daemon has stopped
                memory = segments.attach(name, _native.KIND_TRACE, writable=False)
                texts += [f"{name}: {fault}" for fault in segment.faults(memory)]
        return head

    def _refuse(self, heads: dict[str, Array | None]) -> None:
        """Raise when this program cannot read this wheel at all."""
        if any(head is not None for head in heads.values()):
            return
        states = []
        for kind, number in KINDS.items():
            path = Path(segments.SHM_DIRECTORY, self.prefix + kind)
            with contextlib.suppress(OSError), path.open("rb") as file:
                states.append(_native.attach_status(file.read(64), number))
        if not states and (why := segments.elsewhere(self.facts.get("shm"))) is not None:
            raise WheelError(why)
        if not states:
            raise WheelError(
                f"the shared memory {self.prefix}* that {self.directory} names is gone; "
                "`wheeld start` makes a new wheel"
            )
        if all(s[0] in (_native.ATTACH_VERSION, _native.ATTACH_FINGERPRINT) for s in states):
            raise LayoutMismatch(
                f"{self.prefix}* has layout version {states[0][1]} ({states[0][2]:016x}), this "
                f"program reads version {_native.LAYOUT_VERSION} ({_native.FINGERPRINT}): use the "
                "`wheeld fsck` of the version that the daemon was started with"
            )

    def _map_base(self, heads: dict[str, Array | None], texts: list[str]) -> bool:
        """Map the base segments read-only. False: they are too damaged to be checked."""
        if any(heads[kind] is None for kind in KINDS):
            return False
        if not self._base:
            try:
                self._base = {
                    kind: segments.attach(self.prefix + kind, number, writable=False)
                    for kind, number in KINDS.items()
                }
            except segments.SegmentError:  # its objection is already among the messages
                return False
        faults = size_faults(self._base)
        texts += [f"{self.prefix}{fault}" for fault in faults]
        return not faults

    def worker_names(self) -> dict[int, str]:
        """Segments of the present workers, by row; a missing one is under its stem."""
        registry = RegistryView(self._base["registry"])
        rows = registry.rows
        there = segments.of_daemon(self.prefix, self.uid, registry.segment_inodes())
        kinds = {
            row: runtime.worker_segment(row) for row in np.flatnonzero(rows["state"] > 1).tolist()
        }
        return {row: there.get(kind, self.prefix + kind) for row, kind in kinds.items()}

    def memories(self) -> Memories | None:
        """The maps, without damaged segments of workers. None: nothing to check."""
        if not self._base or size_faults(self._base):
            return None
        workers = {}
        size = geometry_of(record(self._base["wheel"], "wheel"))["worker_bytes"]
        for row, name in self.worker_names().items():
            with contextlib.suppress(OSError, WheelError):
                memory = segments.attach(name, _native.KIND_WORKER, writable=False)
                if len(memory) == size:
                    workers[row] = memory
        base = self._base
        return Memories(
            base["wheel"], base["slots"], base["registry"], workers, base["watch"], base["pools"]
        )


_HEAD_FAULTS = {
    _native.ATTACH_NOT_READY: "not ready: its creator has not finished",
    _native.ATTACH_FOREIGN: "its magic number is wrong for this kind of segment",
    _native.ATTACH_VERSION: "another layout version",
    _native.ATTACH_FINGERPRINT: "another layout: the fingerprint differs",
}


def _file_faults(status: os.stat_result, uid: int) -> Iterator[str]:
    """What is wrong with a segment as a file."""
    if not stat.S_ISREG(status.st_mode):
        yield "not a regular file"
    if status.st_uid != uid:
        yield f"belongs to uid {status.st_uid}, expected {uid}"
    if stat.S_IMODE(status.st_mode) not in MODES:
        yield f"mode {stat.S_IMODE(status.st_mode):04o}, expected 0600; 0640 or 0660 for a group"


def size_faults(base: dict[str, mmap.mmap]) -> list[str]:
    """What in the base segments' headers does not follow from the wheel's configuration."""
    try:
        wanted = geometry_of(record(base["wheel"], "wheel"))
    except ValueError as error:
        return [f"wheel: impossible sizes: {error}"]
    faults = []
    for kind in ("wheel", "slots", "registry"):
        memory = base[kind]
        if len(memory) != wanted[f"{kind}_bytes"]:
            faults.append(f"{kind}: {len(memory)} bytes, expected {wanted[f'{kind}_bytes']}")
        header = record(memory, kind)
        faults += [
            f"{kind}: {field} {int(header[field])}, expected {wanted[field]}"
            for field in _FIELDS[kind].split()
            if int(header[field]) != wanted[field]
        ]
    workers = int(record(base["wheel"], "wheel")["max_workers"])
    if int(record(base["registry"], "registry")["row_count"]) != workers:
        faults.append(f"registry: row_count, expected {workers}")
    return faults + sharing.faults(workers, base["watch"], base["pools"])


def _ask(directory: Path, timeout: float) -> dict[str, Any] | None:
    """The daemon's status, or None when it does not answer."""
    try:
        connection = Connection(directory, timeout)
    except (DaemonNotRunning, TimeoutError):
        return None
    try:
        status = connection.request(Request.STATUS)["status"]
        return status if isinstance(status, dict) else None
    except WheelError:
        return None
    finally:
        connection.close()
