"""Request: the argument of an `Intake` handler."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Buffer

    from wheeld_client.intake.connection import Connection


class Request:
    """A request in memory, as passed to a handler.

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
        """Give the memory back before the handler ends; it may go on, but `data` is gone.

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
