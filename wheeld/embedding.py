"""A private daemon for one program; and moving the virtual clock of any daemon."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, Protocol, Unpack

from wheeld.config.arguments import DaemonOptions
from wheeld.processes import identity
from wheeld.processes.spawn import PRIVATE
from wheeld_core import runtime, segments, trust
from wheeld_core.arguments import Seconds, shown, step_ns
from wheeld_core.control import ask
from wheeld_core.control.messages import Request
from wheeld_core.errors import WheelError
from wheeld_core.units import duration_text

START_SECONDS = 30.0
STOP_SECONDS = 10.0
TRACE_STOP_SECONDS = 600.0
"""Seconds for a daemon to stop: with a trace, its last records become Parquet first."""
ADVANCE_SECONDS = 600.0
"""Seconds to wait: a long advance takes a while, because the clock visits bucket after bucket."""
MOST_SAID = 65_536
"""Bytes of the last messages of a daemon that did not start."""


def advance(
    name: str, seconds: Seconds, *, runtime_dir: str | os.PathLike[str] | None = None
) -> int:
    """Move a daemon's virtual clock, from one due time to the next.

    When it returns, everything that fell due on the way can be polled without waiting: `poll(0)`
    returns the events in order, each with its own time in `fired`.

    Parameters
    ----------
    name : str
        Name of the daemon, or the path of its runtime directory.
    seconds : float or timedelta
        How far, 0 or more.
    runtime_dir : path, optional
        Directory that holds the runtime directory; default: the usual places.

    Returns
    -------
    int
        The virtual time, ns, as events and `status` have it.

    Raises
    ------
    ValueError
        It runs on the real clock, or `seconds` is negative or not a number.
    DaemonNotRunning
        There is none.
    """
    return advance_ns(name, step_ns(seconds), runtime_dir)


def advance_ns(name: str, step: int, runtime_dir: str | os.PathLike[str] | None = None) -> int:
    directory = runtime.find(name, runtime_dir)
    return int(ask(directory, Request.ADVANCE, ADVANCE_SECONDS, ns=step)["now_ns"])


class EmbeddedDaemon(str):
    """A private daemon: the path of its runtime directory, which identifies it."""

    __slots__ = ()

    def advance(self, seconds: Seconds) -> int:
        """Move its virtual clock, as `wheeld.advance` does; returns the virtual time, ns."""
        return advance(self, seconds)

    def _advance_ns(self, step: int) -> int:
        return advance_ns(self, step)


@contextlib.contextmanager
def embedded(**config: Unpack[DaemonOptions]) -> Iterator[EmbeddedDaemon]:
    """Run a private daemon for as long as the block lasts.

    Parameters
    ----------
    **config
        Fields of `wheeld.config.Config`, such as `capacity=100_000`, `virtual_clock=True`,
        `keep_for=timedelta(minutes=5)` or `pools=["requests=64M"]`.

    Yields
    ------
    EmbeddedDaemon
        A string to pass to `wheeld_client.connect`, in this process and in others.

    Raises
    ------
    WheelError
        The daemon did not start; its message is included.

    Notes
    -----
    The daemon stops when this process dies, however it dies, and leaves nothing behind.
    """
    with running(_start, dict(config)) as daemon:
        yield daemon


class ChildProcess(Protocol):
    """The methods of a daemon's process that this module uses; `subprocess.Popen` has them."""

    @property
    def pid(self) -> int: ...
    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...
    def terminate(self) -> None: ...
    def kill(self) -> None: ...


def _start(options: str, output: int) -> ChildProcess:
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "wheeld", PRIVATE, options],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT,
    )


