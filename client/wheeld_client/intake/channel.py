"""Channel: the bytes of one peer of an `Intake`, plain or under TLS.

Invariants
 1. Nothing is read unless it is wanted: `_set_reading(False)` leaves bytes in the kernel, and TLS
    holds at most what one read has brought in, which `_pump` handles before more is read.
 2. `_taken` is called when the kernel has an answer's last byte, not when 64 KiB are left.
 3. Our closing never cuts off an answer. Closing a socket with unread bytes makes the
    kernel send a reset and drop what it has not delivered. So `_retire` shuts down sending,
    discards what arrives until the peer has everything, bounded in time, and then closes; and
    `close` discards what has arrived.
 4. `_lost` is called once, whichever side ended it.
"""

from __future__ import annotations

import asyncio
import contextvars
import fcntl
import os
import ssl
import termios
from abc import ABC, abstractmethod
from array import array
from typing import TYPE_CHECKING, Any, Final, cast

from wheeld_client.intake.tls import Tls

if TYPE_CHECKING:
    from wheeld_client.intake.owner import ChannelOwner

SCRATCH: Final = 32 << 10
"""Bytes that are read at a time for TLS, or to be discarded."""
LINGER: Final = 5.0
"""Seconds that a peer has to take its last answers before its connection is closed."""
LINGER_LOOK: Final = 0.02
DISCARDS: Final = 256
"""Times `SCRATCH`: more than a receive buffer holds; it ends even a peer that keeps sending."""


NOTHING: Final = memoryview(b"")
_number = array("i", [0])  # where the kernel puts what it is asked for


