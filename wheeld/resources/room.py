"""Checks, before anything is made, whether this machine has room for a daemon.

A shortage would show later: as the OOM killer, which leaves no message, or as a last snapshot
without space. A daemon that takes over live memory starts in spite of a shortage, because timers
wait in that memory.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from wheeld.config.settings import Config
from wheeld.processes import cgroups
from wheeld.resources import trace_segment
from wheeld.snapshot import file as snapshot_file
from wheeld.tables import sharing
from wheeld_core import _native
from wheeld_core.errors import WheelError
from wheeld_core.units import mebibytes

log = logging.getLogger("wheeld")

OWN_BYTES: Final = 48 << 20
"""Bytes that the supervisor and its clock need for themselves."""
NEARLY_FULL: Final = 0.8
PROBE_BYTES: Final = 1 << 16


def segment_sizes(config: Config) -> Mapping[str, Sequence[int]]:
    """Bytes of the segments that a daemon makes at its start, by the option that sets them."""
    sizes = _native.geometry(**config.native())
    shared = sharing.sizes(config.max_workers, config.all_slots, len(config.pools))
    for kind in shared:
        parts = sharing.holes(kind, config.max_workers, config.all_slots)
        shared[kind] -= sum(size for _, size in parts)
    return {
        "capacity": [sizes["wheel_bytes"], sizes["heap_off"]],
        "payload_heap": [config.first_chunks * _native.CHUNK_BYTES],
        "max_workers": [sizes["registry_bytes"], *shared.values()],
        "trace_ring": [trace_segment.size(config)] if config.trace is not None else [],
    }


def bytes_of_later(config: Config) -> int:
    parts = _native.spans(config.first_slabs, config.shared_slabs, **config.native())
    return sum(size for part in parts for _, size in part)


def largest_option(sizes: Mapping[str, Sequence[int]]) -> str:
    return max(sizes, key=lambda option: sum(sizes[option]))


def check(
    config: Config,
    over_living: bool,
    subject: Path = Path("/proc/self"),
    groups: Path = cgroups.ROOT,
) -> None:
    """Check the state directory, and the memory limit of the process `subject` (/proc/PID) below
    the control groups' root `groups`. A daemon that takes over live memory (`over_living`) only
    logs shortages.

    `WheelError`: the daemon could not run, or could not take its snapshots; the message says what
    is missing.
    """
    for fault in _faults(config, subject, groups):
        if not over_living:
            raise WheelError(fault)
        log.warning("%s", fault)


def _faults(config: Config, subject: Path, groups: Path) -> Iterator[str]:
    try:
        _try_state_directory(config)
    except WheelError as error:
        yield str(error)
    if (limit := cgroups.memory_limit(subject, groups)) is not None:
        yield from _too_little_memory(config, *limit)


def _try_state_directory(config: Config) -> None:
    """Write a file in the way of a snapshot, and remove it again."""
    if config.state_dir is None:
        return
    directory = snapshot_file.make_directory(config.state_dir)
    probe = snapshot_file.path_of(directory, config.name).with_suffix(".probe")
    try:
        probe.unlink(missing_ok=True)
        descriptor = os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            if os.write(descriptor, bytes(PROBE_BYTES)) < PROBE_BYTES:
                os.write(descriptor, bytes(PROBE_BYTES))  # says why
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise WheelError(
            f"state_dir {directory}: not writable ({error.strerror}), so snapshots would fail: "
            "make room, or start without --state-dir"
        ) from error
    finally:
        with contextlib.suppress(OSError):
            probe.unlink(missing_ok=True)


def _too_little_memory(config: Config, limit: int, file: Path) -> Iterator[str]:
    """Yields an error if the memory made at the start does not fit; warns if the memory of all
    workers might not."""
    sizes = segment_sizes(config)
    base = sum(map(sum, sizes.values()))
    workers = _native.geometry(**config.native())["worker_bytes"] * config.max_workers
    allowed = f"the memory control group allows {mebibytes(limit)} ({file})"
    option = "--" + largest_option(sizes).replace("_", "-")
    if limit < base + OWN_BYTES:
        yield (
            f"{allowed}, this daemon needs {mebibytes(base + OWN_BYTES)}, "
            f"{mebibytes(base)} of them shared: it would be killed as out of memory. Raise the "
            f"limit (memory.max, MemoryMax= in the unit, `docker run --memory`), or lower {option}"
        )
    elif limit * NEARLY_FULL < base + workers + OWN_BYTES:
        log.warning(
            "%s, and this daemon may need up to %s with all workers: it may be killed as "
            "out of memory; raise the limit, or lower %s",
            allowed,
            mebibytes(base + workers + OWN_BYTES),
            option,
        )
