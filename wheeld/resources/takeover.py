"""A start takes over the segments that an earlier daemon of the same name left.

A killed daemon leaves its shared memory, and workers that keep using it. The next daemon attaches
to it, unless it is from another boot or version, incomplete, or not wanted.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import re
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NoReturn

import numpy as np

from wheeld.config.pools import Pool, difference, parse
from wheeld.resources import remains
from wheeld.resources.remains import KINDS, Use
from wheeld.snapshot.collect import collect, comp_head
from wheeld.snapshot.contents import Clocks
from wheeld.tables import sharing
from wheeld.tables.heads import SHARED, SharedHeads
from wheeld.tables.registry import RowState
from wheeld_core import _native, control, runtime, segments
from wheeld_core.control import time_namespace
from wheeld_core.errors import LayoutMismatch, WheelError
from wheeld_core.presence import STOPPING, segment_stem
from wheeld_core.units import duration_text
from wheeld_core.views import RegistryView, SlotsView, WheelView, record

log = logging.getLogger("wheeld")

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_BOOT = re.compile("[0-9a-f-]{36}")
_HOLD_TRIES, _HOLD_PAUSE = 5, 0.01
LOOK_SECONDS = 5.0
"""How often a daemon checks whether its runtime directory still leads to it."""


def new_prefix(directory: Path, name: str) -> str:
    """A prefix for the segments of a new daemon. It consists of a part made from the runtime
    directory, so that the segments are found without daemon.json, and a random part, so that it is
    unique."""
    return f"{segment_stem(directory, name)}{segments.random_part(3)}-"


def hold(prefix: str) -> int | None:
    """Lock the segments of a daemon, as its supervisor does for its lifetime; returns the
    descriptor that holds the lock, or None if another process holds it."""
    path = f"{segments.SHM_DIRECTORY}/{prefix}wheel"
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    for _ in range(_HOLD_TRIES):  # a mere check of the lock holds it for an instant only
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return fd
        time.sleep(_HOLD_PAUSE)
    os.close(fd)
    return None


def _facts(directory: Path) -> control.Message:
    """The contents of this directory's daemon.json; {} if it does not describe a daemon."""
    try:
        return remains.read_facts(directory)
    except FileNotFoundError:
        return {}
    except ValueError as error:
        log.warning(
            "%s does not describe an earlier daemon: %s", directory / runtime.DAEMON_FILE, error
        )
        return {}


def _means_another(pid: int, directory: Path) -> bool:
    """Whether that process sees another directory under this path, as in another container."""
    with contextlib.suppress(OSError):
        if os.stat(f"/proc/{pid}/ns/mnt").st_ino != os.stat("/proc/self/ns/mnt").st_ino:
            theirs = os.stat(f"/proc/{pid}/root{directory.parent}")
            return not os.path.samestat(theirs, os.stat(directory.parent))
    return False


def _refuse_held(pid: int, directory: Path, name: str) -> NoReturn:
    who = f"pid {pid}" if pid > 0 else "in another PID namespace"
    end = f"kill {pid}" if pid > 0 else "end its process"
    raise WheelError(
        f"a wheeld daemon {name!r} ({who}) already runs and holds the wheel that was made for "
        f"{directory}, although the directory was removed or replaced: it makes it again within "
        f"{LOOK_SECONDS:.0f} s; stop it with `wheeld stop --name {name}`, or `{end}`, or give "
        "another --name"
    )


def _stray(directory: Path, name: str) -> str | None:
    """The prefix of live segments that were made for this directory and have no supervisor; if
    there are several, the one used last. `WheelError`: a supervisor that lost this directory still
    holds some."""
    stem, shm, found = segment_stem(directory, name), Path(segments.SHM_DIRECTORY), dict[str, int]()
    for group in remains.groups(shm, os.getuid()):
        if group.name != name or not group.prefix.startswith(stem):
            continue
        pid = None
        with contextlib.suppress(WheelError, OSError):
            if (pid := remains.supervisor_of(shm / f"{group.prefix}wheel")) is None:
                wheel = record(_attach_own(group.prefix)["wheel"], "wheel")
                found[group.prefix] = int(wheel["heartbeat"])
        if pid is not None and not _means_another(pid, directory):
            _refuse_held(pid, directory, name)
    if not found:
        return None
    prefix = max(found, key=found.__getitem__)
    log.warning(
        "no %s names them, but these segments belong to this user: %s*", runtime.DAEMON_FILE, prefix
    )
    return prefix


def _left_prefix(directory: Path, name: str, facts: control.Message) -> str | None:
    prefix = remains.prefix_in(facts, name)
    if prefix is None or not segments.of_daemon(prefix, os.getuid()):
        return _stray(directory, name)
    wheel = Path(segments.SHM_DIRECTORY, f"{prefix}wheel")
    if (pid := remains.supervisor_of(wheel)) is not None:  # the directory is a copy of that one's
        _refuse_held(pid, directory, name)
    return prefix


