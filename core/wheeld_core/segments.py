"""POSIX shared memory segments: made whole or not at all, attached only when they are ours.

A segment's memory is reserved with `posix_fallocate` when it is made, except for slots that are not
needed yet (`wheeld/shared/backing.h`), so that a small /dev/shm is an error and never a SIGBUS. A
process that attaches a segment for writing populates it, so that no hot call pays for a page fault;
the supervisor, which makes it, touches little of it. It is mapped so that it can have huge pages
(`wheeld/shared/backing.h`). `multiprocessing.shared_memory` is not used: its resource tracker
unlinks segments that other processes still need.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Final

from wheeld_core import _native, shm, trust
from wheeld_core.errors import LayoutMismatch, WheelError

SHM_DIRECTORY: Final = "/dev/shm"
KINDS: Final = {
    "wheel": _native.KIND_WHEEL,
    "slots": _native.KIND_SLOTS,
    "registry": _native.KIND_REGISTRY,
    "worker": _native.KIND_WORKER,
    "watch": _native.KIND_WATCH,
    "keys": _native.KIND_KEYS,
    "pools": _native.KIND_POOLS,
    "trace": _native.KIND_TRACE,
}
"""A segment's name, after its daemon's prefix, and the kind that its header must have."""
GROWING: Final = (_native.KIND_WHEEL, _native.KIND_SLOTS, _native.KIND_KEYS)
"""Segments with holes, which must not be touched."""
KIND_NAMES: Final = {kind: name for name, kind in KINDS.items()}

_MADV_POPULATE_WRITE: Final = 23
_UNGUESSABLE: Final = re.compile(r"(.+)-[0-9a-f]{16}")
_TRIES: Final = 16


class SegmentError(WheelError):
    """A segment could not be made, or is not valid."""


class NameTaken(SegmentError):
    """A segment of that name exists already, perhaps another user's."""


def create(
    name: str,
    size: int,
    mode: int = 0o600,
    gid: int | None = None,
    holes: Sequence[tuple[int, int]] = (),
    huge: bool = False,
) -> _native.Memory:
    """Make a new, zeroed segment of `size` bytes with that `mode` (whatever the umask) for `gid`,
    map it read-write.

    Its memory is reserved at once, except `holes`, offsets and sizes in order: `reserve` does that
    later, and nobody may read them before. `huge`: use huge pages, as far as the kernel provides
    them; they reach into the holes. NameTaken: the name exists. SegmentError: /dev/shm has too
    little room (both sizes are named).
    """
    try:
        fd = shm.make(name, mode)
    except FileExistsError as error:
        raise NameTaken(f"shared memory {name!r} exists already") from error
    try:
        if gid is not None:
            os.fchown(fd, -1, gid)
        os.fchmod(fd, mode)
        os.ftruncate(fd, size)
        memory = _native.Memory(fd, size, True)
        reserve_but(fd, name, size, holes, memory if huge else None)
        return memory
    except BaseException:
        unlink(name)
        raise
    finally:
        os.close(fd)


def random_part(count: int) -> str:
    """`count` random bytes in hexadecimal, for a name."""
    return os.urandom(count).hex()


def create_unguessable(
    stem: str, size: int, mode: int = 0o600, gid: int | None = None, huge: bool = False
) -> tuple[str, _native.Memory]:
    """As `create`, under `stem` and a random number; returns the name, too.

    All users may make files in /dev/shm: another user who could guess a name could take it first.
    """
    tries = 0
    while True:
        name = f"{stem}-{random_part(8)}"
        try:
            return name, create(name, size, mode, gid, huge=huge)
        except NameTaken:
            tries += 1
            if tries == _TRIES:
                raise


def inode_word(name: str) -> int:
    """The part of a segment's inode that the worker table stores."""
    return os.lstat(f"{SHM_DIRECTORY}/{name}").st_ino & 0xFFFFFFFF


def mapped(prefix: str) -> dict[str, int]:
    """Name -> inode of the segments of a prefix that this process maps and that still have their
    names; the inode is the mapping's own."""
    found = {}
    for line in Path("/proc/self/maps").read_text().splitlines():
        inode, _, path = line.split(maxsplit=4)[4].partition(" ")
        name = path.strip().rpartition("/")[2]
        if name.startswith(prefix) and not name.endswith(" (deleted)"):
            found[name] = int(inode)
    return found


