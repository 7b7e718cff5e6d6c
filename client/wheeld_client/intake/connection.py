"""Connection: one peer of an `Intake`; reads requests, one at a time, and sends the answers.

The states of reading are in state.py.

Invariants
 1. READY is the only state in which nothing is read. A request that has memory is read to its end,
    or it would hold what others wait for. A peer that is too slow for that is closed (timeouts.py).
 2. Only `_advance` leaves READY, and it asks the gate for memory only when there is no other reason
    to wait: no request of this connection in its handler, no answer that the peer has yet to take,
    no `mute()`, and the request's first bytes are there (a request that is announced but not sent
    costs nothing). Only connections that have asked are tried when memory comes back, so memory
    never undoes a mute.
 3. The next prefix is read in any case, because it needs no memory, but not its body.
 4. A peer that has finished sending takes no answer, unless the intake allows half-closed peers:
    its handler is cancelled. Complete requests are handled anyway, as far as they need not wait.
 5. A buffer has one holder: the connection in BODY, then the `Request`. The last one returns it.
"""

from __future__ import annotations

import select
import socket
import ssl
from asyncio import CancelledError
from typing import TYPE_CHECKING

from wheeld_client.intake.channel import Channel
from wheeld_client.intake.state import BODY, CLOSED, PREFIX, READY

if TYPE_CHECKING:
    from collections.abc import Buffer

    from wheeld_client.intake.owner import InHandler, Owner, Running
    from wheeld_client.intake.timeouts import StateTimeout


