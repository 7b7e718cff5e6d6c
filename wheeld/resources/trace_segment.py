"""The trace segment: made with --trace, or taken over from a killed daemon."""

from __future__ import annotations

import logging
import time
from typing import Final

from wheeld.config.settings import Config
from wheeld_core import _native, segments
from wheeld_core.errors import WheelError
from wheeld_core.trace_schema import POSITIONS_PER_MS
from wheeld_core.views import record
from wheeld_core.views.trace import TraceView

log = logging.getLogger("wheeld")

KIND: Final = "trace"
MODE: Final = 0o600
_MASK = (1 << 64) - 1


def size(config: Config) -> int:
    return _native.trace_bytes(config.all_slots, config.trace_bits)


def fill(memory: _native.Memory, wheel: _native.Memory, config: Config) -> None:
    """Make the trace of a wheel in new memory.

    Its positions begin at the current time, so that the positions of two rings of one wheel never
    overlap: files of the trace are named after them.
    """
    token = int(record(wheel, "head")["token"])
    position = time.time_ns() // 10**6 << POSITIONS_PER_MS
    _native.create_trace(memory, config.all_slots, config.trace_bits, token, position)


def faults(memory: _native.Memory) -> list[str]:
    """Describe what is wrong in a trace segment with an intact header."""
    header = record(memory, KIND)
    capacity, bits = int(header["capacity"]), int(header["ring_bits"])
    try:
        wanted = _native.trace_bytes(capacity, bits)
    except ValueError as error:
        return [f"impossible sizes: {error}"]
    if len(memory) != wanted:
        return [f"{len(memory)} bytes, expected {wanted}"]
    fresh = _native.Memory(-1, wanted, True)
    _native.create_trace(fresh, capacity, bits, 0)
    wrong = [name for name in ("traced_off", "records_off") if header[name] != _field(fresh, name)]
    if wrong:
        return [f"{name} {int(header[name])}, expected {_field(fresh, name)}" for name in wrong]
    # A clock and a recorder may move them meanwhile: between two reads of the tail the head was not
    # behind the first by more than the ring, nor ahead of the second.
    early, head = int(header["rec_tail"]), int(header["rec_head"])
    late = int(header["rec_tail"])
    if _distance(head, early) > 1 << bits or _distance(head, late) < 0:
        return [f"head {head:#x}, tail {late:#x}: expected 0 to {1 << bits} between them"]
    return []


def _field(memory: _native.Memory, name: str) -> int:
    return int(record(memory, KIND)[name])


def _distance(head: int, tail: int) -> int:
    found = tail - head & _MASK
    return found - (1 << 64) if found >> 63 else found


def of_dead(name: str | None, wheel: _native.Memory) -> _native.Memory | None:
    """The trace segment of a wheel without a clock; None if it has no valid one."""
    if name is None:
        return None
    try:
        memory = segments.attach(name, _native.KIND_TRACE, writable=True)
        if int(record(memory, "head")["token"]) != int(record(wheel, "head")["token"]):
            raise segments.SegmentError("it belongs to another daemon")
        found = faults(memory)
        if int(record(memory, KIND)["capacity"]) != int(record(wheel, "wheel")["capacity"]):
            found.append("it is for another capacity")
        if found:
            raise segments.SegmentError("; ".join(found))
    except (WheelError, OSError) as error:
        log.warning("the trace %s cannot be used: %s", name, error)
        return None
    return memory


def find(name: str | None, wheel: _native.Memory, config: Config) -> _native.Memory | None:
    """The trace segment that a killed daemon left, if it is wanted and intact. `WheelError`: its
    ring has another size than --trace-ring."""
    if (memory := of_dead(name, wheel)) is None:
        return None
    view = TraceView(memory)
    if config.trace is None:
        if view.waiting:
            log.warning(
                "%d events that the last daemon traced are not recorded, because --trace is "
                "missing",
                view.waiting,
            )
        return None
    if view.size != config.trace_ring:
        raise WheelError(
            f"the last daemon {config.name!r} left a trace ring of {view.size} events, made with "
            f"--trace-ring {view.size} (this start: {config.trace_ring}): start with the same to "
            "go on with it, without --trace to drop it, or with --fresh to discard all"
        )
    return memory