def _attach(prefix: str, kinds: Iterable[str]) -> dict[str, _native.Memory]:
    return {
        kind: segments.attach(prefix + kind, KINDS[kind], writable=True, owner_uid=os.getuid())
        for kind in kinds
    }


def _boot_of(registry: _native.Memory) -> str:
    found: bytes = record(registry, "registry")["boot_id"].item()
    return found.decode(errors="replace")


def _attach_own(prefix: str) -> dict[str, _native.Memory]:
    """Open the segments that only the daemon writes, if they belong together and to this boot."""
    memories = _attach(prefix, [kind for kind in KINDS if kind not in SHARED])
    tokens = {int(record(memory, "head")["token"]) for memory in memories.values()}
    if len(tokens) != 1:
        raise segments.SegmentError("they belong to different daemons")
    boot = _boot_of(memories["registry"])
    if _BOOT.fullmatch(boot) and boot != BOOT_ID.read_text("utf-8").strip():
        raise segments.SegmentError("they are from an earlier boot")
    if int(record(memories["wheel"], "wheel")["daemon_state"]) == STOPPING:
        raise segments.SegmentError("their daemon was being stopped and did not finish")
    if not Path(segments.SHM_DIRECTORY, prefix + "slots").exists():
        raise segments.SegmentError(f"{prefix}slots is gone, with all timers")
    return memories


def _check_own(name: str, prefix: str, memories: Mapping[str, _native.Memory]) -> None:
    if (fault := _own_faults(prefix, memories)) is not None:
        raise WheelError(
            f"the last daemon {name!r} left a wheel in use that another process has overwritten: "
            f"{fault}. It stays: `wheeld fsck` shows what is left of it; start with --fresh to "
            "discard it"
        )


def _own_faults(prefix: str, memories: Mapping[str, _native.Memory]) -> str | None:
    """The words that another process has overwritten in the segments that only the daemon
    writes."""
    if faults := remains.head_faults(memories):
        return f"{prefix}{faults[0]}"
    if not _BOOT.fullmatch(boot := _boot_of(memories["registry"])):
        return f"{prefix}registry: boot id {boot!r}"
    rows = RegistryView(memories["registry"]).rows
    if len(wrong := np.flatnonzero(~np.isin(rows["state"], list(RowState)))):
        return f"{prefix}registry: row {wrong[0]} has state {rows['state'][wrong[0]]}"
    return None


def _check_apart(name: str, prefix: str, registry: _native.Memory) -> None:
    """Raise if a worker is alive in a PID namespace that this start cannot see: it would count as
    dead."""
    if living := remains.workers_apart(prefix, registry):
        theirs, own = RegistryView(registry).header["pid_ns"], remains.own_pid_namespace()
        raise WheelError(
            f"the last daemon {name!r} left a wheel in use in another PID namespace (pid:[{theirs}]"
            f", this start: pid:[{own}]), where workers, or processes that they started, still "
            f"run: {', '.join(living)}; start in that namespace (nsenter --pid, docker run --pid), "
            "or after they have ended, or with --fresh to discard it"
        )


def _is_idle(prefix: str, memories: Mapping[str, _native.Memory], slots: SlotsView) -> bool:
    """Whether nothing is pending, nothing is unread for a successor, and no worker is alive. No
    supervisor and no clock uses these segments."""
    own, registry = remains.own_pid_namespace(), RegistryView(memories["registry"])
    if slots.pending() or remains.workers_use(memories["registry"], own) == Use.ALIVE:
        return False
    there, heads = segments.of_daemon(prefix, os.getuid()), {}
    for row in range(len(registry.rows)):
        with contextlib.suppress(KeyError, WheelError, OSError):
            name = there[runtime.worker_segment(row)]
            heads[row] = comp_head(segments.attach(name, _native.KIND_WORKER, writable=False))
    wheel = WheelView(memories["wheel"])
    return not len(collect(wheel, slots, registry, Clocks.read(), heads=heads).timers)


def _attach_shared(
    prefix: str, wheel: _native.Memory, told: object, wanted: list[Pool]
) -> tuple[dict[str, _native.Memory], SharedHeads]:
    """Open the segments that workers write, after repairing the parts that workers must not
    change."""
    heads = SharedHeads(wheel, _pools_of(prefix, wheel, told, wanted))
    heads.mend({kind: prefix + kind for kind in SHARED})
    memories = _attach(prefix, SHARED)
    workers, capacity = _shape(wheel)
    if faults := sharing.faults(workers, capacity, memories):
        raise segments.SegmentError("; ".join(faults))
    return memories, heads


def _shape(wheel: _native.Memory) -> tuple[int, int]:
    header = WheelView(wheel).header
    return int(header["max_workers"]), int(header["capacity"])


