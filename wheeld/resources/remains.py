"""A daemon's remains: where they are, which processes still use them, and which parts are damaged.

`wheeld start` (takeover.py), `wheeld fsck` and `wheeld doctor` look here. Nothing here writes.

A killed daemon leaves a runtime directory with daemon.json, segments in /dev/shm, and workers that
still use them. Its supervisor held a lock on the wheel for its lifetime, which is visible in every
namespace, and its clock has died with it. Workers are in the worker table, with process ids that
are valid in the PID namespace that the table names. A process that cannot be seen counts as alive.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import re
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from wheeld.processes import identity
from wheeld.resources import trace_segment
from wheeld.tables import sharing
from wheeld.tables.heads import OPTIONS
from wheeld.tables.registry import ANY_UID, RowState
from wheeld_core import _native, control, runtime, segments, trust
from wheeld_core.control.messages import Request
from wheeld_core.errors import DaemonNotRunning, LayoutMismatch, WheelError
from wheeld_core.views import RegistryView, dtype_of, record

INITIAL_PID_NAMESPACE = 0xEFFFFFFC
"""Inode of a kernel's initial PID namespace, the host's."""
KINDS: Mapping[str, int] = {
    name: kind
    for name, kind in segments.KINDS.items()
    if kind not in (_native.KIND_WORKER, _native.KIND_TRACE)
}
"""The segments that every daemon has."""
MODES = (0o600, 0o640, 0o660)
"""Modes for one user, for a group that reads, and for a group that reads and writes."""
MAX_DAEMON_FILE = 1 << 20
EARLIER_BOOT = "of an earlier boot"
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC  # it may be a FIFO
_SEGMENT: Final = re.compile(
    r"(wheeld-([^/]+)-[0-9a-f]{12}-)(wheel|slots|registry|watch|pools|trace|worker-[0-9]+)"
    r"(?:-[0-9a-f]{16})?"
)


# -- where they are --------------------------------------------------------------------------------


def find(name: str, runtime_dir: Path | None = None) -> Path:
    """The runtime directory of a daemon, running or dead. `DaemonNotRunning`: there is none; the
    message names the directories that were searched. `PermissionError`: it belongs to a user that
    is not trusted (`wheeld_core.trust`)."""
    for candidate in runtime.candidates(name, runtime_dir):
        if (candidate / runtime.DAEMON_FILE).exists():
            trust.check(candidate)
            return candidate
    return runtime.find(name, runtime_dir)


def read_facts(directory: Path) -> control.Message:
    """The contents of a directory's daemon.json. `FileNotFoundError`: there is none. `ValueError`:
    it is not a JSON object, or other users may have written it. `WheelError`: it is not a regular
    file of the directory's owner."""
    path = directory / runtime.DAEMON_FILE
    try:
        fd = os.open(path, _READ)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise WheelError(
            f"{path} is not a file of this daemon ({error.strerror}); remove it"
        ) from error
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != directory.stat().st_uid:
            raise WheelError(f"{path} is not a file of this daemon; remove it")
        mode = stat.S_IMODE(status.st_mode)
        if mode & 0o022:
            raise ValueError(f"other users may write to it (mode {mode:04o})")
        return control.decode(os.read(fd, MAX_DAEMON_FILE))
    finally:
        os.close(fd)


def facts_of(directory: Path) -> control.Message:
    """The contents of a directory's daemon.json; {} if it cannot be trusted."""
    with contextlib.suppress(OSError, ValueError, WheelError):
        return read_facts(directory)
    return {}


def prefix_in(facts: control.Message, name: str | None = None) -> str | None:
    """The prefix of a daemon's segments, from its daemon.json; with `name`, only a prefix of that
    daemon."""
    match = _SEGMENT.fullmatch(f"{facts.get('segment_prefix')}wheel")
    return match[1] if match is not None and name in (None, match[2]) else None


@dataclass
class Group:
    """The segments of one daemon."""

    prefix: str
    name: str
    kinds: list[str] = field(default_factory=list)
    size: int = 0


def groups(shm: Path, uid: int) -> list[Group]:
    """The wheeld segments in a directory, by daemon: those of `uid`, or all for root.

    Whether segments of other users are in use is not visible.
    """
    found: dict[str, Group] = {}
    for path in sorted(shm.iterdir()):
        match = _SEGMENT.fullmatch(path.name)
        with contextlib.suppress(OSError):
            status = path.lstat()
            if match is not None and uid in (0, status.st_uid):
                group = found.setdefault(match[1], Group(match[1], match[2]))
                group.kinds.append(match[3])
                group.size += status.st_size
    return list(found.values())


