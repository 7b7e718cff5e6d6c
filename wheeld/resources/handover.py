"""A restart in place: the supervisor executes the program that is installed now.

Process id, parent and service manager stay the same. So do the lock on the runtime directory, the
listening socket, where new connections wait in the meantime, and the clock, which drives the wheel
until its successor needs nothing but its lock. Descriptors and an environment variable are handed
over.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from wheeld.config.settings import Config
from wheeld.processes import activation, pidfd as processes
from wheeld_core import _native
from wheeld_core.errors import WheelError
from wheeld_core.runtime import CONTROL_SOCKET

VARIABLE: Final = "WHEELD_HANDOVER"
CHECK_OPTION: Final = "--check"
CHECK_SECONDS: Final = 60.0
"""How many seconds the program may take to print what it would start."""
END_SECONDS: Final = 1.0
"""Seconds for the previous clock to end its pass; then it is killed."""


@dataclass
class Handover:
    """The state that one incarnation of a supervisor hands over to the next.

    Attributes
    ----------
    pid : int
        Its process id; other processes that inherit the environment must not take over anything.
    number : int
        The number of restarts, including this one.
    lock, listener : int
        Descriptors: the locked runtime directory, the listening socket; -1: none.
    socket_file : list of int
        Device and inode of the file that leads to that socket.
    clock_pid, clock_channel : int
        The clock that keeps running, and the descriptor of its channel; 0 and -1 if there is none.
    ended_ns : int
        If no clock runs, when the last one ended, ns of CLOCK_MONOTONIC.
    owned : list of int
        Descriptors of other locks (ownership.py).
    """

    pid: int
    number: int
    lock: int = -1
    listener: int = -1
    socket_file: list[int] = field(default_factory=list)
    clock_pid: int = 0
    clock_channel: int = -1
    ended_ns: int = 0
    owned: list[int] = field(default_factory=list)

    def descriptors(self) -> list[int]:
        known = (self.lock, self.listener, self.clock_channel, *self.owned)
        return [fd for fd in known if fd >= 0]

    def known_socket(self) -> tuple[int, int] | None:
        """Device and inode of the socket's file; None: an earlier version did not hand them
        over."""
        device, inode = self.socket_file or (0, 0)
        return (device, inode) if inode else None

    def execute(self) -> None:
        """Execute the program and so become the next incarnation. `WheelError`: the program cannot
        be executed; the memory stays."""
        for fd in self.descriptors():
            os.set_inheritable(fd, True)
        activation.pass_on()
        environment = {**os.environ, VARIABLE: json.dumps(asdict(self))}
        command = _command()
        try:
            os.execve(command[0], command, environment)
        except OSError as error:
            raise WheelError(
                f"cannot execute {command[0]} ({error.strerror}); the memory stays, and "
                "`wheeld start` continues with it"
            ) from error


def received() -> Handover | None:
    """The state that the previous incarnation handed over to this process, if there was one."""
    text = os.environ.pop(VARIABLE, None)
    if text is None:
        return None
    try:
        handover = Handover(**json.loads(text))
        if handover.pid != os.getpid():
            return None
        for fd in handover.descriptors():
            os.set_inheritable(fd, False)
    except (ValueError, TypeError, OSError):  # not of our making
        return None
    return handover


def activated(before: Handover | None, directory: Path) -> dict[str, Any] | None:
    """Arguments for `asyncio.start_unix_server`: the socket that the service manager passed to this
    process, or None. Its file is the service manager's, too."""
    if (listener := activation.listener(directory / CONTROL_SOCKET)) is None:
        return None
    if before is not None and before.listener >= 0:
        os.close(before.listener)  # another copy
    return _as_arguments({"sock": listener})


def listening(before: Handover | None, path: Path) -> dict[str, Any]:
    """Arguments for `asyncio.start_unix_server`: The socket that was handed over, if `path` still
    leads to it; otherwise `path`."""
    at: dict[str, Any] = {"path": path}
    if before is not None and before.listener >= 0:
        listener = socket.socket(fileno=before.listener)
        if _leads_to(path, before.known_socket()):
            at = {"sock": listener}
        else:
            listener.close()
    return _as_arguments(at)


def _as_arguments(at: dict[str, Any]) -> dict[str, Any]:
    if sys.version_info >= (3, 13):
        at["cleanup_socket"] = False  # removing the file is up to us
    return at


