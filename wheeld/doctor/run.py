"""`wheeld doctor`: checks whether this machine is fit for timers, and the daemon healthy."""

from __future__ import annotations

import os
import pwd
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from wheeld.config import settings as configuration
from wheeld.config.settings import Config
from wheeld.doctor import (
    client as doctor_client,
    jobs as doctor_jobs,
    leftovers as doctor_leftovers,
    live as doctor_live,
    machine as checks,
    pools as doctor_pools,
    shared as doctor_shared,
    systemd as doctor_systemd,
    trace as doctor_trace,
)
from wheeld.doctor.machine import Finding
from wheeld.processes.cgroups import read
from wheeld.resources import remains, room as space
from wheeld.resources.remains import DaemonMemory, Memories
from wheeld.tables import sharing
from wheeld_core import _native, runtime, segments
from wheeld_core.errors import DaemonNotRunning, WheelError
from wheeld_core.views import WheelView

ANSWER_SECONDS = 2.0


@dataclass(frozen=True)
class Host:
    """The places to look at; tests pass other trees."""

    root: Path = Path("/")
    shm: Path = Path(segments.SHM_DIRECTORY)

    @property
    def proc(self) -> Path:
        return self.root / "proc"


@dataclass
class Diagnosis:
    name: str
    directory: str | None
    findings: list[Finding]

    def bad(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.status in ("warning", "failure")]

    def title(self) -> str:
        return f"{self.name}: " + (self.directory or "not running; machine checks only")

    def summary(self) -> str:
        parts = []
        for status in ("failure", "warning", "note"):
            names = [finding.name for finding in self.findings if finding.status == status]
            if names:
                parts.append(f"{len(names)} {status}{'s' * (len(names) > 1)}: {', '.join(names)}")
        return f"{self.name}: {'; '.join(parts) or 'all well'} ({len(self.findings)} checks)"

    def as_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "directory": self.directory,
            "status": checks.worst(self.findings),
            "summary": self.summary(),
            "findings": [asdict(finding) for finding in self.findings],
        }


def run(
    name: str = "default",
    runtime_dir: Path | None = None,
    config: Path | None = None,
    host: Host | None = None,
) -> Diagnosis:
    """Check the machine, and the daemon if there is one.

    `ConfigError`: the configuration is wrong, so the daemon cannot be compared with it.
    `PermissionError`: that daemon runs as another user."""
    host = host or Host()
    if "/" in name:
        directory = Path(name)
        name, runtime_dir = directory.name, directory.parent
    given = {"name": name, "runtime_dir": None if runtime_dir is None else str(runtime_dir)}
    loaded = configuration.load(given, config)
    patient = _patient(name, runtime_dir)
    subject = host.proc / "self"
    if patient is not None and patient.daemon.status is not None:
        loaded = _as_it_runs(loaded, patient)
    if patient is not None and patient.is_seen():
        subject = host.proc / str(patient.pid)
    findings = [*preflight(loaded, host, subject)]
    if patient is not None:
        findings += live(patient, host)
    return Diagnosis(loaded.name, str(patient.daemon.directory) if patient else None, findings)


def run_for_client(name: str = "default", runtime_dir: Path | None = None) -> Diagnosis:
    """Check why this process can, or cannot, be a worker of the daemon."""
    findings = list(doctor_client.checks(name, runtime_dir))
    return Diagnosis(name, "this process as its worker", findings)


@dataclass
class _Patient:
    """A daemon, alive or dead, and its memory."""

    daemon: DaemonMemory
    faults: list[str]
    memories: Memories | None

    @property
    def pid(self) -> int | None:
        return None if self.daemon.status is None else int(self.daemon.status["pid"])

    def is_seen(self) -> bool:
        theirs = (self.daemon.status or {}).get("pid_namespace")
        return self.pid is not None and theirs == remains.own_pid_namespace()


def _patient(name: str, runtime_dir: Path | None) -> _Patient | None:
    """The daemon; None if there is no trace of it."""
    try:
        daemon = DaemonMemory(remains.find(name, runtime_dir), ANSWER_SECONDS)
    except DaemonNotRunning:
        return None
    try:
        faults = daemon.headers()
    except WheelError as error:
        return _Patient(daemon, [str(error)], None)
    return _Patient(daemon, faults, daemon.memories())


def _as_it_runs(config: Config, patient: _Patient) -> Config:
    """The configuration, with the sizes of the running daemon."""
    if patient.memories is None:
        return config
    header = WheelView(patient.memories.wheel).header
    trace = (patient.daemon.status or {}).get("trace")
    return replace(
        config,
        capacity=int(header["capacity"]),
        max_workers=int(header["max_workers"]),
        wheel_size=1 << int(header["wheel_bits"]),
        payload_bytes=int(header["payload_bytes"]),
        payload_heap=str(int(header["heap_chunks"]) * _native.CHUNK_BYTES),
        max_payload=str(int(header["max_payload"])),
        pools=tuple(pool.text() for pool in sharing.left_pools(patient.memories.pools)),
        trace=trace["directory"] if trace else None,
        trace_ring=trace["ring"] if trace else config.trace_ring,
    )