def origin_of(group: Group, shm: Path, boot_id: str) -> str:
    """Describe the origin of these segments: a daemon of this layout and boot, or another one."""
    for kind in ("wheel", "registry"):
        try:
            with (shm / (group.prefix + kind)).open("rb") as file:
                start = file.read(dtype_of(kind).itemsize)
        except OSError:
            return "incomplete"
        status, version, _ = _native.attach_status(start, KINDS[kind])
        if status == _native.ATTACH_NOT_READY:
            return "half-made"
        if status in (_native.ATTACH_VERSION, _native.ATTACH_FINGERPRINT):
            return f"layout version {version} of another build"
        if status == _native.ATTACH_FOREIGN:
            return "not wheeld's"
    if len(start) == dtype_of("registry").itemsize:
        made = bytes(np.frombuffer(start, dtype_of("registry"))["boot_id"][0]).decode()
        if boot_id and made != boot_id:
            return EARLIER_BOOT
    return f"a dead daemon {group.name!r}"


# -- who lives -------------------------------------------------------------------------------------


class Use(Enum):
    """The known users of some segments."""

    ALIVE = "alive"
    DEAD = "dead"
    UNSEEN = "unseen"
    """No process is visible, but one could exist."""


def own_pid_namespace(proc: Path = Path("/proc")) -> int:
    """Inode of this process's PID namespace; 0 if unknown."""
    with contextlib.suppress(OSError):
        return os.stat(proc / "self/ns/pid").st_ino
    return 0


def is_locked(path: Path) -> bool:
    """Whether a process holds the lock of this file. OSError if that cannot be tested."""
    try:
        fd = os.open(path, _READ)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def supervisor_of(wheel: Path) -> int | None:
    """The process id of the supervisor that holds this wheel; None if there is no such daemon.

    Members of the group may read the wheel, so they can lock it, too: their locks do not count. A
    lock with an invisible holder counts as a supervisor's; then the id is not positive.
    """
    if not is_locked(wheel):
        return None
    status = os.stat(wheel)
    file = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    pids = re.findall(rf": FLOCK .*? (-?\d+) {file} ", Path("/proc/locks").read_text("utf-8"))
    return next((int(pid) for pid in pids or [0] if _is_ours(int(pid))), None)


def _is_ours(pid: int) -> bool:
    """Whether the process can belong to this user. A process that /proc hides belongs to another
    user."""
    if pid <= 0:  # of another pid namespace
        return True
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return os.stat(f"/proc/{pid}").st_uid == os.getuid()
    return False


def mapped_prefixes(proc: Path, prefixes: Iterable[str]) -> set[str]:
    """The members of `prefixes` whose segments another process maps."""
    wanted, found = set(prefixes), set[str]()
    for process in proc.glob("[0-9]*"):
        if found == wanted:
            break
        if process.name == str(os.getpid()):
            continue  # it maps them to look into them
        with contextlib.suppress(OSError):
            text = (process / "maps").read_text(errors="replace")
            found |= {prefix for prefix in wanted - found if f"/{prefix}" in text}
    return found


def use_of(shm: Path, prefix: str, own: int | None = None) -> Use:
    """Find the users of the segments in `shm` with this prefix: a supervisor, or workers.

    `own` is the PID namespace of this process.
    """
    own = own_pid_namespace() if own is None else own
    try:
        if is_locked(shm / f"{prefix}wheel"):
            return Use.ALIVE
        fd = os.open(shm / f"{prefix}registry", _READ)
        try:
            registry = _native.Memory(fd, os.fstat(fd).st_size, False)
        finally:
            os.close(fd)
        segments.check(registry, _native.KIND_REGISTRY, prefix + "registry")
    except (OSError, ValueError, WheelError):  # nothing says who had them
        return Use.DEAD if own == INITIAL_PID_NAMESPACE else Use.UNSEEN
    return workers_use(registry, own)


def workers_use(registry: _native.Memory, own: int) -> Use:
    """Whether a worker in this table lives; `own` is the PID namespace of this process."""
    view, found = RegistryView(registry), Use.DEAD
    theirs = int(view.header["pid_ns"])
    for row in view.rows[np.flatnonzero(_taken(view))]:
        # A daemon is never in a namespace below its workers', and none is above the initial one.
        known = theirs or int(row["pid_ns"]) == INITIAL_PID_NAMESPACE
        if own != (theirs or INITIAL_PID_NAMESPACE) or not known:
            found = Use.UNSEEN
            continue
        uid = int(row["uid"]) if row["uid"] != ANY_UID else None
        if identity.lives(int(row["pid"]), int(row["start_time"]), int(row["pid_ns"]), uid):
            return Use.ALIVE
    return found


def _taken(view: RegistryView) -> Any:
    return ~np.isin(view.rows["state"], (RowState.FREE, RowState.KEPT))


