"""NoPool: `MemoryPool.NONE`, a pool without a bound."""

from __future__ import annotations

import sys
from typing import Any

from wheeld_core.arguments import Seconds, shown


class LooseBuffer(bytearray):
    """Memory that is not counted; otherwise like a `PoolBuffer`."""

    released = False

    def release(self) -> None:
        """Give it back.

        Raises
        ------
        ValueError
            It was already released.
        """
        if self.released:
            raise ValueError("this buffer was already released")
        self.released = True

    def __enter__(self) -> LooseBuffer:
        return self

    def __exit__(self, *exception: object) -> None:
        if not self.released:
            self.release()


class NoPool:
    """Lends any size: no bound, no daemon, no waiting."""

    name = "none"
    size = largest = sys.maxsize
    strict = False
    has_waiters = is_out_of_memory = False
    used = outstanding = 0
    available = sys.maxsize
    depleted_percent = 0.0

    def try_allocate(self, size: int, /) -> LooseBuffer:
        if size < 1:
            raise ValueError(f"size must be 1 or more: got {shown(size)}")
        return LooseBuffer(size)

    def allocate(self, size: int, timeout: Seconds | None = None) -> LooseBuffer:
        return self.try_allocate(size)

    async def allocate_async(self, size: int) -> LooseBuffer:
        return self.try_allocate(size)

    def wait_available(self, timeout: Seconds | None = None, size: int = 1) -> bool:
        return True

    def release(self, buffer: LooseBuffer, /) -> None:
        """Take it back.

        Raises
        ------
        TypeError, ValueError
            It is not a buffer of this pool, or was already released.
        """
        if not isinstance(buffer, LooseBuffer):
            raise TypeError(f"expected a buffer of this pool: got {type(buffer).__name__}")
        buffer.release()

    def depleted_over(self, seconds: Seconds = 30.0) -> float:
        return 0.0

    def stats(self) -> dict[str, Any]:
        """The same as for an unused `MemoryPool`."""
        counts = dict.fromkeys(("outstanding", "allocations", "refusals", "waits", "timeouts"), 0)
        return {
            "size": self.size,
            "used": 0,
            "available": self.available,
            **counts,
            "depleted_percent": 0.0,
            "depleted_seconds": 0.0,
        }

    def __repr__(self) -> str:
        return "MemoryPool.NONE"
