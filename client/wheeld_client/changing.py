"""Changing: conditions that are being made true by a worker that may be killed at it."""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wheeld_client.purgatory import Purgatory


class Changing:
    """The block of `Purgatory.changing`; for one `with`."""

    def __init__(self, purgatory: Purgatory, keys: tuple[Any, ...]) -> None:
        self._purgatory, self._keys = purgatory, keys
        self._notes: list[tuple[int, int]] = []
        self.completed = 0
        """How many operations of this worker the block's end completed; 0 if a check has raised."""

    def __enter__(self) -> Changing:
        if self._notes:
            raise RuntimeError("this block was entered already: call changing() for each")
        try:
            for key in self._keys:
                self._notes.append(self._purgatory._change(key))
        except BaseException:
            self._forget()
            raise
        return self

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
        while self._notes:
            self._purgatory._done(*self._notes.pop())
