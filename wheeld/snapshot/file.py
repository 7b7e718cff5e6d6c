"""The file of a snapshot: written completely or not at all, and read only if it is sound.

    prefix   magic, format version, length of the header, length of the body
    header   JSON: when and where it was made, sizes, names, counts
    body     records of the timers, their payloads end to end, slab numbers, generations, sizes of
             the keys, the keys end to end
    digest   SHA-256 of all before it

A new file is written beside the old one, made durable, and takes its name by a rename: whatever
happens in between, that name leads to one complete snapshot.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import stat
import struct
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from wheeld.snapshot.contents import (
    FOREVER,
    PAUSED,
    TIMER,
    Clocks,
    Snapshot,
    SnapshotError,
)
from wheeld.snapshot.keys import KEYED
from wheeld.tables.registry import ANY_UID, Registry
from wheeld_core import _native, durable, runtime, trust
from wheeld_core.errors import WheelError
from wheeld_core.packing import FLAGS_CLOCK, FLAGS_PRIVATE

_NOT_REGULAR = (errno.ELOOP, errno.ENXIO, errno.EISDIR)
"""Errors of opening a symbolic link, a socket, a directory."""
FLAGS_FORM: Final = 2
"""The version of the timers' `flags` (contents.py). Files from before detached timers have none."""
MAGIC: Final = b"wheeld\0S"
FORMAT_VERSION: Final = 2
_PREFIX = struct.Struct("<8sIIQ")
_writing = threading.Lock()  # they share the name of the fresh file
_DIGEST_BYTES = 32


def path_of(state_dir: str | os.PathLike[str], name: str) -> Path:
    return Path(state_dir) / f"{name}.snapshot"


def make_directory(state_dir: str | os.PathLike[str]) -> Path:
    """Make the directory for snapshots, 0700, or check an existing one. `WheelError`: it
    cannot be made, belongs to another user, or other users may write to it or to its parent."""
    try:
        return trust.own_directory(Path(state_dir), 0o700)
    except OSError as error:
        raise WheelError(f"state_dir {state_dir}: {error.strerror or error}") from error


# -- write ---------------------------------------------------------------------------------------


def write(path: Path, snapshot: Snapshot) -> int:
    """Replace the snapshot at `path`; returns the bytes written. Blocks until it is durable.

    It is meant for a thread: its long steps release the GIL. Two writers in one process take turns,
    but the caller must ensure that the later one has the later snapshot.

    `SnapshotError`: a system error (no space, read-only, ...); the file at `path` is unchanged.
    """
    fresh = path.with_name(path.name + ".new")
    with _writing:
        try:
            written = _write_fresh(fresh, snapshot)
            durable.rename(fresh, path)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.unlink(fresh)
            raise SnapshotError(f"{path}: cannot be written: {error.strerror}") from error
    return written


def _write_fresh(fresh: Path, snapshot: Snapshot) -> int:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(fresh)  # a killed writer left it
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(fresh, flags, 0o600)
    try:
        os.fchmod(fd, 0o600)
        written = _write_parts(fd, _parts(snapshot))
        os.fsync(fd)
    finally:
        os.close(fd)
    return written


def _parts(snapshot: Snapshot) -> Iterator[memoryview]:
    header = json.dumps(_header(snapshot)).encode()
    slots = (snapshot.timers, snapshot.payloads, snapshot.slabs, snapshot.generations)
    arrays: tuple[npt.NDArray[Any], ...] = (
        *slots, snapshot.heavy, snapshot.key_sizes, snapshot.keys
    )  # fmt: skip
    body = [memoryview(np.ascontiguousarray(part)).cast("B") for part in arrays if part.size]
    size = sum(len(part) for part in body)
    yield memoryview(_PREFIX.pack(MAGIC, FORMAT_VERSION, len(header), size) + header)
    yield from body


def _write_parts(fd: int, parts: Iterator[memoryview]) -> int:
    digest = hashlib.sha256()
    written = 0
    for part in parts:
        digest.update(part)
        written += _write_all(fd, part)
    return written + _write_all(fd, memoryview(digest.digest()))


def _write_all(fd: int, data: memoryview) -> int:
    done = 0
    while done < len(data):
        done += os.write(fd, data[done:])
    return done