def of_daemon(
    prefix: str, owner_uid: int, inodes: Mapping[str, int] = MappingProxyType({})
) -> dict[str, str]:
    """The segments of a daemon of `owner_uid` in /dev/shm: "wheel", "worker-0", ... -> name.

    Files that others put there are left out; so are links to other segments of the same owner, if
    `inodes` (`RegistryView.segment_inodes`) has the right inode.
    """
    found: dict[str, tuple[int, str]] = {}
    for name in os.listdir(SHM_DIRECTORY):
        if not name.startswith(prefix):
            continue
        kind = name.removeprefix(prefix)
        if (numbered := _UNGUESSABLE.fullmatch(kind)) is not None:
            kind = numbered[1]
        with contextlib.suppress(FileNotFoundError):
            status = os.lstat(f"{SHM_DIRECTORY}/{name}")
            ours = stat.S_ISREG(status.st_mode) and status.st_uid == owner_uid
            ours &= inodes.get(kind) in (None, status.st_ino & 0xFFFFFFFF)
            ours &= (
                kind != "trace" or not status.st_mode & stat.S_IRWXG
            )  # none that others can link
            if ours:
                found[kind] = max(found.get(kind, (0, "")), (status.st_ctime_ns, name))
    return {kind: name for kind, (_, name) in found.items()}


_OPTIONS: Final = {
    "registry": "--max-workers",
    "watch": "--max-workers",
    "pools": "--max-workers",
    "trace": "--trace-ring",
}


def _option_of(name: str) -> str:
    numbered = _UNGUESSABLE.fullmatch(name)
    kind = (numbered[1] if numbered else name).rpartition("-")[2]
    return _OPTIONS.get(kind, "--capacity")


def reserve_but(
    fd: int, name: str, size: int, holes: Sequence[tuple[int, int]],
    huge: _native.Memory | None = None,
) -> None:  # fmt: skip
    """`reserve` all of a segment of `size` bytes except the given parts, which are in order."""
    begin = 0
    for offset, length in (*holes, (size, 0)):
        reserve(fd, name, begin, offset - begin, huge)
        begin = offset + length


def reserve(fd: int, name: str, offset: int, size: int, huge: _native.Memory | None = None) -> None:
    """Reserve memory for a part of a segment, so that writing there cannot raise SIGBUS. Uses huge
    pages where the segment is mapped as `huge`, as far as the kernel provides them.

    SegmentError: /dev/shm has too little room (both sizes are named).
    """
    if size <= 0:
        return
    room = os.statvfs(SHM_DIRECTORY)  # before huge pages take some
    if huge is not None:
        huge.make_huge(fd, offset, size)
    try:
        os.posix_fallocate(fd, offset, size)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.ENOMEM, errno.EFBIG):
            raise
        raise SegmentError(
            f"{SHM_DIRECTORY} is too small for {name!r}: {size:,} bytes are needed, "
            f"{room.f_bavail * room.f_frsize:,} are free; lower {_option_of(name)} or "
            f"enlarge it (mount -o remount,size=...; `docker run --shm-size=...` for a container)"
        ) from error


def attach(
    name: str, kind: int, *, writable: bool, owner_uid: int | None = None, private: bool = False
) -> _native.Memory:
    """Map an existing segment after checking its owner, size and layout; `kind` is one of
    `_native.KIND_*`. No descriptor stays open: client processes may have few descriptors, or close
    them all. `private`: refuse one that is open to all users.

    FileNotFoundError, PermissionError: from the operating system. LayoutMismatch: another version
    made it; both are named. SegmentError: it is not a wheeld segment of that kind, or its name
    leads elsewhere.
    """
    with opened(name, writable, owner_uid) as (fd, size):
        mode = stat.S_IMODE(os.fstat(fd).st_mode)
        if private and mode & stat.S_IRWXO:
            raise SegmentError(f"{name!r} is open to all users (mode {mode:04o})")
        memory = _native.Memory(fd, size, writable, writable and kind not in GROWING)
    check(memory, kind, name)
    return memory


def data(name: str, owner_uid: int | None = None) -> _native.Memory:
    """A private copy of a segment with holes, which take no memory in the copy either.

    Raises as `attach`.
    """
    with opened(name, False, owner_uid) as (fd, size):
        copy = _native.Memory(-1, size, True)
        end = 0
        while end < size:  # each turn passes one part
            try:
                begin = os.lseek(fd, end, os.SEEK_DATA)
            except OSError as error:
                if error.errno != errno.ENXIO:
                    raise
                break
            end = os.lseek(fd, begin, os.SEEK_HOLE)
            with memoryview(copy) as whole:
                os.preadv(fd, [whole[begin:end]], begin)
    return copy