def workers_apart(prefix: str, registry: _native.Memory) -> list[str]:
    """Names of the workers that live in a PID namespace that this process cannot see.

    In this PID namespace their process ids name other processes, or no process. The kernel knows
    whether they live: it grants a write lease of a worker's segment only if no other process has it
    open or mapped, in any namespace.
    """
    view = RegistryView(registry)
    if int(view.header["pid_ns"]) in (0, own_pid_namespace()):
        return []
    there, found = segments.of_daemon(prefix, os.getuid()), []
    for row in np.flatnonzero(_taken(view)).tolist():
        kind, fields = runtime.worker_segment(row), view.rows[row]
        if kind in there:
            lives = _is_open(Path(segments.SHM_DIRECTORY, there[kind]))
        else:  # removed although its worker lives, or not made yet
            lives = fields["state"] != RowState.ATTACHING
        if lives:
            found.append(bytes(fields["name"]).decode(errors="replace"))
    return found


def _is_open(path: Path) -> bool:
    """Whether any process has that file open or mapped; True if that is unknown."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return True
    try:  # who opens it now waits until we close it; the SIGIO is ignored
        fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    except OSError:
        return True
    finally:
        os.close(fd)
    return False


# -- what is damaged -------------------------------------------------------------------------------


def geometry_of(wheel: Any) -> dict[str, int]:
    """Sizes and offsets that a wheel with this header must have; ValueError if it can have none."""
    try:
        return _native.geometry(**{key: int(wheel[key]) for key in OPTIONS})
    except OverflowError as error:
        raise ValueError(str(error)) from error


def head_faults(memories: Mapping[str, _native.Memory]) -> list[str]:
    """Which lengths and headers of these segments contradict the options in the wheel's header."""
    wheel = record(memories["wheel"], "wheel")
    try:
        wanted = geometry_of(wheel)
    except ValueError as error:
        return [f"wheel: impossible sizes: {error}"]
    wanted["row_count"] = int(wheel["max_workers"])
    faults = []
    for kind in ("wheel", "slots", "registry"):
        if (memory := memories.get(kind)) is None:
            continue
        if len(memory) != wanted[f"{kind}_bytes"]:
            faults.append(f"{kind}: {len(memory)} bytes, expected {wanted[f'{kind}_bytes']}")
        head = record(memory, kind)
        faults += [
            f"{kind}: {name} {int(head[name])}, expected {wanted[name]}"
            for name in head.dtype.names or ()
            if name in wanted and int(head[name]) != wanted[name]
        ]
    if sharing.KINDS.keys() <= memories.keys():
        faults += sharing.faults(wanted["row_count"], int(wheel["capacity"]), memories)
    return faults


class Memories(NamedTuple):
    """The mapped segments of one daemon."""

    wheel: _native.Memory
    slots: _native.Memory
    registry: _native.Memory
    workers: dict[int, _native.Memory]
    watch: _native.Memory
    pools: _native.Memory
    read_keys: Callable[[], _native.Memory]
    """A copy of the segment of keys, without its holes."""


