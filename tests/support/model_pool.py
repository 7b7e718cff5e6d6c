"""ModelPool: a memory pool of one process with the interface of `MemoryPool`, for tests.

It counts what is out, what was asked for in which order, and the most that was ever out, so that a
test can tell that nothing leaked and no bound was broken.
"""

from __future__ import annotations

import threading
from typing import Any, ClassVar


class ModelBuffer(bytearray):
    pool: ModelPool
    released = False

    def release(self) -> None:
        self.pool.release(self)

    def is_exported(self) -> bool:
        try:
            self.append(0)
        except BufferError:
            return True
        del self[-1]
        return False


class ModelPool:
    """Lenient: lends while a byte is left. Strict: never more than `size`."""

    name = "model"
    made: ClassVar[list[ModelPool]] = []
    """The ones of this test."""

    def __init__(self, size: int, *, largest: int | None = None, strict: bool = False) -> None:
        self.made.append(self)
        self.size = size
        self.largest = largest or size
        self.strict = strict
        self.asked: list[int] = []
        """Every size that was asked for, in order."""
        self.granted: list[int] = []
        self.most_used = 0
        self.exported = 0
        """Buffers that were looked at when they were given back."""
        self.failure: Exception | None = None
        """Raised by everything but `release`, once it is set."""
        self.waited_for: list[int] = []
        """The sizes of the calls of `wait_available`."""
        self._out: dict[int, ModelBuffer] = {}
        self._changed = threading.Condition()
        self.wanted_elsewhere = False
        """Somebody in another process waits for memory."""

    @property
    def outstanding(self) -> int:
        return sum(map(len, self._out.values()))

    @property
    def buffers(self) -> int:
        return len(self._out)

    @property
    def used(self) -> int:
        return self.outstanding

    @property
    def available(self) -> int:
        self._check()
        return self.size - self.outstanding

    @property
    def is_out_of_memory(self) -> bool:
        return self.available <= 0

    @property
    def has_waiters(self) -> bool:
        return self.wanted_elsewhere

    def _check(self) -> None:
        if self.failure is not None:
            raise self.failure

    def _fits(self, size: int) -> bool:
        return self.available >= (size if self.strict else 1)

    def try_allocate(self, size: int) -> ModelBuffer | None:
        with self._changed:
            self._check()
            if not 1 <= size <= self.largest:
                raise ValueError(f"size={size}: expected 1 to {self.largest}")
            self.asked.append(size)
            if not self._fits(size):
                return None
            buffer = ModelBuffer(size)
            buffer.pool = self
            self._out[id(buffer)] = buffer
            self.granted.append(size)
            self.most_used = max(self.most_used, self.outstanding)
            return buffer

    def release(self, buffer: Any) -> None:
        if not isinstance(buffer, ModelBuffer):
            raise TypeError(f"got {type(buffer).__name__}")
        with self._changed:
            if self._out.pop(id(buffer), None) is not buffer:
                raise ValueError("released before, or another pool's")
            buffer.released = True
            self.exported += buffer.is_exported()
            self._changed.notify_all()

    def wait_available(self, timeout: float | None = None, size: int = 1) -> bool:
        with self._changed:
            self.waited_for.append(size)
            found = self._changed.wait_for(
                lambda: self.failure is not None or self._fits(size), timeout
            )
            self._check()
            return found

    def fail(self, error: Exception) -> None:
        with self._changed:
            self.failure = error
            self._changed.notify_all()
