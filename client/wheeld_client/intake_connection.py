"""Connection: one peer of an `Intake`; reads requests, one at a time, and sends the answers.

How far the reading is:

    PREFIX   the length comes, into a few bytes of our own
    READY    the length is known, nothing is allocated: the transport is paused
    BODY     the request comes, straight into the pool's buffer
    CLOSED

Invariants
 1. The transport is paused in READY, and only there. A request that has memory is read to its end,
    whatever happens: else it would hold what others wait for.
 2. Out of READY leads `_advance` only, and it asks the gate for memory only when no other reason
    stands: no request of this connection in its handler, no answer that the peer has yet to take,
    no `mute()`. Only who has asked is tried when memory comes back: it never undoes a mute.
 3. The next prefix is read in any case, for it needs no memory, but not its body.
 4. Whose peer finished takes no answer, unless the intake knows half-closed peers: its handler is
    cancelled. What it had sent completely is handled all the same, as far as that needs no waiting.
 5. A buffer has one holder: the connection in BODY, then the `Request`. Whoever ends, returns it.
"""

from __future__ import annotations

import asyncio
import fcntl
import select
import struct
import termios
import traceback
from contextlib import suppress
from enum import Enum
from typing import TYPE_CHECKING, Any, cast

from wheeld_client.intake_request import Request

if TYPE_CHECKING:
    from collections.abc import Buffer

    from wheeld_client.intake import Intake


class State(Enum):
    """How far the reading of a connection is."""

    PREFIX = "prefix"
    READY = "ready"
    BODY = "body"
    CLOSED = "closed"