class DaemonMemory:
    """The segments of one daemon, found through its control socket or its daemon.json; `status` is
    the daemon's answer, None: none answers."""

    def __init__(self, directory: Path, timeout: float = 5.0) -> None:
        self.directory = directory
        self.facts = facts_of(directory)
        self.status = status_of(directory, timeout)
        prefix = prefix_in(self.facts)
        if self.status is not None:
            prefix = str(self.status["segments"]["wheel"]).removesuffix("wheel")
        if prefix is None:
            raise DaemonNotRunning(
                f"no daemon answers in {directory}, and its daemon.json names no shared memory; "
                "start it with `wheeld start`"
            )
        self.prefix = prefix
        self._base: dict[str, _native.Memory] = {}
        self.uid = directory.stat().st_uid

    def clock_runs(self) -> bool:
        lock = self.directory / runtime.CLOCK_LOCK
        return is_locked(lock) if lock.exists() else self.status is not None

    def racing(self) -> bool:
        """Whether a process writes this wheel: its clock, or a live worker."""
        return self.clock_runs() or self.workers_live()

    def workers_live(self) -> bool:
        """Whether any worker is alive, with or without a clock."""
        registry = self._base.get("registry")
        return registry is not None and workers_use(registry, own_pid_namespace()) != Use.DEAD

    def headers(self) -> list[str]:
        """Check the files and headers of all segments, and map the base ones that are intact.
        `LayoutMismatch`: all of them were made by another version. `WheelError`: none of them is
        there."""
        texts: list[str] = []
        heads = {kind: self._head(self.prefix + kind, KINDS[kind], texts) for kind in KINDS}
        if not any(head is not None for head in heads.values()):
            self._refuse()
        if (trace := self.trace_name()) is not None:
            heads[trace_segment.KIND] = self._head_of_trace(trace, texts)
        workers = self.worker_names() if self._map_base(heads, texts) else {}
        for row, name in workers.items():
            heads[runtime.worker_segment(row)] = self._head(name, _native.KIND_WORKER, texts)
        tokens = {kind: int(head["token"]) for kind, head in heads.items() if head is not None}
        common = Counter(tokens.values()).most_common(1)[0][0] if tokens else 0
        return texts + [
            f"{self.prefix}{kind}: token {token:x}, expected {common:x} as in the others"
            for kind, token in tokens.items()
            if token != common
        ]

    def _head(self, name: str, kind: int, texts: list[str]) -> Any:
        """A segment's header; None, and an added message, when there is no valid one."""
        try:
            fd = os.open(Path(segments.SHM_DIRECTORY, name), _READ)
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
        head = np.frombuffer(start, dtype_of("head")).reshape(())
        found = _native.attach_status(start, kind)[0]
        if found not in (_native.ATTACH_READY, _native.ATTACH_TOO_SHORT):
            texts.append(f"{name}: {_HEAD_FAULTS[found]}")
        elif int(head["bytes"]) != status.st_size:
            texts.append(f"{name}: it says {int(head['bytes'])} bytes, it has {status.st_size}")
        else:
            return head
        return None

    def trace_name(self) -> str | None:
        return segments.of_daemon(self.prefix, self.uid).get(trace_segment.KIND)

    def _head_of_trace(self, name: str, texts: list[str]) -> Any:
        if (head := self._head(name, _native.KIND_TRACE, texts)) is not None:
            with contextlib.suppress(OSError, WheelError):  # gone: its daemon has stopped
                memory = segments.attach(name, _native.KIND_TRACE, writable=False)
                texts += [f"{name}: {fault}" for fault in trace_segment.faults(memory)]
        return head

    def _refuse(self) -> None:
        """Raise if this program cannot read this wheel."""
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

    def _map_base(self, heads: Mapping[str, Any], texts: list[str]) -> bool:
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
        faults = head_faults(self._base)
        texts += [f"{self.prefix}{fault}" for fault in faults]
        return not faults

    def worker_names(self) -> dict[int, str]:
        """Segments of the present workers, by row; a missing one is listed by its stem."""
        registry = RegistryView(self._base["registry"])
        there = segments.of_daemon(self.prefix, self.uid, registry.segment_inodes())
        kinds = {
            row: runtime.worker_segment(row)
            for row in np.flatnonzero(registry.rows["state"] > RowState.ATTACHING).tolist()
        }
        return {row: there.get(kind, self.prefix + kind) for row, kind in kinds.items()}

    def memories(self) -> Memories | None:
        """The maps, without damaged segments of workers. None: there is nothing to check."""
        if not self._base or head_faults(self._base):
            return None
        workers = {}
        size = geometry_of(record(self._base["wheel"], "wheel"))["worker_bytes"]
        for row, name in self.worker_names().items():
            with contextlib.suppress(OSError, WheelError):
                memory = segments.attach(name, _native.KIND_WORKER, writable=False)
                if len(memory) == size:
                    workers[row] = memory
        base = {kind: memory for kind, memory in self._base.items() if kind != "keys"}
        keys = functools.partial(segments.data, self.prefix + "keys", self.uid)
        return Memories(workers=workers, read_keys=keys, **base)


_HEAD_FAULTS = {
    _native.ATTACH_NOT_READY: "not ready: its creator has not finished",
    _native.ATTACH_FOREIGN: "its magic number is wrong for this kind of segment",
    _native.ATTACH_VERSION: "another layout version",
    _native.ATTACH_FINGERPRINT: "another layout: the fingerprint differs",
}


def _file_faults(status: os.stat_result, uid: int) -> Iterator[str]:
    if not stat.S_ISREG(status.st_mode):
        yield "not a regular file"
    if status.st_uid != uid:
        yield f"belongs to uid {status.st_uid}, expected {uid}"
    if stat.S_IMODE(status.st_mode) not in MODES:
        yield f"mode {stat.S_IMODE(status.st_mode):04o}, expected 0600; 0640 or 0660 for a group"


def status_of(directory: Path, timeout: float) -> control.Message | None:
    """The status of the daemon in this directory; None if it does not answer in `timeout` seconds.

    PermissionError: the directory, or the process that answers, is not trusted.
    """
    with contextlib.suppress(WheelError, TimeoutError):
        status = control.ask(directory, Request.STATUS, timeout)["status"]
        return status if isinstance(status, dict) else None
    return None
