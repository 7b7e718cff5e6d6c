"""What a handler of an `Intake` leaves: its answer, framed, or what it raised."""

from __future__ import annotations

import traceback
from contextlib import suppress
from typing import Any


def frame(answer: Any, prefix_bytes: int) -> bytes:
    """The answer with its length; None: nothing.

    Raises
    ------
    TypeError
        It is no bytes.
    OverflowError
        It is too long for the prefix.
    """
    if answer is None:
        return b""
    if not isinstance(answer, bytes | bytearray | memoryview):
        raise TypeError(f"the handler returned {type(answer).__name__}: expected bytes or None")
    body = bytes(answer)
    if isinstance(answer, memoryview):
        with suppress(BufferError):
            answer.release()  # it may be a part of the request, whose memory goes back now
    return len(body).to_bytes(prefix_bytes, "big") + body


def forget_frames(error: BaseException) -> None:
    """Drop the locals of a failed handler: parts of the request's memory may be among them."""
    seen: set[int] = set()
    queue: list[BaseException | None] = [error]
    while queue:
        one = queue.pop()
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            traceback.clear_frames(one.__traceback__)
            queue += [one.__cause__, one.__context__]