def _leads_to(path: Path, file: tuple[int, int] | None) -> bool:
    """Whether that file is still at the path; None: whether any socket is there."""
    with contextlib.suppress(OSError):
        status = os.lstat(path)
        known = file in (None, (status.st_dev, status.st_ino))
        return known and stat.S_ISSOCK(status.st_mode)
    return False


# -- what would come --------------------------------------------------------------------------


def _command() -> list[str]:
    given = sys.orig_argv[1:]
    return [sys.executable, "-P", *given[given[:1] == ["-P"] :]]  # another restart may have set it


def introduce(config: Config) -> str:
    """Describes the daemon that this program would start."""
    return json.dumps(
        {
            "layout": [_native.LAYOUT_VERSION, _native.FINGERPRINT],
            "wheel": config.native(),
            "pools": config.pools,
            "name": config.name,
            "state_dir": config.state_dir is not None,
        }
    )


def _ask() -> Mapping[str, Any]:
    command = [*_command(), CHECK_OPTION]
    try:
        done = subprocess.run(
            command,
            check=False,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=CHECK_SECONDS,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise WheelError(f"it cannot be executed: {error}") from error
    if done.returncode != 0:
        raise WheelError(done.stderr.decode(errors="replace").strip() or f"exit {done.returncode}")
    try:
        found = json.loads(done.stdout)
        return found if isinstance(found, dict) else {}
    except ValueError:
        return {}


async def keeps_memory(config: Config) -> bool:
    """Whether the installed program can continue with this memory. False: it has another layout,
    and timers are passed on in a snapshot. `WheelError`: it would not start, or not with this
    memory; nothing has been changed yet."""
    refusal = "not restarted, the running daemon stays: "
    try:
        found = await asyncio.get_running_loop().run_in_executor(None, _ask)
    except WheelError as error:
        raise WheelError(f"{refusal}the program would not start: {error}") from None
    ours = json.loads(introduce(config))
    if any(found.get(key) != ours[key] for key in ("wheel", "pools", "name")):
        differ = [key for key, value in ours["wheel"].items() if _wheel(found).get(key) != value]
        differ += [key for key in ("pools", "name") if found.get(key) != ours[key]]
        raise WheelError(
            f"{refusal}its options have changed ({', '.join(differ)}), and its memory was made for "
            "the old ones; use `wheeld stop`, then `wheeld start`"
        )
    if found.get("layout") == ours["layout"]:
        return True
    if not (found.get("state_dir") and config.state_dir is not None):
        raise WheelError(
            f"{refusal}the installed program has another layout ({_layout(found)}, the daemon "
            f"{_layout(ours)}), so pending timers need a snapshot, and with it --state-dir; "
            "`wheeld stop`, then `wheeld start` begins without them"
        )
    return False


def _wheel(found: Mapping[str, Any]) -> Mapping[str, Any]:
    wheel = found.get("wheel")
    return wheel if isinstance(wheel, dict) else {}


def _layout(found: Mapping[str, Any]) -> str:
    layout = found.get("layout")
    version, fingerprint = layout if isinstance(layout, list) and len(layout) == 2 else ("?", "?")
    return f"version {version}, {fingerprint}"


# -- the clock before -------------------------------------------------------------------------


class Predecessor:
    """The clock of the previous incarnation, which drives the wheel until its successor is
    ready."""

    def __init__(self, handover: Handover) -> None:
        self.ended_ns = handover.ended_ns
        self._channel = handover.clock_channel
        self._pid, self._pidfd = handover.clock_pid, -1
        if self._pid:
            with contextlib.suppress(ProcessLookupError):
                self._pidfd = os.pidfd_open(self._pid)
        self._end: asyncio.Task[None] | None = None

    def retire(self) -> None:
        """Let it end after its pass; until the next clock takes over, timers wait."""
        if self._channel < 0:
            return
        self.ended_ns = time.monotonic_ns()
        os.close(self._channel)
        self._channel = -1
        if self._pidfd >= 0:
            self._end = asyncio.get_running_loop().create_task(self._collect())

    async def _collect(self) -> None:
        loop, over = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self._pidfd, over.set)
        try:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(over.wait(), END_SECONDS)
            processes.kill(self._pidfd)
            await over.wait()
        finally:
            loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._pid, 0)  # noqa: ASYNC222 - it has ended: at once

    async def gone(self) -> None:
        self.retire()
        if self._end is not None:
            await self._end

    def gap(self) -> dict[str, float]:
        return {"gap_ms": round((time.monotonic_ns() - self.ended_ns) / 1e6, 3)}
