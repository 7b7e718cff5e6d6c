"""Connection: one peer of an `Intake`; reads requests, one at a time, and sends the answers.

Its bytes are plain or under TLS; `State` names what is being read.

Invariants
 1. READY is the only state in which nothing is read. A request that has memory is read to its end;
    otherwise it would hold memory that others wait for. A peer that is too slow for that is closed
    (gate.py).
 2. Only `_advance` leaves READY, and it asks the gate for memory only when there is no other reason
    to wait: no request of this connection is in its handler, the peer has taken all answers, there
    is no `mute()`, and the request's first bytes have arrived (a request that is announced but not
    sent costs nothing). Only connections that have asked are tried when memory comes back, so
    memory never undoes a mute.
 3. The next prefix is read in any case, because it needs no memory, but not its body.
 4. A peer that has finished sending takes no answer, unless the intake allows half-closed peers:
    its handler is cancelled. Complete requests are handled anyway, unless they have to wait. 5. A
 buffer has one holder: the connection in BODY, then the `Request`. The last one returns it.
 6. While nothing is read the bytes stay in the kernel, and TLS holds at most what one read has
    brought in, which `_pump` handles before more is read.
 7. An answer is taken when the kernel has its last byte, not when 64 KiB are left.
 8. Closing never cuts off an answer. Closing a socket with unread bytes makes the kernel send a
    reset and drop what it has not delivered. So `_retire` shuts down sending, discards what arrives
    until the peer has everything, bounded in time, and then closes; `close` discards what has
    arrived.
"""

from __future__ import annotations

import asyncio
import contextvars
import fcntl
import logging
import os
import select
import socket
import ssl
import termios
from array import array
from contextlib import suppress
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, cast

from wheeld_client.intake.request import Request, Work, start

if TYPE_CHECKING:
    from collections.abc import Buffer

    from wheeld_client.intake.gate import StateTimeout
    from wheeld_client.intake.server import Intake

log = logging.getLogger("wheeld")

SCRATCH: Final = 32 << 10
"""Bytes that are read at a time for TLS, or to be discarded."""
LINGER: Final = 5.0
"""Seconds that a peer has to take its last answers before its connection is closed."""
LINGER_LOOK: Final = 0.02
DISCARDS: Final = 256
"""Times `SCRATCH`: more than a receive buffer holds; it ends even a peer that keeps sending."""
RECORD: Final = 16 << 10
"""Bytes of the largest TLS record, the unit of encryption."""
NOTHING: Final = memoryview(b"")
_number = array("i", [0])  # where the kernel puts what it is asked for


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


class Tls:
    """The server side of TLS for one connection, between encrypted and plain bytes; `secure`: the
    handshake is over.

    It works in memory: the connection feeds it bytes that arrived and sends bytes that it returns.
    So the connection decides how much is read, and when. An event loop's own TLS does not allow
    that: it keeps reading while it is paused, and allocates 256 KiB per connection.
    """

    def __init__(self, context: ssl.SSLContext) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.session = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self.secure = False

    def feed(self, data: memoryview) -> None:
        self._incoming.write(data)

    def outgoing(self) -> bytes:
        return self._outgoing.read()

    @property
    def pending(self) -> int:
        """Bytes that arrived but were not read: decrypted ones, and encrypted ones with
        overhead."""
        return self._incoming.pending + self.session.pending()

    def handshake(self) -> bool:
        """Continue the handshake. Whether it is complete."""
        try:
            self.session.do_handshake()
        except ssl.SSLWantReadError:
            return False
        self.secure = True
        return True

    def read(self, into: memoryview) -> int | None:
        """Read plain bytes; returns their number. 0: the peer has ended; None: more must arrive
        first."""
        try:
            # typeshed knows only the form that gives bytes
            return self.session.read(len(into), into)  # type: ignore[return-value]
        except ssl.SSLWantReadError:
            return None
        except ssl.SSLZeroReturnError:
            return 0

    def write(self, data: memoryview) -> int:
        """Encrypt the first bytes; returns how many."""
        return self.session.write(data[:RECORD])

    def close(self) -> None:
        with suppress(ssl.SSLError):
            self.session.unwrap()


