"""Where a daemon lives: its runtime directory and the files in it.

    control.sock      the supervisor listens here: JSON, one message a line
    clock.fifo        the clock's doorbell
    clock.lock        held by the clock process: two never write one wheel
    worker-<row>.fifo the doorbell of the worker in that row
    daemon.json       names of the shared memory segments, process ids, configuration

A daemon is addressed by a plain name, looked up in the usual places, or by the path of its
directory.
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

from wheeld_core import trust
from wheeld_core.arguments import expect, shown
from wheeld_core.errors import DaemonNotRunning, UsageError, WheelError

ENV_RUNTIME_DIR = "WHEELD_RUNTIME_DIR"
CONTROL_SOCKET = "control.sock"
CLOCK_FIFO = "clock.fifo"
CLOCK_LOCK = "clock.lock"
DAEMON_FILE = "daemon.json"
MAX_SOCKET_PATH = 107
ALREADY = "already runs in"
"""The words of a daemon that refuses to start because another one of its name runs there."""
WORKER_NAME_BYTES = 63
GROUP_NAME_BYTES = 59
"""The longest names of workers and groups, in bytes of UTF-8."""
NAME_PATTERN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,47}")


def worker_fifo(row: int) -> str:
    """File name of the doorbell of the worker in `row`."""
    return f"{worker_segment(row)}.fifo"


def worker_segment(row: int) -> str:
    """The kind of the segment of the worker in `row`: the part of its name between the daemon's
    prefix and a random number (`segments.of_daemon`)."""
    return f"worker-{row}"


def check_name(name: str) -> str:
    """Return `name` if it can name a daemon, else raise UsageError."""
    expect("name", name, str)
    if not NAME_PATTERN.fullmatch(name):
        raise UsageError(
            f"daemon name {shown(name)}: expected up to 48 letters, digits, '.', '_' or '-', "
            "beginning with a letter or digit"
        )
    return name


def base_directories() -> list[Path]:
    """Where runtime directories may be, most preferred first."""
    given = os.environ.get(ENV_RUNTIME_DIR)
    if given:
        return [Path(given)]
    bases = [trust.SYSTEM_BASE]
    session = os.environ.get("XDG_RUNTIME_DIR")
    if session:
        bases.append(Path(session) / "wheeld")
    bases.append(Path(f"/tmp/wheeld-{os.getuid()}"))
    return bases


def candidates(name: str, runtime_dir: str | os.PathLike[str] | None = None) -> list[Path]:
    """Where the runtime directory of a daemon can be, most preferred first."""
    expect("name", name, str)
    if runtime_dir is not None:
        expect("runtime_dir", runtime_dir, str, os.PathLike)
    if "/" in name:
        return [Path(name)]
    check_name(name)
    return [base / name for base in ([Path(runtime_dir)] if runtime_dir else base_directories())]


def find(name: str, runtime_dir: str | os.PathLike[str] | None = None) -> Path:
    """The runtime directory of a running daemon, by the daemon's name or the path of that
    directory; `runtime_dir` holds it, default: the usual places.

    DaemonNotRunning: there is none; the message names the directories that were searched.
    PermissionError: its user is not trusted (`wheeld_core.trust`).
    """
    places = candidates(name, runtime_dir)
    for candidate in places:
        if candidate.is_dir() and not os.access(candidate, os.X_OK):
            raise PermissionError(f"no access to {candidate}: that daemon runs as another user")
        if (candidate / CONTROL_SOCKET).exists():
            trust.check(candidate)
            return candidate
    looked = ", ".join(str(candidate) for candidate in places)
    raise DaemonNotRunning(
        f"no wheeld daemon {name!r} in {looked}; start one with `wheeld start"
        + ("`" if "/" in name else f" --name {name}`")
    )


def create(
    name: str, runtime_dir: str | os.PathLike[str] | None = None, gid: int | None = None
) -> Path:
    """Make (or reuse) the runtime directory of a new daemon, owned by this user, with mode 0700, or
    0710 for `gid`. Members of that group can use the files in it, but cannot open the directory
    itself and so cannot take its lock.

    WheelError: no usual place is writable, or other users can write to the directory.
    """
    check_name(name)
    bases = [Path(runtime_dir)] if runtime_dir else base_directories()
    problems = []
    for base in bases:
        room = len(os.fsencode(base / name / CONTROL_SOCKET))
        if room > MAX_SOCKET_PATH:
            problems.append(
                f"{base}: a socket path of {room} bytes, at most {MAX_SOCKET_PATH} fit; give a "
                "shorter --runtime-dir or --name"
            )
            continue
        try:
            if runtime_dir is None and not base.exists():
                _make_directory(base, 0o755 if os.getuid() == 0 else 0o700)
            directory = base / name
            _make_directory(directory, 0o700)
            if runtime_dir is None and base.parent == Path("/tmp"):
                _check_private(base, None)
            _check_private(directory, gid)
            if gid is not None:
                os.chown(directory, -1, gid)
                os.chmod(directory, 0o710)
        except OSError as error:
            problems.append(f"{base}: {error.strerror}")
            continue
        return directory
    raise WheelError("cannot make a runtime directory: " + "; ".join(problems))


def _make_directory(directory: Path, mode: int) -> None:
    """Make it with `mode`, whatever the umask; one that exists stays as it is."""
    try:
        directory.mkdir(mode=mode)
    except FileExistsError:
        return
    directory.chmod(mode)


def _check_private(directory: Path, gid: int | None) -> None:
    status = os.lstat(directory)
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise WheelError(f"{directory} is not a directory of this user; refusing to use it")
    ours = 0o050 if gid is not None and status.st_gid == gid else 0
    if status.st_mode & 0o077 & ~ours:
        raise WheelError(
            f"{directory} has mode {stat.S_IMODE(status.st_mode):04o}, expected "
            f"{0o700 | ours:04o}; refusing to use it"
        )
