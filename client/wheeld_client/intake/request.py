"""Request: the argument of an `Intake` handler; and the task in which the handler runs.

The connection learns of the end in the handler's last step. A done callback of the task would run a
turn of the loop later, and cost a handle for each request; it is used only for the one end that is
not a step: a task that is cancelled before its first.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Buffer

    from wheeld_client.intake.connection import Connection

Handler = Callable[["Request"], Awaitable[bytes | None]]

NAME: Final = "wheeld-request"


class Request:
    """A request in memory; the argument of a handler.

    Attributes
    ----------
    size : int
        Bytes of the request, without its length prefix.
    connection : Connection
        Where it came from.
    """

    __slots__ = ("_begun", "_buffer", "_data", "connection", "size")

    def __init__(self, connection: Connection, buffer: Buffer, data: memoryview) -> None:
        self.connection = connection
        self.size = len(data)
        self._buffer: Buffer | None = buffer
        self._data = data
        self._begun = False  # by its handler

    @property
    def data(self) -> memoryview:
        """The request's bytes, in the pool's buffer. Valid until the handler ends, or `release`.

        Raises
        ------
        ValueError
            The memory was given back.
        """
        if self._buffer is None:
            raise ValueError("the request was released: copy what you need from `data` before that")
        return self._data

    @property
    def released(self) -> bool:
        """Whether the memory was given back."""
        return self._buffer is None

    def release(self) -> None:
        """Release the memory before the handler ends; the handler may continue, but without `data`.

        From now on the request waits: it counts against `max_waiting`, and blocks no other.

        Raises
        ------
        ValueError
            It was already given back.
        """
        if self._buffer is None:
            raise ValueError("the request was already released")
        self._give_back()
        self.connection._intake._gate.wait()

    def _give_back(self) -> None:
        buffer, self._buffer = self._buffer, None
        if buffer is not None:
            self.connection._intake._gate.return_memory(buffer, self.size, self._data)

    def __repr__(self) -> str:
        return f"<Request of {self.size} bytes from {self.connection.peer}>"


class Work(asyncio.Task[None]):
    """The task of one request, made by `start`."""

    request: Request

    def cancel(self, msg: Any | None = None) -> bool:
        if not self.request._begun:
            self.add_done_callback(_cancelled)
        return super().cancel(msg)


def start(request: Request, handler: Handler) -> Work:
    """Start a handler, which begins in the next turn of the loop.

    It does not use the task factory: the connection relies on `Work.cancel`, and on a first step
    that does not run at once.
    """
    connection = request.connection
    # The connection's context, not the running one, which may be the previous handler's.
    context = connection._context.copy()
    work = Work(_run(request, handler), loop=connection._loop, name=NAME, context=context)
    work.request = request
    return work


async def _run(request: Request, handler: Handler) -> None:
    request._begun = True
    connection = request.connection
    try:
        answer = _frame(await handler(request), len(connection._prefix))
    except GeneratorExit:  # the loop is gone
        raise
    except BaseException as error:
        _fail(request, error)
        if isinstance(error, Exception):
            return
        if (task := asyncio.current_task()) is not None:
            task.add_done_callback(_forget)
        raise  # cancelled, or what ends the loop
    else:
        connection._handled(request, answer)


def _fail(request: Request, error: BaseException) -> None:
    connection = request.connection
    connection._log_failure(request, error)  # with the frames
    _forget_frames(error)  # while the request has its memory, which goes back without any view
    connection._failed(request, cancelled=isinstance(error, asyncio.CancelledError))


def _cancelled(task: asyncio.Task[None]) -> None:
    assert isinstance(task, Work)
    if not task.request._begun:
        _fail(task.request, asyncio.CancelledError())


def _forget(task: asyncio.Task[None]) -> None:
    if not task.cancelled():
        task.exception()


def _frame(answer: Any, prefix_bytes: int) -> bytes:
    """The answer with its length; None: nothing. OverflowError: it is too long for the prefix."""
    if type(answer) is bytes:
        return len(answer).to_bytes(prefix_bytes, "big") + answer
    if answer is None:
        return b""
    if not isinstance(answer, (bytes, bytearray, memoryview)):
        raise TypeError(f"the handler returned {type(answer).__name__}: expected bytes or None")
    body = bytes(answer)
    if isinstance(answer, memoryview):
        with suppress(BufferError):
            answer.release()  # it may be part of the request, whose memory goes back now
    return len(body).to_bytes(prefix_bytes, "big") + body


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
