"""Every native call of a trace, and every way in which one refuses, for test_leaks."""

import contextlib
import mmap
from collections.abc import Callable
from typing import Any

from local_wheel import LocalWheel
from wheeld_core import _native

OUT = bytearray(64 * 16)


def segment() -> mmap.mmap:
    memory = mmap.mmap(-1, _native.trace_bytes(64, 4))
    _native.create_trace(memory, 64, 4, 7, 2**64 - 3)
    return memory


WHOLE = segment()
BROKEN = segment()
BROKEN[128:132] = b"\xff\xff\xff\xff"


def trace(_: Any) -> None:
    with LocalWheel(64, 1) as wheel:
        for memory in (b"", BROKEN, wheel.wheel_memory, segment(), segment()):
            with contextlib.suppress(ValueError, BufferError, TypeError):
                wheel.clock.trace(memory)


GOOD: dict[str, Callable[[Any], Any]] = {
    "trace": trace,
    "create_trace": lambda b: segment(),
    "trace_bytes": lambda b: _native.trace_bytes(1 << 20, 20),
    "trace_take": lambda b: _native.trace_take(WHOLE, 2**64 - 3, OUT),
    "trace_release": lambda b: _native.trace_release(WHOLE, 2**64 - 3),
    "trace_wait": lambda b: _native.trace_wait(WHOLE, 5),
}
BAD: dict[str, Callable[[Any], Any]] = {
    "trace bytes": lambda b: _native.trace_bytes(64, 40),
    "trace short": lambda b: _native.create_trace(bytearray(9), 64, 4, 7),
    "trace frozen": lambda b: _native.create_trace(bytes(1 << 16), 64, 4, 7),
    "trace clock": lambda b: b.wheel.clock.trace(b"x" * 300),
    "take position": lambda b: _native.trace_take(WHOLE, 5, OUT),
    "take frozen": lambda b: _native.trace_take(WHOLE, 2**64 - 3, bytes(64)),
    "take broken": lambda b: _native.trace_take(BROKEN, 2**64 - 3, OUT),
    "release position": lambda b: _native.trace_release(WHOLE, 5),
    "wait broken": lambda b: _native.trace_wait(BROKEN, 5),
}
