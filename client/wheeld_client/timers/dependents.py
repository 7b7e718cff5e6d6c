"""Objects that end and move with a worker's timers."""

from __future__ import annotations

from typing import Any, Protocol

from wheeld_core.errors import WheelError


class Dependent(Protocol):
    """An object built on a worker's timers that moves and ends with them: a purgatory."""

    @property
    def _closed(self) -> bool: ...

    def _close(self) -> None: ...

    def _renew(self) -> None: ...

    def _lose(self, error: WheelError) -> None: ...

    def _shutdown(self, complete: bool, /) -> list[Any]: ...
