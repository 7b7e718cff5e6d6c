"""The files of a daemon's runtime directory: a lock, FIFOs, the socket and daemon.json."""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import stat
from pathlib import Path
from typing import Any

from wheeld.config.settings import Config
from wheeld.resources import vital_signs
from wheeld.resources.handover import Handover
from wheeld_core import runtime, segments, trust
from wheeld_core.control import time_namespace
from wheeld_core.errors import WheelError

log = logging.getLogger("wheeld")


class RuntimeFiles:
    """The files of one daemon. The directory is locked (flock) for as long as it lives, so a second
    daemon of the same name is refused.

    Parameters
    ----------
    config : Config
        What the daemon is started with.
    handover : Handover, optional
        What this process itself has left, before it executed the program anew.

    Attributes
    ----------
    directory : Path
        The runtime directory.
    bells_removed : bool
        FIFOs that workers have open were removed.
    """

    def __init__(self, config: Config, handover: Handover | None) -> None:
        self.config = config
        self.segment_prefix = ""
        """The prefix of its segments' names; empty: there are none."""
        self.names: dict[str, str] = {}
        self.bells_removed = False
        self.pools = config.memory_pools
        self._handover = handover
        self._files: list[Path] = []
        self._made: dict[str, tuple[int, int]] = {}
        """Device and inode of the files that are served, by name."""
        self._gid = config.gid
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

    def note(self, file_name: str) -> None:
        status = os.lstat(self.directory / file_name)
        self._made[file_name] = status.st_dev, status.st_ino

    def lost(self) -> set[str]:
        return {name for name, known in self._made.items() if self._is_now(name) != known}

    def _is_now(self, file_name: str) -> tuple[int, int] | None:
        with contextlib.suppress(OSError):
            status = os.lstat(self.directory / file_name)
            return status.st_dev, status.st_ino
        return None

    def renew(self, lost: set[str]) -> None:
        """Make the directory again if it was removed or replaced, and the FIFOs of these names.

        Raises
        ------
        OSError, WheelError
            That is not possible now.
        """
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
                f"a wheeld daemon {self.config.name!r} already runs in {self.directory}; "
                f"stop it with `wheeld stop --name {self.config.name}`"
            )
        return fd

    def _mode(self, shared: int) -> int:
        return shared if self._gid is not None else shared & 0o700

    def make_fifo(self, file_name: str, keep: bool = False) -> Path:
        """Make a FIFO in the runtime directory, replacing what an earlier daemon left.

        With `keep` one of this user stays, because live workers have it open.
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
            path.unlink()
        self.bells_removed |= keep
        os.mkfifo(path, 0o600)
        self._share(path, 0o620)  # a reader could take others' wake-ups
        self.note(file_name)
        return path

    def open_worker_fifo(self, row: int) -> int:
        """A descriptor of the doorbell of the worker in `row`, to be passed to it for reading:
        other processes may only write to the FIFO."""
        return os.open(self.directory / runtime.worker_fifo(row), trust.FIFO_FLAGS)

    def ring_worker(self, row: int) -> None:
        """Wake the worker in `row`, if there is one."""
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
        """Remove a file of the runtime directory, if it is there."""
        path = self.directory / file_name
        self._made.pop(file_name, None)
        if self.leads_here():  # else what is there is another's
            remove(path)
        if path in self._files:
            self._files.remove(path)

    def prepare_socket(self) -> Path:
        """Path of the control socket; what an earlier daemon left there is removed."""
        path = self.directory / runtime.CONTROL_SOCKET
        if (self._handover is None or self._handover.listener < 0) and self.leads_here():
            path.unlink(missing_ok=True)
        if path not in self._files:
            self._files.append(path)
        return path

    def open_socket(self) -> None:
        self._share(self.directory / runtime.CONTROL_SOCKET)
        self.note(runtime.CONTROL_SOCKET)

    def write_daemon_file(self, **facts: Any) -> None:
        """Write daemon.json whole, by rename."""
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
            "pid_namespace": vital_signs.own_pid_namespace(),
            **facts,
        }
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        descriptor = os.open(fresh, flags, 0o600)
        try:
            with open(descriptor, "w") as file:
                json.dump(content, file, indent=1)
            self._share(fresh, 0o640)
            fresh.rename(path)
            self.note(runtime.DAEMON_FILE)
        except OSError:
            remove(fresh)
            raise


def remove(path: Path) -> None:
    """Remove a file if it is there; a directory there is not ours, and stays."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        log.warning("cannot remove %s: %s", path, error.strerror)
