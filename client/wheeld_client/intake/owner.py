"""Owner: what a connection may ask of its `Intake`; and of a request, while a handler has it.

The intake makes connections, requests and the work on them; a connection knows only this of them.
So each module of this folder imports only what it is built from:

    server > work > request > connection > channel > owner > gate, timeouts, watch ...

What the modules at the end know of a connection is a protocol beside each of them, such as
`Borrower` in gate.py.
"""

from __future__ import annotations

import ssl
from typing import TYPE_CHECKING, Protocol, TypeVar

from wheeld_client.intake.counters import IntakeCounters
from wheeld_client.intake.gate import Gate
from wheeld_client.intake.timeouts import Pace, StateTimeouts, Timed
from wheeld_client.intake.watch import PeerWatch

if TYPE_CHECKING:
    from collections.abc import Buffer

OwnedT = TypeVar("OwnedT", bound=Timed)


class ChannelOwner(Protocol):
    """What a channel needs, which only carries bytes."""

    _scratch: memoryview
    """Where bytes go for TLS, or to be discarded; shared, as it is emptied at once."""
    _peers: PeerWatch


class Owner(ChannelOwner, Protocol[OwnedT]):
    """What a connection needs."""

    largest: int
    """Bytes of the largest request."""
    _first_bytes: int
    """Of a request, that must have arrived before it gets memory."""
    _half_close: bool
    """Whether a peer that has finished sending still takes answers."""
    _prefix_bytes: int
    """Bytes of a length."""
    _gate: Gate
    _clocks: StateTimeouts[OwnedT]
    _pace: Pace[OwnedT]
    _tally: IntakeCounters

    def _join(self, connection: OwnedT) -> bool:
        """A peer has connected. Whether it may stay."""

    def _leave(self, connection: OwnedT, error: Exception | None) -> None:
        """It is gone; `error`: not by either end's choice."""

    def _start(
        self, connection: OwnedT, buffer: Buffer, view: memoryview
    ) -> tuple[InHandler, Running]:
        """Its request is complete: start a handler, which begins in the next turn of the loop."""

    def _end(self, connection: OwnedT, *, waited: bool) -> None:
        """Its request has left its handler, or never came to one. `waited`: without memory."""

    def _bad_length(self, connection: OwnedT) -> None:
        """It announced a request of no acceptable length: log it, close the connection."""

    def _tls_failed(self, connection: OwnedT, error: ssl.SSLError) -> None:
        """What its peer sent is not TLS, or of an unacceptable kind: log it, close it."""

    def _handler_failed(self, connection: OwnedT, error: BaseException) -> None:
        """Its handler has raised `error`: log it."""


class InHandler(Protocol):
    """The request that a handler has."""

    _buffer: Buffer | None
    """Its memory; None: it was given back."""

    def _give_back(self) -> None:
        """Give its memory back, if it has any."""


class Running(Protocol):
    """The task of a handler."""

    def cancel(self) -> bool:
        """As any task's."""