def can_populate() -> bool:
    """Whether this kernel can reserve memory of a mapped file (Linux 5.14)."""
    try:
        mmap.mmap(-1, mmap.PAGESIZE).madvise(_MADV_POPULATE_WRITE)
    except OSError:
        return False
    return True


def open_to_grow(name: str, memory: _native.Memory) -> int:
    """A descriptor of a segment that is mapped at `memory`, to `reserve` more of it; the caller
    closes it."""
    with opened(name, True, os.getuid()) as (fd, size):
        if size != len(memory):
            raise SegmentError(f"{name!r} has {size} bytes, expected {len(memory)}")
        if os.fstat(fd).st_ino != mapped(name).get(name):
            raise SegmentError(f"{name!r} is not the segment that this process maps")
        return os.dup(fd)


@contextlib.contextmanager
def opened(name: str, writable: bool, owner_uid: int | None) -> Iterator[tuple[int, int]]:
    """A descriptor of a segment that may be read or mapped, and its size in bytes."""
    flags = os.O_RDWR if writable else os.O_RDONLY
    flags |= os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    fd = trust.above_standard(os.open(f"{SHM_DIRECTORY}/{trust.plain(name)}", flags))
    try:
        status = os.fstat(fd)
        # It may have other names: a user who may write it can link it, and gains nothing by that.
        if not stat.S_ISREG(status.st_mode):
            raise SegmentError(f"{name!r} is not an ordinary shared memory segment")
        if owner_uid is not None and status.st_uid != owner_uid:
            raise SegmentError(f"{name!r} belongs to uid {status.st_uid}, expected {owner_uid}")
        if status.st_size == 0:
            raise SegmentError(f"{name!r} is empty: its creator has not finished")
        yield fd, status.st_size
    finally:
        os.close(fd)


def place() -> list[int]:
    """Identifies this process's /dev/shm: processes in other containers may have another one."""
    status = os.stat(SHM_DIRECTORY)
    return [status.st_dev, status.st_ino]


def elsewhere(theirs: object) -> str | None:
    """An explanation if a daemon's /dev/shm is not this process's; else None."""
    if theirs is None or theirs == place():
        return None
    return (
        f"this process has another {SHM_DIRECTORY} than the daemon, so it cannot map the daemon's "
        "memory. For containers: `docker run --ipc=host` or `--ipc=container:NAME` on both sides, "
        f"or one volume mounted as {SHM_DIRECTORY} in both. For a service: no TemporaryFileSystem= "
        "or InaccessiblePaths= over it"
    )


def check(memory: _native.Memory, kind: int, name: str) -> None:
    """Raise unless `memory` holds a ready segment of `kind` in this build's layout."""
    found, version, fingerprint = _native.attach_status(memory, kind)
    if found == _native.ATTACH_READY:
        return
    if found in (_native.ATTACH_VERSION, _native.ATTACH_FINGERPRINT):
        raise LayoutMismatch(
            f"{name!r} has layout version {version} ({fingerprint:016x}); this client is built for "
            f"version {_native.LAYOUT_VERSION} ({_native.FINGERPRINT}): install the same wheeld "
            "on both sides"
        )
    reasons = {
        _native.ATTACH_TOO_SHORT: "is shorter than its header says",
        _native.ATTACH_NOT_READY: "is not ready: its creator has not finished",
        _native.ATTACH_FOREIGN: f"is not a {KIND_NAMES[kind]} segment of wheeld",
    }
    raise SegmentError(f"{name!r} {reasons[found]}")


def unlink(name: str) -> None:
    """Remove a segment's name; it lives on where it is mapped. No error when it is gone.
    SegmentError: it belongs to another user."""
    with contextlib.suppress(FileNotFoundError):
        try:
            shm.unlink(name)
        except PermissionError as error:
            raise SegmentError(f"{SHM_DIRECTORY}/{name} belongs to another user") from error


def unlink_all(prefix: str) -> None:
    """Remove every segment whose name begins with `prefix`: what a killed daemon left."""
    if not prefix.startswith("wheeld-"):
        raise ValueError(f"{prefix!r} is not a valid prefix of wheeld segments")
    for name in os.listdir(SHM_DIRECTORY):
        if name.startswith(prefix):
            with contextlib.suppress(SegmentError):  # somebody else's, whatever it is
                unlink(name)
