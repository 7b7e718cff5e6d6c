"""Who calls at the control socket, as the kernel knows them, and what they may ask for."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
from typing import Final, NamedTuple

from wheeld.config.settings import Config
from wheeld_core.control.messages import Request

OWNERS_ONLY: Final = (Request.STOP, Request.RESTART, Request.ADVANCE, Request.EVICT)
"""Requests that end the daemon or a worker, or move the virtual time."""
_CREDENTIALS: Final = struct.Struct("3i")
_SO_PEERGROUPS: Final = 59
_MOST_BYTES: Final = 1024  # the most that Python's getsockopt takes: 256 groups


class Caller(NamedTuple):
    """The process at the other end of a connection."""

    pid: int
    uid: int
    gids: tuple[int, ...]

    @property
    def owns(self) -> bool:
        """Is it the daemon's own user, or root?"""
        return self.uid in (os.getuid(), 0)

    def check_entry(self, config: Config) -> None:
        """Raise PermissionError unless it may use the daemon."""
        if not self.owns and config.gid not in self.gids:
            raise PermissionError(
                f"uid {self.uid} may not use this daemon, which runs as uid {os.getuid()}; start "
                "it with --group to share it"
            )

    def check_request(self, op: object, config: Config) -> None:
        """Raise PermissionError for requests that are reserved for the owner, root and
        --admin-group."""
        if op not in OWNERS_ONLY or self.owns or config.admin_gid in self.gids:
            return
        group = config.admin_group
        admins = "" if group is None else f" and members of {group!r}"
        raise PermissionError(
            f"uid {self.uid} may not run `wheeld {op}` here: only uid {os.getuid()}, root{admins} "
            "may (--admin-group)"
        )


def caller_of(peer: socket.socket) -> Caller:
    """The process at the other end."""
    told = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, gid = _CREDENTIALS.unpack(told)
    return Caller(pid, uid, (gid, *_peer_groups(peer)))


def _peer_groups(peer: socket.socket) -> tuple[int, ...]:
    """The supplementary groups of the other end."""
    with contextlib.suppress(OSError):
        found = peer.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, _MOST_BYTES)
        return struct.unpack(f"{len(found) // 4}I", found)
    return ()
