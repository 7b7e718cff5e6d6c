"""Starts a daemon for `connect(start="if-needed")`, once for all processes of this user.

The lock on the directory that holds the runtime directories lets one process at a time start a
daemon there; the kernel frees it when that process dies. It does not prevent two daemons of one
name: the daemon's own lock on its runtime directory does.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import subprocess
import sys
from pathlib import Path
from typing import Final

from wheeld_core import runtime, trust
from wheeld_core.errors import DaemonNotRunning, WheelError

IDLE_EXIT: Final = "5m"
"""How long such a daemon runs unused, unless $WHEELD_IDLE_EXIT says otherwise."""
MOST_SAID: Final = 65_536
"""Bytes of the last messages of a daemon that did not start."""
_FOREIGN: Final = ("NOTIFY_SOCKET", "WATCHDOG_", "LISTEN_")
"""Prefixes of variables that the service manager sets for this process alone."""
_DETACHED: Final = '"$@" &'
"""The daemon is no child of this process, which could not wait for it."""


class Starter:
    """Starts the daemon `name`. Call `step` each time no daemon was found, and `close` at the end;
    the daemon stays."""

    def __init__(self, name: str, runtime_dir: str | os.PathLike[str] | None) -> None:
        self._name, self._runtime_dir = name, runtime_dir
        if "/" in name:
            self._name, self._runtime_dir = Path(name).name, Path(name).parent
        self._directory: Path | None = None
        self._lock = -1
        self._output = -1
        self._said = b""

    def step(self) -> None:
        """Take the lock, or start a daemon, or see whether it has ended. `WheelError`: it cannot be
        started; the message says why."""
        if self._output >= 0:
            self._look()
        elif self._lock < 0:
            self._take_lock()  # then the caller looks again: the last holder may have started one
        else:
            self._start()

    def overdue(self, seconds: float) -> DaemonNotRunning:
        """The error once the time is over."""
        who = "the daemon that was started for start='if-needed' does not answer"
        if self._output < 0:
            who = f"another process holds the lock on {self._base}, and is starting a daemon"
        said = self._said.decode(errors="replace").strip()
        return DaemonNotRunning(f"{who}, after {seconds:g} s{': ' if said else ''}{said}")

    @property
    def _base(self) -> Path:
        """The directory that a daemon of this name uses, made if necessary, with its runtime
        directory in it."""
        if self._directory is None:
            self._directory = runtime.create(self._name, self._runtime_dir).absolute()
        return self._directory.parent

    def _take_lock(self) -> None:
        fd = trust.above_standard(os.open(self._base, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
        else:
            self._lock = fd

    def _start(self) -> None:
        command = [_python(), "-P", "-m", "wheeld", "start"]
        command += ["--name", self._name, "--runtime-dir", str(self._base)]
        environment = {k: v for k, v in os.environ.items() if not k.startswith(_FOREIGN)}
        environment.setdefault("WHEELD_IDLE_EXIT", IDLE_EXIT)
        environment.setdefault("WHEELD_LOG_LEVEL", "warning")
        self._said = b""
        said, output = map(trust.above_standard, os.pipe())
        try:
            subprocess.run(
                ["/bin/sh", "-c", _DETACHED, "sh", *command],
                check=True,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment,
                start_new_session=True,
            )
        except (OSError, subprocess.SubprocessError) as error:
            os.close(said)
            raise WheelError(f"cannot start a daemon: {error}") from error
        finally:
            os.close(output)
        os.set_blocking(said, False)
        self._output = said

    def _look(self) -> None:
        """Read its messages; the end of the stream means that it has ended."""
        try:
            more = os.read(self._output, MOST_SAID)
        except BlockingIOError:
            return
        self._said = (self._said + more)[-MOST_SAID:]
        if more:
            return
        os.close(self._output)
        self._output = -1
        said = self._said.decode(errors="replace").strip()
        if runtime.ALREADY not in said:  # else the last one has not quite ended: once more
            raise WheelError(f"the daemon for start='if-needed' did not start: {said}")

    def close(self) -> None:
        for fd in (self._output, self._lock):
            if fd >= 0:
                os.close(fd)
        self._output = self._lock = -1
        if self._directory is not None:
            _remove_unused(self._directory)


def _remove_unused(directory: Path) -> None:
    """Remove a runtime directory that no daemon uses or is about to use."""
    with contextlib.suppress(OSError), contextlib.ExitStack() as opened:
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        opened.callback(os.close, fd)
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        directory.rmdir()


def _python() -> str:
    """This environment's Python; `sys.executable` may be a server that embeds Python."""
    if "python" in Path(sys.executable).name:
        return sys.executable
    return str(Path(sys.prefix, "bin", "python3"))