@contextlib.contextmanager
def running(
    start: Callable[[str, int], ChildProcess], config: dict[str, Any]
) -> Iterator[EmbeddedDaemon]:
    """As `embedded`; `start` makes the process, whose messages go to a descriptor."""
    name = config.pop("name", None)
    if name is None:
        name = f"embedded-{os.getpid()}-{secrets.token_hex(3)}"
    runtime.check_name(name)
    base = config.pop("runtime_dir", None)
    with contextlib.ExitStack() as stack:
        if base is None:
            base = tempfile.mkdtemp(prefix="wheeld-", dir=_place(name))
            os.chmod(base, 0o700)  # whatever the umask
            stack.callback(_remove_directory, Path(base))
            config["remove_base"] = True  # the daemon does it when this process cannot
        directory = Path(base) / name
        said, output = map(trust.above_standard, os.pipe())
        with os.fdopen(said, "rb", 0):
            with os.fdopen(output, "wb", 0):
                process = start(_options(name, base, config), output)
            patience = TRACE_STOP_SECONDS if config.get("trace") else STOP_SECONDS
            stack.callback(_stop, process, directory, patience)
            _await_start(process, directory, said)
        yield EmbeddedDaemon(directory)


def _place(name: str) -> str:
    """The parent of temporary directories: the usual one, or /tmp if its path is too long for a
    daemon's socket."""
    usual = tempfile.gettempdir()
    longest = runtime.MAX_SOCKET_PATH - len(f"/wheeld-12345678/{name}/{runtime.CONTROL_SOCKET}")
    return usual if len(os.fsencode(usual)) <= longest else "/tmp"


def _options(name: str, base: str | os.PathLike[str], config: dict[str, Any]) -> str:
    """The options for `wheeld.supervisor.launch`, as strings like in the environment."""
    options: dict[str, Any] = {
        "parent_pid": (pid := os.getpid()),
        "parent_known": identity.of_pid(pid),
        "name": name,
        "runtime_dir": str(base),
    }
    for key, value in config.items():
        if value is True or key == "pools":
            options[key] = value
        elif value is not None and value is not False:
            span = isinstance(value, timedelta)
            options[key] = duration_text(step_ns(value)) if span else _text(value)
    return json.dumps(options)


def _text(value: Any) -> str:
    return shown(value) if type(value) is int else str(value)  # any int, however many digits


def _facts(directory: Path) -> dict[str, Any]:
    """The contents of this directory's daemon.json; {} if there is none."""
    with contextlib.suppress(OSError, ValueError):
        facts: dict[str, Any] = json.loads((directory / runtime.DAEMON_FILE).read_text("utf-8"))
        return facts
    return {}


def _await_start(process: ChildProcess, directory: Path, output: int) -> None:
    """Wait until the daemon has written its file, which means that it is ready.

    Its output until then goes into the error message; nobody reads later output.
    """
    os.set_blocking(output, False)
    said = b""
    give_up = time.monotonic() + START_SECONDS
    while _facts(directory).get("pid") != process.pid:  # another daemon of that name may be there
        ended = process.poll() is not None
        with contextlib.suppress(BlockingIOError):
            # once: it may write faster than this reads; what a pipe holds, it holds at its end, too
            said = (said + os.read(output, MOST_SAID))[-MOST_SAID:]
        if ended or time.monotonic() > give_up:
            how = "" if ended else f" within {START_SECONDS:.0f} s"
            message = said.decode(errors="replace").strip()
            raise WheelError(f"the embedded daemon did not start{how}: {message}")
        time.sleep(0.002)


def _stop(process: ChildProcess, directory: Path, patience: float) -> None:
    """Stop the daemon; if it was killed, remove what it left."""
    process.terminate()
    try:
        process.wait(patience)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
        place = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        stack.callback(os.close, place)
        fcntl.flock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)  # else another daemon goes on with it
        facts = _facts(directory)
        if facts.get("pid") == process.pid:
            segments.unlink_all(facts["segment_prefix"])
            _remove_directory(directory)


def _remove_directory(directory: Path) -> None:
    with contextlib.suppress(FileNotFoundError):
        for path in directory.iterdir():
            path.unlink()
        directory.rmdir()