def preflight(config: Config, host: Host, subject: Path) -> Iterator[Finding]:
    """The checks on the machine. `subject` is the daemon's /proc/PID, or /proc/self."""
    running = subject.name != "self"
    parts = space.segment_sizes(config)
    lower = space.largest_option(parts)
    base = [size for part in parts.values() for size in part]
    worker = _native.geometry(**config.native())["worker_bytes"]
    workers = worker * config.max_workers
    room, cgroups = os.statvfs(host.shm), host.root / "sys/fs/cgroup"
    total, free = room.f_blocks * room.f_frsize, room.f_bavail * room.f_frsize
    later = space.bytes_of_later(config)
    yield checks.shm_room(total, free, sum(base) - later, workers + later, running, lower)
    yield checks.shm_mount(read(host.proc / "mounts"))
    yield checks.memory_limit(subject, cgroups, sum(base) + workers, lower)
    largest = max(*base, worker)
    yield checks.file_size(checks.soft_limit(subject, "Max file size"), largest)
    yield checks.locked_memory(checks.soft_limit(subject, "Max locked memory"), sum(base))
    yield checks.open_files(checks.soft_limit(subject, "Max open files"), config.max_workers)
    yield checks.clock_source(host.root / "sys")
    yield checks.timer_resolution(time.clock_getres(time.CLOCK_MONOTONIC))
    usable = os.sched_getaffinity(int(subject.name) if running else 0)
    yield checks.processors(len(usable), subject, cgroups)
    yield checks.kernel(os.uname().release, _has_pidfd())
    yield checks.pid_namespace(subject)
    yield doctor_systemd.remove_ipc(host.root, os.getuid(), _user(os.getuid()))
    unit = doctor_systemd.unit_of(read(subject / "cgroup")) if running else None
    yield doctor_systemd.unit_settings(host.root, unit, config.max_workers)
    bases = [Path(config.runtime_dir)] if config.runtime_dir else runtime.base_directories()
    yield checks.runtime_directory(bases, config.name, os.getuid())
    boot = read(host.proc / "sys/kernel/random/boot_id")
    yield doctor_leftovers.segments(
        host.shm,
        host.proc,
        boot,
        os.getuid(),
        wanted=config.name,
    )
    yield doctor_leftovers.directories(
        bases,
        answers,
        lambda directory: doctor_leftovers.use_of_directory(directory, host.shm),
        config.name,
    )


def answers(directory: Path) -> bool:
    try:
        return remains.status_of(directory, ANSWER_SECONDS) is not None
    except OSError:
        return False


def live(patient: _Patient, host: Host) -> Iterator[Finding]:
    daemon = patient.daemon
    if daemon.status is None:
        yield Finding(
            "daemon", "failure", f"none answers in {daemon.directory}", "one that answers",
            f"`wheeld start --name {daemon.directory.name}` takes over what it left; "
            "`wheeld fsck` checks that",
        )  # fmt: skip
        return
    yield checks.ok("daemon", f"pid {daemon.status['pid']} answers in {daemon.directory}")
    if patient.faults or patient.memories is None:
        yield Finding(
            "segments", "failure", "; ".join(patient.faults), "undamaged segments that belong to "
            "this daemon",
            "see `wheeld fsck`; restart the daemon with --fresh",
        )  # fmt: skip
    if not patient.is_seen():
        yield Finding(
            "processes", "note", f"pid {patient.pid} is in another PID namespace",
            "the daemon's own",
            "its processes cannot be seen from here: run this in its PID namespace, or from one "
            "above it with `nsenter --target PID --pid --mount`",
        )  # fmt: skip
    elif patient.memories is not None:
        observed = doctor_live.gather(daemon.status, patient.memories, daemon.prefix, host.proc)
        for check in doctor_live.CHECKS:
            yield check(observed)
        if observed.pools:
            for look in doctor_pools.CHECKS:
                yield look(observed.pools)
        if observed.directory is not None:
            for view in doctor_shared.CHECKS:
                yield view(observed.directory)
        if observed.queues:
            jobs = doctor_jobs.gather(observed.queues, observed.wall_ns, str(daemon.directory))
            for find in doctor_jobs.CHECKS:
                yield find(jobs)
    if daemon.status.get("trace") is not None:
        for judge in doctor_trace.CHECKS:
            yield judge(daemon.status["trace"])


def _has_pidfd() -> bool:
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError:
        return False
    return True


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
