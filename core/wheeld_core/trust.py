"""Which daemons a client trusts: its own user's, root's, or another user's that is shared with its
group.

Other users can put files where a client looks: in /tmp, in /dev/shm, in directories that they may
write. So a client checks owners before it opens anything, and checks what it opened:

- the runtime directory belongs to this user or to root, and nobody else may write it;
- so does the directory above it; there others may write if it is sticky, as /tmp is;
- another user's daemon (`--group`) is trusted where only that user, this one and root can have made
  its directory, and the directory is in /run/wheeld, which is root's, or open to a group of this
  process;
- the process at the socket belongs to the directory's owner, or root;
- files opened there, by plain names, are FIFOs of the owner; mapped segments are the owner's.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import socket
import stat
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

SYSTEM_BASE: Final = Path("/run/wheeld")
"""Where the service manager makes runtime directories of daemons that run as their own user."""
FIFO_FLAGS: Final = os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOFOLLOW
_ACCESS: Final = os.O_ACCMODE | os.O_PATH
_LOOK: Final = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_BY_OTHERS: Final = stat.S_IWGRP | stat.S_IWOTH


class DaemonDirectory(NamedTuple):
    """A runtime directory that passed the checks."""

    fd: int
    """A descriptor of the directory, to open its files."""
    owner: int
    """The user whose daemon runs there."""

    def open_bell(self, name: str) -> int:
        """A descriptor of a FIFO in the directory, for the caller to ring and to close.

        PermissionError: it is not a FIFO of the directory's owner. FileNotFoundError: it, or its
        reader, has gone.
        """
        try:
            fd = os.open(plain(name), FIFO_FLAGS, dir_fd=self.fd)
        except PermissionError:  # another user's: may be rung, but not read
            fd = self._open_to_ring(plain(name))
        return self._checked(fd, name)

    def _open_to_ring(self, name: str) -> int:
        try:
            return os.open(name, FIFO_FLAGS & ~os.O_ACCMODE | os.O_WRONLY, dir_fd=self.fd)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            raise FileNotFoundError(error.errno, "nobody reads it", name) from None

    def open_own_bell(self, name: str, passed: Sequence[int]) -> int:
        """A descriptor of the caller's own FIFO, reopened from the one that the daemon `passed`,
        which the caller still has to close. Without a passed one, it is opened by name, as this
        user.

        PermissionError: as `open_bell`; or this user may not read it.
        """
        if not passed:
            return self._checked(os.open(plain(name), FIFO_FLAGS, dir_fd=self.fd), name)
        fd = self._checked(os.dup(passed[0]), name)
        if (
            fcntl.fcntl(fd, fcntl.F_GETFL) & _ACCESS != os.O_RDWR
        ):  # otherwise sleeping on it would return at once
            os.close(fd)
            raise PermissionError(f"{name!r} arrived without read and write access")
        fcntl.fcntl(fd, fcntl.F_SETFL, os.O_NONBLOCK)
        return fd

    def _checked(self, fd: int, name: str) -> int:
        fd = above_standard(fd)
        status = os.fstat(fd)
        if stat.S_ISFIFO(status.st_mode) and status.st_uid == self.owner:
            return fd
        os.close(fd)
        raise PermissionError(
            f"{name!r} is not a FIFO of uid {self.owner}, the daemon's user; refusing to use it"
        )


def above_standard(fd: int) -> int:
    """The same file under a number above 2; closes `fd` if its number is not.

    A process may have closed its standard descriptors. Each `print` would then write to a file that
    got such a number.
    """
    if fd > 2:
        return fd
    try:
        return fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
    finally:
        os.close(fd)


def plain(name: object) -> str:
    """Return `name` if it is a plain file name, which cannot lead out of its directory."""
    if not isinstance(name, str) or "/" in name or "\0" in name or name in ("", ".", ".."):
        raise PermissionError(f"{name!r} is not a plain file name; refusing to open it")
    return name


@contextlib.contextmanager
def entered(directory: Path) -> Iterator[DaemonDirectory]:
    """Open the runtime directory of a trusted daemon, for the block.

    PermissionError: somebody other than this user, root or the daemon's user could have made it;
    the message says why. FileNotFoundError, NotADirectoryError: it is not there.
    """
    path = _followed(_followed(directory.absolute().parent) / directory.absolute().name)
    with contextlib.ExitStack() as opened:
        base = os.open(path.parent, _LOOK)
        opened.callback(os.close, base)
        fd = os.open(path.name or ".", _LOOK, dir_fd=base)
        opened.callback(os.close, fd)
        _check_base(path.parent, os.fstat(base), os.fstat(fd).st_uid)
        yield DaemonDirectory(fd, _owner(path, os.fstat(base), os.fstat(fd)))


def check(directory: Path) -> None:
    with entered(directory):
        pass


def own_directory(path: Path, mode: int) -> Path:
    """Make the directory at `path` with `mode`, if it does not exist, and check that only this user
    can write there.

    PermissionError: it belongs to somebody else, others may write to it or to its parent, or a link
    that another user has made leads there. OSError: it cannot be made.
    """
    path = path.absolute()
    _check_links(path)  # before anything is made where they lead
    path.mkdir(mode=mode, parents=True, exist_ok=True)
    _check_links(path)
    above, status = os.stat(path.parent), os.stat(path)
    _check_base(path.parent, above, status.st_uid)
    if status.st_uid != os.geteuid() or status.st_mode & _BY_OTHERS:
        raise PermissionError(
            f"{path} has uid {status.st_uid}, mode {stat.S_IMODE(status.st_mode):04o}: expected a "
            f"directory of uid {os.geteuid()} that no other user can write to"
        )
    return path


def _check_links(path: Path) -> None:
    """Raise PermissionError if somebody else has put a link where `path` leads through."""
    for part in (*reversed(path.parents), path):
        try:
            _check_link(part, os.lstat(part))
        except FileNotFoundError:
            return


def check_peer(connected: socket.socket, owner: int) -> None:
    """Raise PermissionError unless `owner`, or root, listens at the other end."""
    wanted = struct.Struct("3i")
    told = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, wanted.size)
    _, uid, _ = wanted.unpack(told)
    if uid not in (owner, 0):
        raise PermissionError(
            f"a process of uid {uid} listens at the socket of uid {owner}'s daemon; refusing to "
            "talk to it"
        )


def _followed(path: Path) -> Path:
    status = os.lstat(path)
    _check_link(path, status)
    return Path(os.path.realpath(path)) if stat.S_ISLNK(status.st_mode) else path


def _check_link(path: Path, status: os.stat_result) -> None:
    if stat.S_ISLNK(status.st_mode) and status.st_uid not in _believed():
        raise PermissionError(f"{path} is a link made by uid {status.st_uid}; refusing to use it")


def _believed() -> tuple[int, int]:
    return os.geteuid(), 0


def _check_base(path: Path, status: os.stat_result, owner: int) -> None:
    if status.st_uid not in (*_believed(), owner):
        raise _foreign(path, status)
    if status.st_mode & stat.S_IWOTH and not status.st_mode & stat.S_ISVTX:
        raise PermissionError(
            f"{path} can be written by all users (mode {stat.S_IMODE(status.st_mode):04o}); "
            f"refusing to use what is in it; `chmod o-w {path}` if it is yours"
        )


def _owner(path: Path, base: os.stat_result, status: os.stat_result) -> int:
    if status.st_mode & _BY_OTHERS:
        raise PermissionError(
            f"{path} can be written by users other than its owner (mode "
            f"{stat.S_IMODE(status.st_mode):04o}); refusing to use it"
        )
    if status.st_uid in _believed() and base.st_uid in _believed():
        return status.st_uid
    ours = status.st_gid in (os.getegid(), *os.getgroups()) and status.st_mode & 0o010
    if not (ours or path.parent == SYSTEM_BASE) or not _was_given(path, status.st_uid):
        raise _foreign(path, status)
    return status.st_uid


def _was_given(path: Path, owner: int) -> bool:
    """Whether only this user, root and `owner` can determine where `path` leads."""
    for above in path.parents:
        status = os.lstat(above)
        if status.st_uid not in (*_believed(), owner) or status.st_mode & _BY_OTHERS:
            return False
        if status.st_uid != owner:
            return True
    return False


def _foreign(path: Path, status: os.stat_result) -> PermissionError:
    return PermissionError(
        f"{path} belongs to another user (uid {status.st_uid}): expected uid {os.geteuid()}, root, "
        "or a daemon shared with a group of this process; refusing to use it"
    )