class Channel(asyncio.BufferedProtocol, ABC):
    """Reads on request, writes to the last byte, closes without loss."""

    __slots__ = (
        "__dict__",  # for what a handler wants to keep with its peer
        "__weakref__",
        "_answering",
        "_at_eof",
        "_context",
        "_draining",
        "_fd",
        "_gone",
        "_have",
        "_intake",
        "_lingering",
        "_loop",
        "_pumping",
        "_reading",
        "_tls",
        "_transport",
        "_unsent",
        "_view",
        "_wire_ended",
    )
    _transport: asyncio.Transport
    _fd: int
    _loop: asyncio.AbstractEventLoop
    _context: contextvars.Context

    def __init__(
        self, intake: ChannelOwner, context: ssl.SSLContext | None, first: memoryview
    ) -> None:
        self._intake = intake
        self._tls = None if context is None else Tls(context)
        self._view = first  # where bytes go, after those already there
        self._have = 0
        self._reading = True
        self._pumping = False
        self._at_eof = False  # all that the peer sent was read
        self._wire_ended = False
        self._draining = False  # something that was written is not with the kernel
        self._answering = False
        self._unsent = NOTHING  # of an answer, not yet encrypted
        self._lingering = False
        self._gone = False

    # -- events, for the connection to handle ---------------------------------------------------

    @abstractmethod
    def _made(self) -> None:
        """A peer has connected."""

    @abstractmethod
    def _secured(self) -> None:
        """The handshake of TLS is done."""

    @abstractmethod
    def _came(self, count: int) -> None:
        """This many bytes were read into their place."""

    @abstractmethod
    def _ended(self) -> bool:
        """The peer has finished sending. Whether the connection is kept."""

    @abstractmethod
    def _taken(self) -> None:
        """The kernel has all that was written."""

    @abstractmethod
    def _lost(self, error: Exception | None) -> None:
        """The connection has ended; `error`: not by either end's choice."""

    @abstractmethod
    def _tls_failed(self, error: ssl.SSLError) -> None:
        """What the peer sent is not TLS, or of an unacceptable kind."""

    # -- the transport's calls -------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A peer has connected."""
        self._transport = cast(asyncio.Transport, transport)
        self._loop = asyncio.get_running_loop()
        self._context = contextvars.copy_context()
        self._fd = transport.get_extra_info("socket").fileno()
        self._transport.set_write_buffer_limits(high=0)
        self._made()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next bytes go."""
        if self._tls is None and not self._lingering:
            return self._view[self._have :] if self._have else self._view
        return self._intake._scratch

    def buffer_updated(self, nbytes: int) -> None:
        """Bytes have arrived."""
        if self._lingering:
            return
        if self._tls is None:
            self._came(nbytes)
        else:
            self._tls.feed(self._intake._scratch[:nbytes])
            self._pump()

    def eof_received(self) -> bool:
        """The peer has finished sending."""
        self._wire_ended = True
        if self._lingering:
            return False
        if self._tls is None:
            self._at_eof = True
            return self._ended()
        self._pump()  # if it was paused before the end, it goes on later
        return not self._transport.is_closing()

    def pause_writing(self) -> None:
        """The peer is slow to take the answer."""
        self._draining = True

    def resume_writing(self) -> None:
        """The peer has taken it."""
        # Not at once: a transport that is closed in here loses its connection twice (asyncio).
        self._loop.call_soon(self._drained)

    def connection_lost(self, error: Exception | None) -> None:
        """The connection ended, for any reason."""
        if not self._gone:
            self._gone = True
            self._unsent = NOTHING
            self._lost(error)

    # -- reading -----------------------------------------------------------------------------------

    def _set_reading(self, reading: bool) -> bool:
        """Read, or leave the bytes in the kernel. True: this is a change."""
        if reading == self._reading or self._at_eof or self._gone or self._lingering:
            return False
        self._reading = reading
        if not reading:
            self._transport.pause_reading()
            return True
        if not self._wire_ended:
            self._transport.resume_reading()
        if self._tls is not None and not self._pumping:
            self._loop.call_soon(self._pump)
        return True

    def _pump(self) -> None:
        """Take what arrived through TLS, as far as it is wanted."""
        if self._tls is None or self._pumping or self._at_eof or self._lingering or self._gone:
            return
        self._pumping = True
        try:
            if not self._tls.secure:
                if not self._tls.handshake():
                    if self._wire_ended:
                        raise ssl.SSLError("the peer closed the connection during the handshake")
                    return
                self._secured()
            self._pump_plain(self._tls)
        except ssl.SSLError as error:
            self._flush()  # the alert
            self._tls_failed(error)
        finally:
            self._pumping = False
            self._flush()

    def _pump_plain(self, tls: Tls) -> None:
        while self._reading and not self._transport.is_closing() and not self._lingering:
            count = tls.read(self._view[self._have :])
            if count:
                self._came(count)
            elif count == 0 or self._wire_ended:
                self._at_eof = True
                if not self._ended():
                    self._transport.close()
                elif not self._wire_ended:
                    self._transport.pause_reading()
                return
            else:
                return

    def _unread(self) -> int:
        fcntl.ioctl(self._fd, termios.FIONREAD, _number)
        return _number[0] if self._tls is None else _number[0] + self._tls.pending

    def _read_now(self, *views: memoryview) -> int:
        """Read what has already arrived, without a turn of the loop. 0 under TLS: see `_pump`."""
        if self._tls is not None:
            return 0
        try:
            return os.readv(self._fd, views)
        except OSError:  # the transport will report it
            return 0

    # -- writing -----------------------------------------------------------------------------------

    def _send(self, data: bytes) -> bool:
        """Write an answer. True: the kernel has all of it; else `_taken` follows."""
        self._answering = True
        if self._tls is None:
            self._transport.write(data)
        else:
            self._unsent = memoryview(data)
            self._push(self._tls)
        self._answering = self._draining
        return not self._draining

    def _push(self, tls: Tls) -> None:
        """Encrypt and write as much as the peer takes."""
        try:
            while self._unsent and not self._draining and not self._transport.is_closing():
                self._unsent = self._unsent[tls.write(self._unsent) :]
                self._flush()
        except ssl.SSLError as error:
            self._tls_failed(error)
        if not self._unsent:
            self._unsent = NOTHING  # an empty part of the answer keeps all of it

    def _flush(self) -> None:
        """Send pending TLS data."""
        if self._tls is not None and not self._gone and not self._transport.is_closing():
            data = self._tls.outgoing()
            if data and not self._lingering:
                self._transport.write(data)

    def _drained(self) -> None:
        self._draining = False
        if self._gone or self._lingering:
            return
        if self._unsent and self._tls is not None:
            self._push(self._tls)
        if self._answering and not self._draining:
            self._answering = False
            self._taken()

    def _to_go(self) -> int:
        return len(self._unsent) + self._transport.get_write_buffer_size()

    # -- the end -----------------------------------------------------------------------------------

    def close(self) -> None:
        """Close it at once. A handler at work on its request is cancelled."""
        if not self._gone and not self._transport.is_closing():
            self._discard()
        self._transport.abort()

    def _retire(self) -> None:
        """Send nothing more: close it as soon as the peer has what it was sent."""
        if self._gone or self._lingering or self._transport.is_closing():
            return
        if self._tls is not None and self._tls.secure:
            self._tls.close()
            self._flush()
        if self._wire_ended or (self._delivered() and not self._unread()):
            self.close()
            return
        self._lingering = True
        self._intake._peers.remove(self._fd)
        try:
            self._transport.write_eof()
        except OSError:  # the peer was faster
            self.close()
            return
        self._transport.resume_reading()
        self._linger(self._loop.time() + LINGER)

    def _linger(self, until: float) -> None:
        if self._gone or self._transport.is_closing():
            return
        if self._delivered() or self._loop.time() >= until:
            self.close()
        else:
            self._loop.call_later(LINGER_LOOK, self._linger, until)

    def _delivered(self) -> bool:
        """Whether the peer's kernel has everything that was written."""
        if self._draining:
            return False
        fcntl.ioctl(self._fd, termios.TIOCOUTQ, _number)
        return _number[0] == 0

    def _discard(self) -> None:
        """Read what arrived, so that closing does not reset the connection."""
        try:
            for _ in range(DISCARDS):
                if not os.read(self._fd, SCRATCH):
                    return
        except OSError:
            return  # nothing is left, or no peer

    @property
    def peer(self) -> Any:
        """The peer's address."""
        return self._transport.get_extra_info("peername")
