"""State: the reading states of a connection of an `Intake`."""

from __future__ import annotations

from enum import Enum
from typing import Protocol

from wheeld_client.intake.tls import Tls


class State(Enum):
    """
    PREFIX   reading the length, into a small private buffer
    READY    the length is known, nothing is allocated: nothing is read
    BODY     reading the request, straight into the pool's buffer
    CLOSED   or about to be
    """

    PREFIX = "prefix"
    READY = "ready"
    BODY = "body"
    CLOSED = "closed"


PREFIX, READY, BODY, CLOSED = State


class Standing(Protocol):
    """What is read of a connection to say what it is waiting for."""

    _tls: Tls | None
    _state: State
    _size: int
    _have: int
    _owes: int

    def _to_go(self) -> int: ...

    def _unread(self) -> int: ...


def stands_at(connection: Standing) -> str:
    """What a connection is waiting for, for the log."""
    if connection._tls is not None and not connection._tls.secure:
        return "in the TLS handshake"
    if connection._owes:
        return f"{connection._to_go()} of {connection._owes} bytes of its answer are unread"
    if connection._state is PREFIX:
        return f"it sent {connection._have} bytes of a length"
    have = connection._have if connection._state is BODY else connection._unread()
    return f"it sent {have} of {connection._size} bytes of a request"
