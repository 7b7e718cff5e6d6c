"""What a daemon puts into the system, and takes out again: segments, FIFOs, files.

Everything made here is written down in the object at once, so that `close` removes it whatever
happened in between.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import mmap
import os
import secrets
from pathlib import Path
from typing import Any

from wheeld.config import Config
from wheeld_core import _native, runtime, segments
from wheeld_core.errors import WheelError
from wheeld_core.views import SlotsView, WheelView

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class Resources:
    """The runtime directory, the shared segments and the FIFOs of one daemon.

    Only the supervisor makes one. The directory is locked (flock) for as long as it lives, so a
    second daemon of the same name is refused.
    """

    def __init__(self, config: Config) -> None:
        self.config = config
        self.names: dict[str, str] = {}
        self.segment_prefix = f"wheeld-{config.name}-{secrets.token_hex(6)}-"
        self._files: list[Path] = []
        self.directory = runtime.create(config.name, config.runtime_dir)
        self._lock = self._lock_directory()
        try:
            self._token = secrets.randbits(63)
            self._make_segments()
            self.make_fifo(runtime.CLOCK_FIFO)
        except BaseException:
            self.close()
            raise

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
                f"a wheeld daemon {self.config.name!r} runs already in {self.directory}; "
                f"stop it with `wheeld stop --name {self.config.name}`"
            )
        return fd

    def _make_segments(self) -> None:
        native = self.config.native()
        sizes = _native.geometry(**native)
        memories: dict[str, mmap.mmap] = {}
        for kind in ("wheel", "slots", "registry"):
            memories[kind] = self.make_segment(kind, sizes[f"{kind}_bytes"])
        origin = self.config.virtual_start if self.config.virtual_clock else _native.read_clock()
        _native.create(
            memories["wheel"],
            memories["slots"],
            memories["registry"],
            BOOT_ID.read_text().strip(),
            **native,
            origin_ns=origin,
            token=self._token,
        )
        self.worker_bytes = sizes["worker_bytes"]
        self.memories = memories
        self.wheel = WheelView(memories["wheel"])
        self.slots = SlotsView(memories["slots"], self.config.slots, self.config.payload_room)

    def make_segment(self, kind: str, size: int) -> mmap.mmap:
        """Make the segment called `kind`; its name goes to `names`."""
        name = self.segment_prefix + kind
        memory = segments.create(name, size)
        self.names[kind] = name
        return memory

    def drop_segment(self, kind: str) -> None:
        """Unlink the segment called `kind`, if there is one."""
        name = self.names.pop(kind, None)
        if name is not None:
            segments.unlink(name)

    def make_fifo(self, file_name: str) -> Path:
        """Make a FIFO in the runtime directory, in place of one that an earlier daemon left."""
        path = self.directory / file_name
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
        os.mkfifo(path, 0o600)
        os.chmod(path, 0o600)
        self._files.append(path)
        return path

    def drop_file(self, file_name: str) -> None:
        """Remove a file of the runtime directory, if it is there."""
        path = self.directory / file_name
        path.unlink(missing_ok=True)
        if path in self._files:
            self._files.remove(path)

    def socket_path(self) -> Path:
        """Where the control socket goes; what an earlier daemon left there is removed."""
        path = self.directory / runtime.CONTROL_SOCKET
        path.unlink(missing_ok=True)
        self._files.append(path)
        return path

    def write_daemon_file(self, **facts: Any) -> None:
        """Write daemon.json whole, by rename."""
        path = self.directory / runtime.DAEMON_FILE
        fresh = path.with_suffix(".new")
        content = {
            "name": self.config.name,
            "segment_prefix": self.segment_prefix,
            "segments": self.names,
            **facts,
        }
        with open(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
            json.dump(content, file, indent=1)
        fresh.rename(path)
        self._files.append(path)

    def shared_bytes(self) -> int:
        """Bytes of shared memory reserved now."""
        total = 0
        for name in self.names.values():
            with contextlib.suppress(FileNotFoundError):
                total += os.stat(f"{segments.SHM_DIRECTORY}/{name}").st_size
        return total

    def close(self) -> None:
        """Remove everything; the directory too, where we may."""
        for kind in list(self.names):
            self.drop_segment(kind)
        for path in self._files:
            path.unlink(missing_ok=True)
        self._files.clear()
        with contextlib.suppress(OSError):
            self.directory.rmdir()
        os.close(self._lock)