class Connection:
    """A peer of an `Intake`; a handler finds it in `request.connection`."""

    __slots__ = (
        "__dict__",  # for what a handler wants to keep with its peer
        "__weakref__",
        "_address",
        "_admitted",
        "_answering",
        "_at_eof",
        "_buffer",
        "_clock",
        "_context",
        "_counted",
        "_draining",
        "_fd",
        "_first",
        "_gone",
        "_have",
        "_hung_up",
        "_intake",
        "_last",
        "_lingering",
        "_loop",
        "_muted",
        "_owes",
        "_peer_finished",
        "_prefix",
        "_prefix_view",
        "_pumping",
        "_reading",
        "_request",
        "_size",
        "_skipped",
        "_spoke",
        "_state",
        "_task",
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

    def __init__(self, intake: Intake, context: ssl.SSLContext | None = None) -> None:
        self._intake = intake
        self._tls = None if context is None else Tls(context)
        self._prefix = bytearray(intake._prefix_bytes)
        self._prefix_view = memoryview(self._prefix)
        self._view = self._prefix_view  # where bytes go, after those already there
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
        self._state = PREFIX
        self._size = 0
        self._first = intake._first_bytes
        self._buffer: Buffer | None = None
        self._task: Work | None = None
        self._request: Request | None = None
        self._muted = False
        self._last = False  # closes after the answer that is under way
        self._peer_finished = self._hung_up = False
        self._skipped = False  # an answer: the next one would be taken for it
        self._owes = 0  # bytes of an answer that has not been taken
        self._admitted = self._counted = self._spoke = False
        self._address: str | None = None
        self._clock: StateTimeout | None = None

    # -- for handlers ---------------------------------------------------------------------------

    @property
    def peer(self) -> Any:
        """The peer's address."""
        return self._transport.get_extra_info("peername")

    @property
    def tls(self) -> ssl.SSLObject | None:
        """The TLS session, with the peer's certificate; None without TLS."""
        return None if self._tls is None else self._tls.session

    @property
    def muted(self) -> bool:
        """Whether it was muted by `mute()`."""
        return self._muted

    @property
    def closed(self) -> bool:
        """Whether it is closed."""
        return self._state is CLOSED

    def mute(self) -> None:
        """Read no further request until `unmute`; one that is half read is read to its end."""
        if not self._muted and not self.closed:
            self._muted = True
            self._intake._gate.withdraw(self)
            self._advance()

    def unmute(self) -> None:
        """Continue after `mute`; other reasons to wait, such as lack of memory, still apply."""
        if self._muted:
            self._muted = False
            self._advance()

    def __repr__(self) -> str:
        return f"<Connection of {self.peer} ({self._state.value})>"

    def close(self) -> None:
        """Close it at once. A handler at work on its request is cancelled."""
        self._intake._gate.withdraw(self)
        if not self._gone and not self._transport.is_closing():
            self._discard()
        self._transport.abort()

    def _progress(self) -> str:
        """Why it waits, for the log."""
        if self._tls is not None and not self._tls.secure:
            return "in the TLS handshake"
        if self._owes:
            return f"{self._to_go()} of {self._owes} bytes of its answer are unread"
        if self._state is PREFIX:
            return f"it sent {self._have} bytes of a length"
        have = self._have if self._state is BODY else self._unread()
        return f"it sent {have} of {self._size} bytes of a request"

    # -- the transport's calls -------------------------------------------------------------------

    def _connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._loop = asyncio.get_running_loop()
        self._context = contextvars.copy_context()
        self._fd = transport.get_extra_info("socket").fileno()
        self._transport.set_write_buffer_limits(high=0)
        if self._transport.get_extra_info("socket").family == socket.AF_UNIX:
            self._first = 1  # its sender's buffer may be smaller
        self._admitted = self._intake._join(self)
        if not self._admitted:
            self._state = CLOSED
            self.close()
        elif self._tls is not None:
            self._intake._handshake.start(self)
        else:
            self._intake._idle.start(self)

    def _get_buffer(self, sizehint: int) -> memoryview:
        if self._tls is None and not self._lingering:
            return self._view[self._have :] if self._have else self._view
        return self._intake._scratch

    def _buffer_updated(self, nbytes: int) -> None:
        if self._lingering:
            return
        if self._tls is None:
            self._came(nbytes)
        else:
            self._tls.feed(self._intake._scratch[:nbytes])
            self._pump()

    def _eof_received(self) -> bool:
        self._wire_ended = True
        if self._lingering:
            return False
        if self._tls is None:
            self._at_eof = True
            return self._ended()
        self._pump()  # if it was paused before the end, it goes on later
        return not self._transport.is_closing()

    def _pause_writing(self) -> None:
        self._draining = True

    def _resume_writing(self) -> None:
        # Not at once: a transport that is closed in here loses its connection twice (asyncio).
        self._loop.call_soon(self._drained)

    def _connection_lost(self, exc: Exception | None) -> None:
        if not self._gone:
            self._gone = True
            self._unsent = NOTHING
            self._state = CLOSED
            self._muted = False
            if self._buffer is not None:
                buffer, self._buffer = self._buffer, None
                self._intake._pace.end(self)
                self._intake._gate.return_memory(buffer, self._size, self._view)
                self._intake._end(self, waited=False)
            if self._owes:
                self._paid()
            if self._task is not None:
                self._task.cancel()
            if self._admitted:
                self._intake._leave(self, exc)

    # -- bytes in --------------------------------------------------------------------------------

    def _set_reading(self, reading: bool) -> bool:
        """Start or stop reading; while stopped, bytes stay in the kernel. Returns whether that
        changed."""
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
        """Read bytes that arrived through TLS, as many as are wanted."""
        if self._tls is None or self._pumping or self._at_eof or self._lingering or self._gone:
            return
        self._pumping = True
        try:
            if not self._tls.secure:
                if not self._tls.handshake():
                    if self._wire_ended:
                        raise ssl.SSLError("the peer closed the connection during the handshake")
                    return
                self._intake._idle.start(self)
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
        """Read bytes that have already arrived, without a turn of the loop. Returns 0 under TLS:
        see `_pump`."""
        if self._tls is not None:
            return 0
        try:
            return os.readv(self._fd, views)
        except OSError:  # the transport will report it
            return 0

    def _tls_failed(self, error: ssl.SSLError) -> None:
        self._intake._counts["tls_errors"] += 1
        self._intake._warn("intake: %s: TLS failed: %s; closed", self, error)
        self._retire()

    # -- reading --------------------------------------------------------------------------------

    def _came(self, count: int) -> None:
        self._have += count
        if self._state is PREFIX:
            if self._have == len(self._prefix):
                self._length_is_known()
                self._advance()
                if self._state is READY:
                    if self._clock is self._intake._idle:
                        self._clock.start(self)  # it waits, from now on
                    self._follow_state()
            elif self._task is None and not self._owes:
                self._intake._read.go_on(self)
        elif self._state is BODY:
            if self._have == self._size:
                self._intake._pace.end(self)
                self._handle()
            else:
                self._intake._pace.begin(self, self._size)

    def _length_is_known(self) -> None:
        self._size = int.from_bytes(self._prefix, "big")
        self._state = READY

    @property
    def _busy(self) -> bool:
        return self._task is not None or self._owes > 0

    def _advance(self) -> None:
        """If the length is known, ask for memory, unless there is a reason to wait."""
        if self._state is not READY or self._busy or self._transport.is_closing():
            return
        intake, size, unread = self._intake, self._size, self._unread()
        if not 1 <= size <= intake.largest:
            intake._counts["bad_lengths"] += 1
            log.warning(
                "intake: %s announced a request of %d bytes, expected 1 to %d; closed",
                self.peer,
                size,
                intake.largest,
            )
            self._retire()
        elif unread < size and self._peer_finished:
            self.close()
        elif self._muted:
            intake._idle.go_on(self)
        elif unread < size and unread < self._first:
            intake._read.go_on(self)
        elif intake._gate.acquire(self):
            return
        elif self._state is READY:
            intake._idle.go_on(self)
        self._watch()

    def _begin(self, buffer: Buffer) -> None:
        self._buffer = buffer
        self._view = memoryview(buffer)
        self._have = 0
        self._state = BODY
        count = self._read_now(self._view, self._prefix_view)
        if count >= self._size:  # with the next length, or a part of it
            self._handle()
            self._have = count - self._size
            if self._have == len(self._prefix):
                self._length_is_known()
        else:
            self._have = count
            self._intake._read.go_on(self)
            if count:
                self._intake._pace.begin(self, self._size)
        self._follow_state()

    def _follow_state(self) -> None:
        """Read or not, by invariant 1; a connection that is not read is watched."""
        if self._state is READY:
            self._set_reading(False)
            self._watch()
        elif self._set_reading(True):
            self._intake._peers.remove(self._fd)

    def _watch(self) -> None:
        """Have the watch report the peer's end and, if this connection waits for bytes, their
        arrival."""
        if self._hung_up or self.closed or (self._reading and not self._at_eof):
            return
        waits = self._busy or self._muted or self in self._intake._gate.waiting
        short = self._state is READY and not waits and not self._peer_finished
        self._intake._peers.add(self._fd, self, finished=self._peer_finished, bytes_too=short)

    def _left(self) -> int:
        return self._to_go() if self._buffer is None else self._size - self._have

    # -- handling -------------------------------------------------------------------------------

    def _handle(self) -> None:
        assert self._buffer is not None
        buffer, view, self._buffer = self._buffer, self._view, None
        self._view = self._prefix_view
        self._have = 0
        self._state = PREFIX
        intake = self._intake
        intake._counts["requests"] += 1
        intake._at_work.add(self)
        intake._stop_timeout(self)
        if not self._spoke:
            self._spoke = True
            intake._limits.spoke(self)
        self._request = Request(self, buffer, view)
        self._task = start(self._request, intake._handler)
        if self._peer_gone:  # after its first step: a handler that need not wait is done
            self._loop.call_soon(self._task.cancel)

    def _handled(self, request: Request, answer: bytes) -> None:
        """The handler has ended with this framed answer; empty: with no answer."""
        if not self._is_over(request) or self._state is CLOSED:
            return
        if answer and not self._skipped:
            self._intake._counts["answers"] += 1
            if not self._send(answer):
                self._owes = len(answer)
                self._intake._gate.owe(self._owes)
                self._intake._pace.begin(self, self._owes)
                self._intake._write.start(self)
                return
        if self._state is not CLOSED:
            self._answered()

    def _log_failure(self, request: Request, error: BaseException) -> None:
        cancelled = isinstance(error, asyncio.CancelledError)
        if request is self._request and not (cancelled and (self._peer_gone or self.closed)):
            self._intake._counts["handler_errors"] += 1
            log.error("intake: a handler failed; %s is closed", self.peer, exc_info=error)

    def _failed(self, request: Request, *, cancelled: bool) -> None:
        if not self._is_over(request) or self._state is CLOSED:
            return
        if cancelled and self._peer_gone:
            self._skipped = True
            self._answered()
        else:
            self._retire()

    def _is_over(self, request: Request) -> bool:
        """Reclaim the memory of a request. False: that was already done, because the handler was
        abandoned."""
        if request is not self._request:
            return False
        self._task = self._request = None
        waited = request._buffer is None
        request._give_back()
        self._intake._end(self, waited=waited)
        return True

    def _paid(self) -> None:
        owed, self._owes = self._owes, 0
        self._intake._pace.end(self)
        self._intake._gate.owe(-owed)

    def _answered(self) -> None:
        """The answer is with the peer: on to the next request."""
        if self._last or self._at_eof:
            self._retire()
        elif self._state is PREFIX:
            (self._intake._read if self._have else self._intake._idle).start(self)
        else:
            self._advance()

    def _leave_behind(self) -> None:
        """The handler did not end: reclaim its memory. Its answer, if any, is dropped."""
        request, task = self._request, self._task
        assert request is not None
        assert task is not None
        self._is_over(request)
        task.cancel()

    # -- bytes out ---------------------------------------------------------------------------------

    def _send(self, data: bytes) -> bool:
        """Write an answer. True: the kernel has taken all of it; otherwise `_drained` continues."""
        self._answering = True
        if self._tls is None:
            self._transport.write(data)
        else:
            self._unsent = memoryview(data)
            self._push(self._tls)
        self._answering = self._draining
        return not self._draining

    def _push(self, tls: Tls) -> None:
        try:
            while self._unsent and not self._draining and not self._transport.is_closing():
                self._unsent = self._unsent[tls.write(self._unsent) :]
                self._flush()
        except ssl.SSLError as error:
            self._tls_failed(error)
        if not self._unsent:
            self._unsent = NOTHING  # an empty part of the answer keeps all of it

    def _flush(self) -> None:
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
            if self._owes:
                self._paid()
            self._answered()

    def _to_go(self) -> int:
        return len(self._unsent) + self._transport.get_write_buffer_size()

    # -- the peer's end ---------------------------------------------------------------------------

    def _ended(self) -> bool:
        self._peer_finished = True
        at_work = self._task is not None
        keep = self._owes > 0 or (at_work and self._intake._half_close)
        if self._state is BODY or self._have > 0 or (at_work and not keep):
            self._intake._counts["peers_lost"] += 1  # in the middle of a request
        if keep:
            self._watch()
        return keep

    def _peer_event(self, events: int) -> None:
        """Called by the watch while nothing is read: the peer finished, vanished, or sent
        something."""
        if events & select.EPOLLERR:
            self._intake._counts["peers_lost"] += 1
            self.close()
            return
        if events & (select.EPOLLRDHUP | select.EPOLLHUP):
            self._peer_finished = True
            if events & select.EPOLLHUP:
                self._hung_up = True  # nothing more to find out
                self._intake._peers.remove(self._fd)
            else:
                self._watch()
            self._peer_ends()
        elif events & select.EPOLLIN:
            self._advance()

    def _peer_ends(self) -> None:
        if self._owes or (self._task is not None and self._intake._half_close):
            return
        if self._state is not READY or self._unread() < self._size:
            self._intake._counts["peers_lost"] += 1
            self.close()
        elif self._task is not None:
            self._task.cancel()
        else:
            self._advance()

    @property
    def _peer_gone(self) -> bool:
        return self._peer_finished and not self._intake._half_close

    # -- the end ----------------------------------------------------------------------------------

    def _retire(self) -> None:
        """Send nothing more, and close the connection once the peer has everything that it was
        sent."""
        if self._buffer is not None or self._busy:
            self.close()
            return
        if self._state is not CLOSED:
            self._state = CLOSED
            self._muted = False
            self._intake._gate.withdraw(self)
            self._intake._stop_timeout(self)
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

    def _finish(self) -> None:
        self._last = True
        if not self._busy:
            self._retire()

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
        """Discard bytes that arrived, so that closing does not reset the connection."""
        try:
            for _ in range(DISCARDS):
                if not os.read(self._fd, SCRATCH):
                    return
        except OSError:
            return  # nothing is left, or no peer


class WireConnection(Connection, asyncio.BufferedProtocol):
    """The methods that a transport calls; programs have no use for them."""

    __slots__ = ()

    connection_made = Connection._connection_made
    get_buffer = Connection._get_buffer
    buffer_updated = Connection._buffer_updated
    eof_received = Connection._eof_received
    pause_writing = Connection._pause_writing
    resume_writing = Connection._resume_writing
    connection_lost = Connection._connection_lost