class Connection(asyncio.BufferedProtocol):
    """A peer of an `Intake`; a handler finds it in `request.connection`."""

    def __init__(self, intake: Intake) -> None:
        self._intake = intake
        self._state = State.PREFIX
        self._prefix = bytearray(intake._prefix_bytes)
        self._prefix_view = memoryview(self._prefix)
        self._have = 0  # bytes of the prefix, or of the body
        self._size = 0
        self._buffer: Buffer | None = None
        self._view = self._window = self._prefix_view
        self._task: asyncio.Task[Any] | None = None
        self._request: Request | None = None
        self._muted = False
        self._draining = False
        self._last = False  # closes after the answer that is under way
        self._reading = True
        self._peer_finished = False
        self._at_eof = False

    # -- for handlers ---------------------------------------------------------------------------

    @property
    def peer(self) -> Any:
        """The peer's address."""
        return self._transport.get_extra_info("peername")

    @property
    def muted(self) -> bool:
        """Does a `mute()` stand?"""
        return self._muted

    @property
    def closed(self) -> bool:
        """Is it closed?"""
        return self._state is State.CLOSED

    def mute(self) -> None:
        """Read no further request until `unmute`; one that is half read is read to its end."""
        if not self._muted and not self.closed:
            self._muted = True
            self._intake._gate.withdraw(self)

    def unmute(self) -> None:
        """Go on after `mute`; other reasons to wait, as want of memory, still stand."""
        if self._muted:
            self._muted = False
            self._advance()

    def close(self) -> None:
        """Close it at once. A handler at work on its request is cancelled."""
        self._transport.abort()

    def __repr__(self) -> str:
        return f"<Connection of {self.peer} ({self._state.value})>"

    # -- the transport's calls ------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A peer is there."""
        self._transport = cast(asyncio.Transport, transport)
        self._fd: int = transport.get_extra_info("socket").fileno()
        # An answer counts as taken when the kernel has all of it, not when 64 KiB are left.
        self._transport.set_write_buffer_limits(high=0)
        self._intake._join(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next bytes go."""
        if self._state is State.BODY:
            self._window = self._view[self._have :]
        else:
            self._window = self._prefix_view[self._have :]
        return self._window

    def buffer_updated(self, nbytes: int) -> None:
        """Bytes came."""
        if self._state is State.PREFIX:
            if self._have == 0 and not self._busy:
                self._intake._idle.start(self)
            self._have += nbytes
            if self._have == len(self._prefix):
                self._size = int.from_bytes(self._prefix, "big")
                self._state = State.READY
                self._advance()
                self._set_reading()
        else:
            self._have += nbytes
            if self._have == self._size:
                self._handle()

    def eof_received(self) -> bool:
        """The peer sends no more. Does it still wait for an answer?"""
        self._at_eof = self._peer_finished = True
        at_work = self._task is not None
        keep = self._draining or (at_work and self._intake._half_close)
        if self._state is State.BODY or self._have > 0 or (at_work and not keep):
            self._intake._peers_lost += 1  # in the middle of a request
        if keep:
            self._intake._peers.add(self._fd, self, finished=True)
        return keep

    def pause_writing(self) -> None:
        """The peer is slow to take the answer."""
        self._draining = True

    def resume_writing(self) -> None:
        """The peer has taken it."""
        # Not at once: a transport that is closed in here loses its connection twice (asyncio).
        asyncio.get_running_loop().call_soon(self._drained)

    def connection_lost(self, error: Exception | None) -> None:
        """The connection ended, for whatever reason."""
        self._state = State.CLOSED
        self._muted = False
        if self._buffer is not None:
            buffer, self._buffer = self._buffer, None
            self._window = self._prefix_view
            self._intake._gate.return_memory(buffer, self._size, self._view)
            self._intake._end(waited=False)
        if self._task is not None:
            self._task.cancel()
        self._intake._leave(self, error)

    # -- reading --------------------------------------------------------------------------------

    @property
    def _busy(self) -> bool:
        """Is a request in its handler, or its answer not yet with the peer?"""
        return self._task is not None or self._draining

    def _advance(self) -> None:
        """If the length is known: ask for memory, unless a reason stands."""
        if self._state is not State.READY or self._busy or self._muted:
            return
        if not 1 <= self._size <= self._intake.largest:
            self._intake._bad_length(self)
        elif self._peer_finished and not self._complete_in_socket():
            self.close()
        else:
            self._intake._gate.want(self)

    def _begin(self, buffer: Buffer) -> None:
        """Memory was granted."""
        self._buffer = buffer
        self._view = memoryview(buffer)
        self._have = 0
        self._state = State.BODY
        self._intake._idle.start(self)
        self._set_reading()

    def _set_reading(self) -> None:
        """Pause or resume the transport as invariant 1 says; a paused one is watched."""
        reading = self._state is not State.READY
        if reading == self._reading or self._at_eof or self.closed:
            return
        self._reading = reading
        if reading:
            self._intake._peers.remove(self._fd)
            self._transport.resume_reading()
        else:
            self._transport.pause_reading()
            self._intake._peers.add(self._fd, self, finished=self._peer_finished)

    # -- handling -------------------------------------------------------------------------------

    def _handle(self) -> None:
        """The request is complete."""
        assert self._buffer is not None
        self._window = self._prefix_view  # not released: uvloop looks at it until we return
        self._request = Request(self, self._buffer, self._view)
        self._buffer = None
        self._have = 0
        self._state = State.PREFIX
        self._intake._idle.stop(self)
        self._task = self._intake._start(self._request)
        self._task.add_done_callback(self._handled)
        if self._peer_gone:  # after its first step: what needs no waiting is done
            asyncio.get_running_loop().call_soon(self._task.cancel)

    def _handled(self, task: asyncio.Task[Any]) -> None:
        """The handler has ended, in one way or another."""
        request = self._request
        assert request is not None
        self._task = self._request = None
        frame = self._outcome(task)
        waited = request.released
        request._give_back()
        self._intake._end(waited=waited)
        if self.closed:
            return
        if frame is None:
            self.close()
            return
        if frame:
            self._intake._answers += 1
            self._transport.write(frame)
        if self._draining:
            self._intake._idle.start(self)
        else:
            self._answered()

    def _outcome(self, task: asyncio.Task[Any]) -> bytes | None:
        """The framed answer (empty: there is none), or None after a failure, which is logged."""
        try:
            return self._frame(task.result())
        except asyncio.CancelledError as error:
            _forget_frames(error)
            if self._peer_gone:
                return b""
            if not self.closed:
                self._intake._handler_failed(self, error)
        except BaseException as error:
            self._intake._handler_failed(self, error)
            _forget_frames(error)
        return None

    def _frame(self, answer: Any) -> bytes:
        if answer is None:
            return b""
        if not isinstance(answer, bytes | bytearray | memoryview):
            kind = type(answer).__name__
            raise TypeError(f"the handler returned {kind}: expected bytes or None")
        body = bytes(answer)
        if isinstance(answer, memoryview):
            with suppress(BufferError):
                answer.release()  # it may be a part of the request, whose memory goes back now
        return len(body).to_bytes(len(self._prefix), "big") + body

    def _drained(self) -> None:
        self._draining = False
        if not self.closed:
            self._answered()

    def _answered(self) -> None:
        """The answer is with the peer: on to the next request."""
        if self._last or self._at_eof:
            self.close()
        else:
            self._intake._idle.start(self)
            self._advance()

    def _finish(self) -> None:
        """Close as soon as no request is in its handler, and no answer on its way."""
        self._last = True
        if not self._busy:
            self.close()

    # -- the peer's end, while nothing is read ----------------------------------------------------

    def _peer_event(self, events: int) -> None:
        """From the watch: the peer finished, or vanished."""
        if events & select.EPOLLERR:
            self._intake._peers_lost += 1
            self.close()
            return
        self._peer_finished = True
        if events & select.EPOLLHUP:
            self._intake._peers.remove(self._fd)  # there is nothing more to learn
        else:
            self._intake._peers.add(self._fd, self, finished=True)
        if self._draining or (self._task is not None and self._intake._half_close):
            return
        if not self._complete_in_socket():
            self._intake._peers_lost += 1
            self.close()
        elif self._task is not None:
            self._task.cancel()

    @property
    def _peer_gone(self) -> bool:
        """Has the peer finished, and takes no answer any more?"""
        return self._peer_finished and not self._intake._half_close

    def _complete_in_socket(self) -> bool:
        """Has the peer sent all of the request that waits?"""
        waiting = struct.unpack("i", fcntl.ioctl(self._fd, termios.FIONREAD, bytes(4)))[0]
        return bool(waiting >= self._size)


def _forget_frames(error: BaseException) -> None:
    """Drop the locals of a failed handler: parts of the request's memory may be among them."""
    seen: set[int] = set()
    queue: list[BaseException | None] = [error]
    while queue:
        one = queue.pop()
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            traceback.clear_frames(one.__traceback__)
            queue += [one.__cause__, one.__context__]
