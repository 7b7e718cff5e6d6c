"""Changing: conditions that are being made true by a worker that may be killed meanwhile.

A note is in the worker's row of the daemon's memory. A client that moves to the next daemon
(renewal.py) has another row there: it writes the notes of its open blocks again.
"""

from __future__ import annotations

from contextlib import suppress
from types import TracebackType
from typing import Any, Protocol

from wheeld_client.timers.timers import Timers
from wheeld_core.errors import WheelError


class Noting(Protocol):
    """What a block needs of its purgatory."""

    timers: Timers

    def _change(self, key: Any, /) -> tuple[int, int]: ...

    def _done(self, place: int, word: int, /) -> None: ...

    def check_and_complete_many(self, keys: tuple[Any, ...], /) -> int:
        """Check the keys; how many operations that completed."""


class Changing:
    """The block of `Purgatory.changing`, for a single `with`."""

    def __init__(self, purgatory: Noting, keys: tuple[Any, ...]) -> None:
        self._purgatory, self._keys = purgatory, keys
        self._notes: list[tuple[int, int]] = []
        self._over = False
        self.completed = 0
        """How many operations of this worker the block's end completed; 0 if a check has raised."""

    def __enter__(self) -> Changing:
        if self._notes:
            raise RuntimeError("this block was already entered: call changing() for each block")
        self._over = False
        self._purgatory.timers._changing.add(self)  # first: the client may move from here on
        try:
            self._note()
        except BaseException:
            self._forget()
            raise
        return self

    def _note(self) -> None:
        for key in self._keys:
            self._notes.append(self._purgatory._change(key))

    def note_anew(self) -> None:
        """The client has moved: note the keys in its new row. The old notes no longer count."""
        with suppress(WheelError):  # a purgatory that was shut down: the block's end says so
            self._note()
        if self._over:  # in another thread, meanwhile
            self._forget()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            self.completed = self._purgatory.check_and_complete_many(self._keys)
        finally:
            self._forget()

    def _forget(self) -> None:
        self._over = True
        self._purgatory.timers._changing.discard(self)
        with suppress(IndexError):  # two threads may be here
            while True:
                self._purgatory._done(*self._notes.pop())