def _header(snapshot: Snapshot) -> dict[str, Any]:
    return {
        "name": snapshot.name,
        "clocks": vars(snapshot.clocks),
        "capacity": snapshot.capacity,
        "tick_ns": snapshot.tick_ns,
        "payload_bytes": snapshot.payload_bytes,
        "names": snapshot.names,
        "uids": snapshot.uids,
        "groups": snapshot.groups,
        "dtype": TIMER.descr,
        "flags": FLAGS_FORM,
        "counts": {
            "timers": len(snapshot.timers),
            "payloads": len(snapshot.payloads),
            "slabs": len(snapshot.slabs),
            "heavy": len(snapshot.heavy),
            "key_sizes": len(snapshot.key_sizes),
            "keys": len(snapshot.keys),
        },
        "left_out": snapshot.left_out,
        "unsettled": snapshot.unsettled,
    }


# -- read ----------------------------------------------------------------------------------------


def read(path: Path) -> Snapshot:
    """Read and check the snapshot at `path`. `FileNotFoundError`: there is none. `SnapshotError`:
    it is not a complete, unchanged snapshot of this format, or not a regular file of this user.
    `WheelError`: it cannot be read, but may be intact, so do not set it aside."""
    content = _content(path)
    if content[: len(MAGIC)] != MAGIC[: len(content)]:
        raise SnapshotError(f"{path} is not a wheeld snapshot: wrong magic number")
    if len(content) < _PREFIX.size:
        raise SnapshotError(f"{path} is truncated: {len(content)} bytes")
    _, version, header_bytes, body_bytes = _PREFIX.unpack_from(content)
    if version != FORMAT_VERSION:
        raise SnapshotError(
            f"{path} has format version {version}; this wheeld reads version {FORMAT_VERSION}"
        )
    begin = _PREFIX.size + header_bytes
    expected = begin + body_bytes + _DIGEST_BYTES
    if len(content) != expected:
        raise SnapshotError(
            f"{path} is truncated or torn: it has {len(content):,} bytes, its header says "
            f"{expected:,}"
        )
    signed, digest = memoryview(content)[:-_DIGEST_BYTES], hashlib.sha256()
    digest.update(signed)
    if digest.digest() != content[-_DIGEST_BYTES:]:
        raise SnapshotError(f"{path} is damaged: its SHA-256 does not match")
    try:
        return _parse(json.loads(content[_PREFIX.size : begin]), signed[begin:])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise SnapshotError(f"{path} has invalid contents: {error!r}") from error


