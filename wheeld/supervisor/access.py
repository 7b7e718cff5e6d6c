"""The callers at the control socket, as the kernel identifies them, and their permissions."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import struct
from typing import Final, NamedTuple

from wheeld.config.settings import Config
from wheeld.processes import identity
from wheeld.processes.pidfd import has_ended
from wheeld_core.control.messages import Request
from wheeld_core.errors import WheelError

OWNERS_ONLY: Final = (Request.STOP, Request.RESTART, Request.ADVANCE, Request.EVICT, Request.DRAIN)
"""Requests that end the daemon or a worker, drain a worker, or move the virtual time."""
_CREDENTIALS: Final = struct.Struct("3i")
_SO_PEERGROUPS: Final = 59
_SO_PEERPIDFD: Final = 77
_MOST_BYTES: Final = 1024  # the most that Python's getsockopt takes: 256 groups


class Caller(NamedTuple):
    """The process that made a connection; another process may hold the socket now."""

    pid: int
    uid: int
    gids: tuple[int, ...]
    known: int
    """Its identity (identity.py) when the connection was accepted."""
    peer: socket.socket

    @property
    def owns(self) -> bool:
        return self.uid in (os.getuid(), 0)

    def open_process(self) -> int:
        """A pidfd of that process; the caller closes it.

        The kernel has kept a handle of the process since it connected. Linux before 6.5 does not
        offer it: then user and start time are compared with their values at the accept.

        `WheelError`: it has ended, and its number may be another process's.
        """
        found: int | None
        try:
            found = self.peer.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
                raise
            found = None
            if error.errno == errno.ENOPROTOOPT:
                found = identity.open_process(self.pid, self.known, 0, self.uid)
        if found is not None and has_ended(found):
            os.close(found)
            found = None
        if found is None:
            raise WheelError(
                f"the process that connected (pid {self.pid}) has ended: connect again, in the "
                "process that is to be the worker"
            )
        return found

    def check_entry(self, config: Config) -> None:
        """Raise PermissionError unless it may use the daemon."""
        if not self.owns and config.gid not in self.gids:
            raise PermissionError(
                f"uid {self.uid} may not use this daemon, which runs as uid {os.getuid()}; start "
                "it with --group to share it"
            )

    def check_request(self, op: object, config: Config) -> None:
        """Raise PermissionError for requests reserved for the owner, root and --admin-group."""
        if op not in OWNERS_ONLY or self.owns or config.admin_gid in self.gids:
            return
        group = config.admin_group
        admins = "" if group is None else f" and members of {group!r}"
        raise PermissionError(
            f"uid {self.uid} may not run `wheeld {op}` here: only uid {os.getuid()}, root{admins} "
            "may (--admin-group)"
        )


def caller_of(peer: socket.socket) -> Caller:
    told = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, gid = _CREDENTIALS.unpack(told)
    known = identity.NONE
    with contextlib.suppress(OSError):  # no descriptor is free to look it up
        known = identity.of_pid(pid, uid)
    return Caller(pid, uid, (gid, *_peer_groups(peer)), known, peer)


def _peer_groups(peer: socket.socket) -> tuple[int, ...]:
    with contextlib.suppress(OSError):
        found = peer.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, _MOST_BYTES)
        return struct.unpack(f"{len(found) // 4}I", found)
    return ()
