"""A restart in place: the supervisor executes the program again, as it may be by now.

Process id, parent and service manager stay the same, and so do the lock on the runtime directory,
the listening socket, in which those wait who connect meanwhile, and the clock: it drives the wheel
until its successor has only to take its lock. What goes over are descriptors, and a line in the
environment.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from wheeld.config.settings import Config
from wheeld.processes import pidfd as processes
from wheeld_core import _native
from wheeld_core.errors import WheelError

VARIABLE: Final = "WHEELD_HANDOVER"
CHECK_OPTION: Final = "--check"
CHECK_SECONDS: Final = 60.0
"""How long the program may take to say what it would start."""
END_SECONDS: Final = 1.0
"""How long the clock before may take for the end of its pass; then it is killed."""


@dataclass
class Handover:
    """What one incarnation of a supervisor leaves to the next.

    Attributes
    ----------
    pid : int
        Its process: what starts in that environment later takes over nothing.
    number : int
        How many restarts there have been, with the one that this is for.
    lock, listener : int
        Descriptors: the locked runtime directory, the listening socket; -1: none.
    clock_pid, clock_channel : int
        The clock that runs on, and the descriptor of the channel to it; 0 and -1: none does.
    ended_ns : int
        Since when there is no clock, if none runs on; CLOCK_MONOTONIC.
    """

    pid: int
    number: int
    lock: int = -1
    listener: int = -1
    clock_pid: int = 0
    clock_channel: int = -1
    ended_ns: int = 0

    def descriptors(self) -> list[int]:
        """Those that are there."""
        return [fd for fd in (self.lock, self.listener, self.clock_channel) if fd >= 0]

    def execute(self) -> None:
        """Become the next incarnation.

        Raises
        ------
        WheelError
            The program can no longer be executed; the memory is left.
        """
        for fd in self.descriptors():
            os.set_inheritable(fd, True)
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
    """What the incarnation before has left to this process, if there was one."""
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


def listening(before: Handover | None, path: Path) -> dict[str, Any]:
    """What `asyncio.start_unix_server` listens at: `path`, or the socket in which others wait."""
    at: dict[str, Any] = {"path": path}
    if before is not None and before.listener >= 0:
        at = {"sock": socket.socket(fileno=before.listener)}
    if sys.version_info >= (3, 13):
        at["cleanup_socket"] = False  # the file is ours to remove, or to leave
    return at


# -- what would come --------------------------------------------------------------------------


def _command() -> list[str]:
    given = sys.orig_argv[1:]
    return [sys.executable, "-P", *given[given[:1] == ["-P"] :]]  # another restart may have put it


def introduce(config: Config) -> str:
    """What this program says of a daemon that it would start."""
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
    """Can the installed program continue with this memory? False: it has another layout, and the
    timers go through a snapshot.

    Raises
    ------
    WheelError
        It would not start, or not with this memory; nothing has been done yet.
    """
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
            f"{_layout(ours)}), so pending timers can only go through a snapshot, which needs "
            "--state-dir; `wheeld stop`, then `wheeld start` begins without them"
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
    """The clock that drives the wheel until its successor is ready to.

    Parameters
    ----------
    handover : Handover
        It is taken from there.
    """

    def __init__(self, handover: Handover) -> None:
        self.ended_ns = handover.ended_ns
        self._channel = handover.clock_channel
        self._pid, self._pidfd = handover.clock_pid, -1
        if self._pid:
            with contextlib.suppress(ProcessLookupError):
                self._pidfd = os.pidfd_open(self._pid)
        self._end: asyncio.Task[None] | None = None

    def retire(self) -> None:
        """Let it end after its pass; from now on timers wait for another clock."""
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
        """End it, and wait until it has ended."""
        self.retire()
        if self._end is not None:
            await self._end

    def gap(self) -> dict[str, float]:
        """For how long no clock drove the wheel, now that one does."""
        return {"gap_ms": round((time.monotonic_ns() - self.ended_ns) / 1e6, 3)}