def _pools_of(prefix: str, wheel: _native.Memory, told: object, wanted: list[Pool]) -> list[Pool]:
    """The pools of a daemon: as `told` in its daemon.json. Daemons of earlier versions did not
    write them there. Then they come from the segment, which workers can write, if its contents are
    plausible; otherwise from this start's options, if the segment has exactly their size."""
    if isinstance(told, list) and all(isinstance(text, str) for text in told):
        return parse(told)
    workers, capacity = _shape(wheel)
    with contextlib.suppress(WheelError, OSError, ValueError):
        memories = _attach(prefix, sharing.KINDS)
        if not sharing.faults(workers, capacity, memories):
            return parse(pool.text() for pool in sharing.left_pools(memories["pools"]))
    size = sharing.sizes(workers, capacity, len(wanted))["pools"]
    if os.stat(f"{segments.SHM_DIRECTORY}/{prefix}pools").st_size == size:
        return wanted
    raise segments.SegmentError(
        f"a worker has overwritten the header of {prefix}pools, so the pools are unknown: start "
        "with the same --pool options as before"
    )


def _discard(prefix: str, why: str) -> None:
    log.warning(
        "removing what an earlier daemon left (%d segments %s*): %s",
        sum(name.startswith(prefix) for name in os.listdir(segments.SHM_DIRECTORY)),
        prefix,
        why,
    )
    with contextlib.suppress(
        WheelError, OSError, ValueError
    ):  # tells processes that still map it that the daemon has ended
        wheel = segments.attach(
            prefix + "wheel", _native.KIND_WHEEL, writable=True, owner_uid=os.getuid()
        )
        _native.set_daemon_state(wheel, STOPPING)
    segments.unlink_all(prefix)


_OPTIONS: Mapping[str, str] = {
    "tick_ns": "--tick", "wheel_bits": "--wheel-size", "heap_chunks": "--payload-heap"
}  # fmt: skip


def _option(key: str, value: int) -> str:
    option = _OPTIONS.get(key, "--" + key.replace("_", "-"))
    return f"{option} {_value(key, value)}"


def _value(key: str, value: int) -> str:
    if key == "tick_ns":
        return duration_text(value)
    if key == "virtual_clock":
        return "on" if value else "off"
    if key == "heap_chunks":
        return str(value * _native.CHUNK_BYTES)
    return str(1 << value if key == "wheel_bits" else value)


def take_over(
    directory: Path,
    name: str,
    wanted: Mapping[str, int],
    pools: list[Pool],
    fresh: bool,
    restores: bool = False,
) -> tuple[str, dict[str, _native.Memory], SharedHeads] | None:
    """Map the live segments of the last daemon of this directory, which the caller has locked;
    returns them with their fixed contents, or None if there are none, or if they are discarded as
    `fresh` says. `restores`: the pending timers can be restored from the last snapshot, if it
    contains all of them.

    `WheelError`: a live supervisor has them; their wheel differs from `wanted`; they were left on
    purpose and have another layout; they have live workers in a PID namespace that this start
    cannot see; or workers have damaged them beyond repair. The message says which, and what to do.
    """
    facts = _facts(directory)
    prefix = _left_prefix(directory, name, facts)
    if prefix is None:
        return None
    if fresh:
        _discard(prefix, "--fresh")
        return None
    try:
        memories = _attach_own(prefix)
    except LayoutMismatch as error:
        kept = facts.get("kept")
        if isinstance(kept, dict) and not (kept.get("snapshot") and restores):
            raise WheelError(
                f"the last daemon {name!r} left its memory on purpose (stop --keep), and {error}: "
                "start the version that made it to continue, or this one with --fresh to discard "
                "it; with --state-dir for both, the timers go through a snapshot"
            ) from None
        _discard(prefix, f"another version: {error}")
        return None
    except (WheelError, OSError) as error:
        _discard(prefix, str(error))
        return None
    _check_own(name, prefix, memories)
    _check_apart(name, prefix, memories["registry"])
    try:
        shared, heads = _attach_shared(prefix, memories["wheel"], facts.get("pools"), pools)
    except (WheelError, OSError, ValueError) as error:
        raise WheelError(
            f"the last daemon {name!r} left a wheel in use, but this start cannot take over its "
            f"memory: {error}. It stays, with all timers: correct that and start again, or start "
            "with --fresh to discard it"
        ) from error
    memories |= shared
    header = WheelView(memories["wheel"]).header
    differ = [
        f"{_option(key, int(header[key]))} (this start: {_value(key, value)})"
        for key, value in wanted.items()
        if int(header[key]) != value
    ]
    differ += difference(sharing.left_pools(memories["pools"]), pools)
    if differ:
        slots = SlotsView(memories["slots"], int(header["capacity"]), int(header["payload_bytes"]))
        if _is_idle(prefix, memories, slots):
            _discard(prefix, f"nothing is pending there, and it was made with {', '.join(differ)}")
            return None
        raise WheelError(
            f"the last daemon {name!r} left a wheel in use with {slots.pending()} pending "
            f"timers, made with {', '.join(differ)}: start with the same options to continue with "
            "it, or with --fresh to discard it"
        )
    apart = time_namespace.difference(facts.get("time"), time_namespace.of_this_process())
    if apart is not None:
        raise WheelError(
            f"the last daemon {name!r} left a wheel in use, and this start is in another time "
            f"namespace ({apart}): start with the same time offsets to continue with it, or with "
            "--fresh to discard it"
        )
    return prefix, memories, heads