class Connection(Channel):
    """A peer of an `Intake`; a handler finds it in `request.connection`."""

    __slots__ = (
        "_address",
        "_admitted",
        "_buffer",
        "_clock",
        "_counted",
        "_first",
        "_hung_up",
        "_last",
        "_muted",
        "_owes",
        "_peer_finished",
        "_prefix",
        "_prefix_view",
        "_request",
        "_size",
        "_skipped",
        "_spoke",
        "_state",
        "_task",
    )
    _intake: Owner[Connection]

    def __init__(self, intake: Owner[Connection], context: ssl.SSLContext | None = None) -> None:
        self._prefix = bytearray(intake._prefix_bytes)
        self._prefix_view = memoryview(self._prefix)
        super().__init__(intake, context, self._prefix_view)
        self._state = PREFIX
        self._size = 0
        self._first = intake._first_bytes
        self._buffer: Buffer | None = None
        self._task: Running | None = None
        self._request: InHandler | None = None
        self._muted = False
        self._last = False  # closes after the answer that is under way
        self._peer_finished = self._hung_up = False
        self._skipped = False  # an answer: the next one would be taken for it
        self._owes = 0  # bytes of an answer that has not been taken
        self._admitted = self._counted = self._spoke = False
        self._address: str | None = None
        self._clock: StateTimeout[Connection] | None = None

    # -- for handlers ---------------------------------------------------------------------------

    @property
    def tls(self) -> ssl.SSLObject | None:
        """The TLS session, with the peer's certificate; None: there is none."""
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
        """Go on after `mute`; other reasons to wait, such as lack of memory, still apply."""
        if self._muted:
            self._muted = False
            self._advance()

    def __repr__(self) -> str:
        return f"<Connection of {self.peer} ({self._state.value})>"

    def close(self) -> None:
        """Close it at once. A handler at work on its request is cancelled."""
        self._intake._gate.withdraw(self)
        super().close()

    # -- beginning and end ----------------------------------------------------------------------

    def _made(self) -> None:
        if self._transport.get_extra_info("socket").family == socket.AF_UNIX:
            self._first = 1  # its sender's buffer may be smaller
        self._admitted = self._intake._join(self)
        if not self._admitted:
            self._state = CLOSED
            self.close()
        elif self._tls is not None:
            self._intake._clocks.handshake.start(self)
        else:
            self._secured()

    def _secured(self) -> None:
        self._intake._clocks.idle.start(self)

    def _lost(self, error: Exception | None) -> None:
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
            self._intake._leave(self, error)

    def _tls_failed(self, error: ssl.SSLError) -> None:
        self._intake._tls_failed(self, error)

    def _retire(self) -> None:
        if self._buffer is not None or self._busy:
            self.close()
            return
        if self._state is not CLOSED:
            self._state = CLOSED
            self._muted = False
            self._intake._gate.withdraw(self)
            self._intake._clocks.stop(self)
        super()._retire()

    def _finish(self) -> None:
        self._last = True
        if not self._busy:
            self._retire()

    # -- reading --------------------------------------------------------------------------------

    def _target(self) -> memoryview:
        return self._view[self._have :] if self._have else self._view

    def _came(self, count: int) -> None:
        self._have += count
        if self._state is PREFIX:
            if self._have == len(self._prefix):
                self._length_is_known()
                self._advance()
                if self._state is READY:
                    if self._clock is self._intake._clocks.idle:
                        self._clock.start(self)  # it waits, from now on
                    self._follow_state()
            elif self._task is None and not self._owes:
                self._intake._clocks.read.go_on(self)
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
            intake._bad_length(self)
        elif unread < size and self._peer_finished:
            self.close()
        elif self._muted:
            intake._clocks.idle.go_on(self)
        elif unread < size and unread < self._first:
            intake._clocks.read.go_on(self)
        elif intake._gate.want(self):
            return
        elif self._state is READY:
            intake._clocks.idle.go_on(self)
        self._watch()

    def _begin(self, buffer: Buffer) -> None:
        """Memory was granted."""
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
            self._intake._clocks.read.go_on(self)
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
        """Ask for news of the peer's end, and, if they are waited for, of arriving bytes."""
        if self._hung_up or self.closed or (self._reading and not self._at_eof):
            return
        waits = self._busy or self._muted or self in self._intake._gate.waiting
        short = self._state is READY and not waits and not self._peer_finished
        self._intake._peers.add(self._fd, self, finished=self._peer_finished, bytes_too=short)

    def _left(self) -> int:
        return self._to_go() if self._buffer is None else self._size - self._have

    # -- handling -------------------------------------------------------------------------------

    def _handle(self) -> None:
        """The request is complete."""
        assert self._buffer is not None
        buffer, view, self._buffer = self._buffer, self._view, None
        self._view = self._prefix_view
        self._have = 0
        self._state = PREFIX
        self._request, self._task = self._intake._start(self, buffer, view)
        if self._peer_gone:  # after its first step: a handler that need not wait is done
            self._loop.call_soon(self._task.cancel)

    def _handled(self, request: InHandler, answer: bytes) -> None:
        """The handler has ended with this answer, framed; empty: with none."""
        if not self._is_over(request) or self._state is CLOSED:
            return
        if answer and not self._skipped:
            self._intake._tally.answers += 1
            if not self._send(answer):
                self._owes = len(answer)
                self._intake._gate.owe(self._owes)
                self._intake._pace.begin(self, self._owes)
                self._intake._clocks.write.start(self)
                return
        if self._state is not CLOSED:
            self._answered()

    def _log_failure(self, request: InHandler, error: BaseException) -> None:
        cancelled = isinstance(error, CancelledError)
        if request is self._request and not (cancelled and (self._peer_gone or self.closed)):
            self._intake._handler_failed(self, error)

    def _failed(self, request: InHandler, *, cancelled: bool) -> None:
        """The handler has failed or was cancelled."""
        if not self._is_over(request) or self._state is CLOSED:
            return
        if cancelled and self._peer_gone:
            self._skipped = True
            self._answered()
        else:
            self._retire()

    def _is_over(self, request: InHandler) -> bool:
        """Take back what a request had. False: already done, the handler was abandoned."""
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

    def _taken(self) -> None:
        if self._owes:
            self._paid()
        self._answered()

    def _answered(self) -> None:
        """The answer is with the peer: on to the next request."""
        if self._last or self._at_eof:
            self._retire()
        elif self._state is PREFIX:
            clocks = self._intake._clocks
            (clocks.read if self._have else clocks.idle).start(self)
        else:
            self._advance()

    def _leave_behind(self) -> None:
        """The handler did not end: take back what it holds. Its answer, if any, is dropped."""
        request, task = self._request, self._task
        assert request is not None
        assert task is not None
        self._is_over(request)
        task.cancel()

    # -- the peer's end ---------------------------------------------------------------------------

    def _ended(self) -> bool:
        self._peer_finished = True
        at_work = self._task is not None
        keep = self._owes > 0 or (at_work and self._intake._half_close)
        if self._state is BODY or self._have > 0 or (at_work and not keep):
            self._intake._tally.peers_lost += 1  # in the middle of a request
        if keep:
            self._watch()
        return keep

    def _peer_event(self, events: int) -> None:
        """From the watch, while nothing is read: the peer finished, vanished, or sent something."""
        if events & select.EPOLLERR:
            self._intake._tally.peers_lost += 1
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
            self._intake._tally.peers_lost += 1
            self.close()
        elif self._task is not None:
            self._task.cancel()
        else:
            self._advance()

    @property
    def _peer_gone(self) -> bool:
        return self._peer_finished and not self._intake._half_close