def _content(path: Path) -> bytes:
    """Read the file, if it is a regular one of this user."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        with open(path, "rb", opener=lambda name, _: os.open(name, flags)) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise SnapshotError(f"{path} is not a regular file")
            if status.st_uid != os.geteuid():
                raise SnapshotError(
                    f"{path} belongs to uid {status.st_uid}, expected {os.geteuid()}: not ours"
                )
            return file.read()
    except FileNotFoundError:
        raise
    except OSError as error:
        if error.errno in _NOT_REGULAR:
            raise SnapshotError(f"{path} is not a regular file") from error
        raise WheelError(f"{path}: cannot be read: {error.strerror}") from error


def _number(of: dict[str, Any], key: str, most: int, least: int = 0) -> int:
    """An integer of the header, checked against its range."""
    value = of[key]
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{key} is {value!r:.80}, expected {least} to {most}")
    return value


def _texts(header: dict[str, Any], key: str, check: Callable[[str], object]) -> tuple[str, ...]:
    """A list of distinct names, each valid for a worker."""
    found = header[key]
    if not isinstance(found, list) or not all(isinstance(text, str) for text in found):
        raise ValueError(f"{key} are {found!r:.80}, expected a list of strings")
    for text in found:
        check(text)
    if len(set(found)) != len(found):
        raise ValueError(f"{key} are {found!r:.80}, expected no duplicates")
    return tuple(found)


def _uids(header: dict[str, Any]) -> tuple[int, ...]:
    """The user of each name; () if the file has no users."""
    found = header.get("uids", [])
    if not isinstance(found, list):
        raise ValueError(f"uids are {found!r:.80}, expected a list of numbers")
    return tuple(_number({"a uid": uid}, "a uid", ANY_UID) for uid in found)


def _clocks(header: dict[str, Any]) -> Clocks:
    found = header["clocks"]
    monotonic = _number(found, "monotonic", FOREVER)
    realtime = _number(found, "realtime", FOREVER)
    boottime = _number(found, "boottime", FOREVER)
    boot_id, virtual = found["boot_id"], found["virtual"]
    if not isinstance(boot_id, str) or not isinstance(virtual, bool):
        raise ValueError(
            f"clocks are {found!r:.80}, expected a boot id and whether they are virtual"
        )
    return Clocks(monotonic, realtime, boottime, boot_id, virtual)


def _parse(header: Any, body: memoryview) -> Snapshot:
    """Check the whole header before any of it is used: a correct digest means that the file was not
    changed, not that its writer was correct."""
    if not isinstance(header, dict) or not all(
        isinstance(header.get(key), dict) for key in ("clocks", "counts")
    ):
        raise ValueError("its header is not a table, or lacks the table clocks or counts")
    if [tuple(field) for field in header["dtype"]] != TIMER.descr:
        raise ValueError(f"its records are {header['dtype']}, expected {TIMER.descr}")
    parts = ("timers", "payloads", "slabs", "heavy", "key_sizes", "keys")
    without = {"heavy": 0, "key_sizes": 0, "keys": 0}  # in files of versions before 0.9
    counts = {part: _number({**without, **header["counts"]}, part, len(body)) for part in parts}
    slots = counts["slabs"] * _native.SLAB_SLOTS
    arrays: list[npt.NDArray[Any]] = []
    begin = 0
    for dtype, count in (
        (TIMER, counts["timers"]),
        (np.dtype("u1"), counts["payloads"]),
        (np.dtype("<u4"), counts["slabs"]),
        (np.dtype("<u4"), slots),
        (np.dtype("<u4"), counts["heavy"]),
        (np.dtype("<u2"), counts["key_sizes"]),
        (np.dtype("u1"), counts["keys"]),
    ):
        end = begin + dtype.itemsize * count
        arrays.append(np.frombuffer(body[begin:end], dtype) if count else np.empty(0, dtype))
        begin = end
    if begin != len(body):
        raise ValueError(f"its body has {len(body)} bytes, its counts say {begin}")
    timers, payloads, slabs, generations, heavy, key_sizes, keys = arrays
    if "key_sizes" not in header["counts"]:  # then the bit had another meaning
        timers = timers.copy()
        timers["flags"] &= ~KEYED
    if header.get("flags") != FLAGS_FORM:
        timers = _with_flags_of_today(timers)
    snapshot = Snapshot(
        name=runtime.check_name(header["name"]),
        clocks=_clocks(header),
        capacity=_number(header, "capacity", _native.MAX_CAPACITY),
        tick_ns=_number(header, "tick_ns", FOREVER, 1),
        payload_bytes=_number(header, "payload_bytes", 2**16 - 1),
        names=_texts(header, "names", Registry.encode_name),
        uids=_uids(header),
        groups=_texts(header, "groups", Registry.encode_group),
        timers=timers,
        payloads=payloads,
        slabs=slabs,
        generations=generations.reshape(-1, _native.SLAB_SLOTS),
        left_out=_number(header, "left_out", FOREVER),
        unsettled=_number(header, "unsettled", FOREVER),
        heavy=heavy,
        key_sizes=key_sizes,
        keys=keys,
    )
    snapshot.check()
    return snapshot


def set_aside(path: Path) -> Path:
    """Rename a file that `read` refused, so that it can be examined; returns its new path.

    The name is <name>.refused-<UTC time>; no earlier one is overwritten.
    """
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    aside = path.with_name(f"{path.name}.refused-{stamp}")
    for number in range(1, 1000):
        if not os.path.lexists(aside):
            break
        aside = path.with_name(f"{path.name}.refused-{stamp}-{number}")
    try:
        durable.rename(path, aside)
    except OSError as error:
        raise WheelError(f"{path}: cannot be renamed out of the way: {error.strerror}") from error
    return aside


def _with_flags_of_today(timers: npt.NDArray[Any]) -> npt.NDArray[Any]:
    timers, before = timers.copy(), timers["flags"]
    timers["flags"] = before & np.uint16(FLAGS_CLOCK.mask | KEYED)
    timers["flags"][FLAGS_PRIVATE.of(before) != 0] |= PAUSED  # marked so then
    return timers
