"""The checks of `wheeld doctor` that need no daemon: the machine, its limits, its settings.

Each check is a function of values and paths, so that a test can pass another directory tree. Checks
change nothing.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from wheeld.processes import descriptors
from wheeld.processes.cgroups import chain, memory_limit as memory_limit_of, read
from wheeld.resources.remains import INITIAL_PID_NAMESPACE
from wheeld_core.units import mebibytes

SLOW_CLOCKS = ("hpet", "acpi_pm", "jiffies", "refined-jiffies", "pit")
FIRST_USER_ID = 1000
MAX_SOCKET_PATH = 107


@dataclass(frozen=True)
class Finding:
    """One check's result: status ok, note, warning or failure."""

    name: str
    status: str
    found: str
    expected: str = ""
    advice: str = ""


def ok(name: str, found: str) -> Finding:
    return Finding(name, "ok", found)


# -- memory ----------------------------------------------------------------------------------------


def shm_room(
    total: int, free: int, base: int, later: int, running: bool, lower: str = "capacity"
) -> Finding:
    """Check for room for `base` bytes, which a start reserves unless the daemon is `running`, and
    for the `later` bytes of all slots and workers. `lower` is the option that determines most of
    them."""
    name, found = "shm room", f"/dev/shm has {mebibytes(free)} free of {mebibytes(total)}"
    advice = (
        f"lower {lower}, or enlarge it: mount -o remount,size=... /dev/shm; of a container: "
        "`docker run --shm-size=...`"
    )
    if not running and free < base:
        return Finding(name, "failure", found, f"{mebibytes(base)} for a start", advice)
    if free < later + (0 if running else base):
        expected = f"{mebibytes(later)} for all slots and workers"
        expected += "" if running else f", {mebibytes(base)} more for a start"
        return Finding(name, "warning", found, expected, advice)
    return ok(
        name,
        f"{found}; a start takes {mebibytes(base)}, all slots and workers {mebibytes(later)} more",
    )


def shm_mount(mounts: str) -> Finding:
    """Check that /dev/shm is a writable tmpfs. `mounts` is the text of /proc/mounts."""
    name = "shm mount"
    lines = [line.split() for line in mounts.splitlines()]
    mounted = [line for line in lines if len(line) > 3 and line[1] == "/dev/shm"]
    if not mounted:
        return Finding(
            name, "failure", "/dev/shm is not a mount", "a tmpfs", "mount -t tmpfs tmpfs /dev/shm"
        )
    _, _, kind, options, *_ = mounted[-1]  # the last one covers the others
    if "ro" in options.split(","):
        advice = "mount -o remount,rw /dev/shm"
        return Finding(name, "failure", f"read-only ({options})", "read-write", advice)
    if kind != "tmpfs":
        advice = "timers in files on a disk are late whenever it writes: mount a tmpfs there"
        return Finding(name, "warning", f"it is {kind}", "tmpfs", advice)
    return ok(name, f"tmpfs, {options}")


def memory_limit(subject: Path, cgroups: Path, needed: int, lower: str = "capacity") -> Finding:
    """Check that the memory cgroup, which shared memory counts towards, allows the wheel."""
    name = "memory limit"
    if (lowest := memory_limit_of(subject, cgroups)) is None:
        return ok(name, "none")
    limit, where = lowest
    found = f"{mebibytes(limit)} ({where})"
    if limit < 2 * needed:
        status = "failure" if limit < needed else "warning"
        expected = f"well over {mebibytes(needed)}, the most that wheel and workers can take"
        return Finding(name, status, found, expected, f"raise the limit, or lower {lower}")
    return ok(name, found)


# -- limits of a process ---------------------------------------------------------------------------


def soft_limit(subject: Path, name: str) -> int:
    match = re.search(rf"^{name} +(\d+|unlimited)", read(subject / "limits"), re.MULTILINE)
    return int(match[1]) if match and match[1] != "unlimited" else -1


def open_files(soft: int, max_workers: int) -> Finding:
    """Check that the daemon may open a connection, a pidfd and a FIFO for each worker."""
    name, needed = "open files", descriptors.needed(max_workers)
    found = f"RLIMIT_NOFILE {soft:,}" if soft >= 0 else "RLIMIT_NOFILE unlimited"
    if 0 <= soft < needed:
        advice = "ulimit -n, or LimitNOFILE= in the unit; or lower max_workers"
        return Finding(name, "warning", found, f"{needed:,} for {max_workers:,} workers", advice)
    return ok(name, found)


def locked_memory(soft: int, needed: int) -> Finding:
    """Check that the clock may lock the wheel into memory, on a machine where swapping would make
    it late."""
    name = "locked memory"
    found = f"RLIMIT_MEMLOCK {mebibytes(soft)}" if soft >= 0 else "RLIMIT_MEMLOCK unlimited"
    if 0 <= soft < needed:
        advice = "on a machine that swaps: LimitMEMLOCK=infinity in the unit, or ulimit -l"
        return Finding(name, "note", found, f"{mebibytes(needed)}, to lock the wheel", advice)
    return ok(name, found)


def file_size(soft: int, largest: int) -> Finding:
    """Check that a process may make a file as large as the largest segment."""
    name = "file size"
    found = f"RLIMIT_FSIZE {mebibytes(soft)}" if soft >= 0 else "RLIMIT_FSIZE unlimited"
    if 0 <= soft < largest:
        return Finding(
            name,
            "failure",
            found,
            f"{mebibytes(largest)}, the largest segment",
            "ulimit -f unlimited",
        )
    return ok(name, found)


# -- time and processors ---------------------------------------------------------------------------


def clock_source(system: Path) -> Finding:
    """Check that reading the time takes nanoseconds."""
    name = "clock source"
    folder = system / "devices/system/clocksource/clocksource0"
    current = read(folder / "current_clocksource")
    available = read(folder / "available_clocksource")
    if not current:
        return Finding(name, "note", "unknown", "tsc or the like", f"see {folder}")
    if current in SLOW_CLOCKS:
        return Finding(
            name, "warning", f"{current} (available: {available})",
            "tsc, kvm-clock, arch_sys_counter or the like",
            "each read of the clock costs a microsecond or more; boot with tsc=reliable if this "
            "machine's TSC can be trusted (`dmesg | grep -i tsc`)",
        )  # fmt: skip
    return ok(name, current)


def timer_resolution(seconds: float) -> Finding:
    """Check that the kernel has high-resolution timers. `seconds` is clock_getres."""
    name, found = "timer resolution", f"{seconds * 1e9:,.0f} ns"
    if seconds > 1e-6:
        advice = "boot without highres=off and nohz=off; CONFIG_HIGH_RES_TIMERS=y"
        return Finding(name, "warning", found, "1 ns: high-resolution timers", advice)
    return ok(name, found)


def processors(usable: int, subject: Path, cgroups: Path) -> Finding:
    """Check that the clock can run whenever it needs to. A CPU quota stops it for the rest of a
    period."""
    name, quota = "processors", _cpu_quota(subject, cgroups)
    found = f"{usable} usable" + (f", quota of {quota:g}" if quota is not None else "")
    if quota is not None and quota < 1:
        advice = "raise the CPU quota of this cgroup: a throttled clock is late by up to a period"
        return Finding(name, "warning", found, "a quota of one CPU at least", advice)
    if usable < 2:
        advice = "timers are late while others use the only CPU; consider CPUSchedulingPolicy=fifo"
        return Finding(name, "note", found, "two or more", advice)
    return ok(name, found)


def _cpu_quota(subject: Path, cgroups: Path) -> float | None:
    """The smallest CPU quota that applies to that process, in CPUs."""
    quotas = []
    for directory in chain(subject, cgroups, "cpu"):
        words = read(directory / "cpu.max").split()
        if not words:
            words = [read(directory / "cpu.cfs_quota_us"), read(directory / "cpu.cfs_period_us")]
        if len(words) == 2 and words[0].isdigit() and words[1].isdigit() and int(words[1]):
            quotas.append(int(words[0]) / int(words[1]))
    return min(quotas, default=None)


def kernel(release: str, has_pidfd: bool) -> Finding:
    """Check that the kernel has pidfd_open (5.3) and allows it."""
    name, match = "kernel", re.match(r"(\d+)\.(\d+)", release)
    version = (int(match[1]), int(match[2])) if match else (0, 0)
    if version < (5, 3):
        return Finding(name, "failure", release, "5.3 or later", "wheeld watches workers by pidfd")
    if not has_pidfd:
        return Finding(
            name, "failure", f"{release}, but pidfd_open is refused", "pidfd_open to be allowed",
            "a seccomp filter (an old container runtime?) forbids it: update or relax that",
        )  # fmt: skip
    return ok(name, release)


def pid_namespace(subject: Path) -> Finding:
    """Check that workers see the same process ids as the daemon."""
    name = "pid namespace"
    try:
        own = os.stat(subject / "ns/pid").st_ino
    except OSError:
        return Finding(name, "note", "unknown", "the host's", f"see {subject / 'ns/pid'}")
    if own == INITIAL_PID_NAMESPACE:
        return ok(name, "the host's")
    return Finding(
        name, "note", f"a separate one ({own}): a container?", "the host's",
        "workers must run in this PID namespace too, or in one below it, with this /dev/shm and "
        "this runtime directory",
    )  # fmt: skip


# -- directories -----------------------------------------------------------------------------------


def runtime_directory(bases: Sequence[Path], name: str, uid: int) -> Finding:
    """Check that the runtime directory can be made in one of the usual places."""
    problems = []
    for base in bases:
        problem = _no_runtime_directory(base, name, uid)
        if problem is None:
            if base == Path(f"/tmp/wheeld-{uid}"):
                advice = "set XDG_RUNTIME_DIR or WHEELD_RUNTIME_DIR, or use --runtime-dir"
                return Finding("runtime directory", "note", str(base / name), "not in /tmp", advice)
            return ok("runtime directory", str(base / name))
        problems.append(f"{base}: {problem}")
    return Finding(
        "runtime directory", "failure", "; ".join(problems), "a private directory with a short "
        "enough path",
        "set WHEELD_RUNTIME_DIR, or use --runtime-dir",
    )  # fmt: skip


def _no_runtime_directory(base: Path, name: str, uid: int) -> str | None:
    """Why <base>/<name> cannot be a runtime directory; None: it can."""
    length = len(os.fsencode(base / name / "control.sock"))
    if length > MAX_SOCKET_PATH:
        return f"the socket's path has {length} bytes, {MAX_SOCKET_PATH} fit"
    directory = base / name
    for path in (directory, base, base.parent):
        try:
            status = path.lstat()
        except FileNotFoundError:
            continue
        except OSError as error:
            return str(error.strerror)
        if not stat.S_ISDIR(status.st_mode):
            return f"{path} is not a directory"
        if path == directory and (status.st_uid != uid or status.st_mode & 0o027):
            mode = stat.S_IMODE(status.st_mode)
            return (
                f"{path} belongs to uid {status.st_uid}, mode {mode:04o}: not private to uid {uid}"
            )
        return None if os.access(path, os.W_OK | os.X_OK) else f"{path} is not writable"
    return "its parent does not exist"


def worst(findings: Iterable[Finding]) -> str:
    order = ("ok", "note", "warning", "failure")
    return max((finding.status for finding in findings), key=order.index, default="ok")
