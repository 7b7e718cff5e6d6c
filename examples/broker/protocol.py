"""The wire: what stands inside a frame.

    frame   = length (4 bytes, big-endian), body           framing is Intake's and the client's
    body    = header, fields (JSON object), blob (raw bytes, to the end)
    header  = version u8, kind u8, reserved u16, bytes of the fields u32, correlation id u64

An answer repeats kind and correlation id of its request. Its fields have `error` ("" if it went
well) and `worker` (who answered). Numbers are big-endian.
"""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

VERSION: Final = 1
HEADER: Final = struct.Struct("!BBHIQ")
LENGTH: Final = struct.Struct("!I")
MAX_FRAME: Final = 4 << 20
"""Bytes; nobody sends a longer body, and who reads one is not talking to us."""


class Kind(IntEnum):
    """What a request asks for."""

    PRODUCE = 1
    FETCH = 2
    JOIN = 3
    STATUS = 4


class ProtocolError(ValueError):
    """The bytes are not a message."""


class RequestError(Exception):
    """The request cannot be done; its answer says why.

    Parameters
    ----------
    code : str
        The answer's `error`, a word for programs: "bad-request", "offset-out-of-range", ...
    message : str
        For people.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True)
class Message:
    """A request or an answer."""

    kind: Kind
    correlation: int
    fields: dict[str, Any]
    blob: bytes = b""

    @property
    def error(self) -> str:
        """The code of an answer's error, "" if there is none."""
        return str(self.fields.get("error", ""))


def encode(message: Message) -> bytes:
    """The body of a frame."""
    fields = json.dumps(message.fields, separators=(",", ":")).encode()
    header = HEADER.pack(VERSION, message.kind, 0, len(fields), message.correlation)
    return header + fields + message.blob


def frame(body: bytes) -> bytes:
    """A body with its length in front."""
    return LENGTH.pack(len(body)) + body


def decode(body: bytes | memoryview) -> Message:
    """The message in a body; what it holds is copied.

    Raises
    ------
    ProtocolError
        It is of another version, cut off, or no JSON object.
    """
    if len(body) < HEADER.size:
        raise ProtocolError(f"got {len(body)} bytes, a header has {HEADER.size}")
    version, kind, _, size, correlation = HEADER.unpack_from(body)
    if version != VERSION:
        raise ProtocolError(f"got version {version}, expected {VERSION}")
    end = HEADER.size + size
    if end > len(body):
        raise ProtocolError(f"the fields end at byte {end} of {len(body)}")
    try:
        fields = json.loads(bytes(body[HEADER.size : end]))
        known = Kind(kind)
    except (ValueError, RecursionError) as error:
        raise ProtocolError(str(error)) from None
    if not isinstance(fields, dict):
        raise ProtocolError(f"the fields are a {type(fields).__name__}, expected an object")
    return Message(known, correlation, fields, bytes(body[end:]))


def number(fields: dict[str, Any], name: str, low: int, high: int) -> int:
    """An integer of a request, checked.

    Raises
    ------
    RequestError
        It is missing, no integer or outside of [low, high].
    """
    value = fields.get(name)
    if type(value) is not int or not low <= value <= high:
        raise RequestError("bad-request", f"{name}: got {value!r}, expected {low} to {high}")
    return value


def text(fields: dict[str, Any], name: str) -> str:
    """A name in a request: 1 to 100 letters, digits, `_` or `-`, as it becomes part of a path.

    Raises
    ------
    RequestError
        It is missing or something else.
    """
    value = fields.get(name)
    if not is_name(value):
        raise RequestError("bad-request", f"{name}: got {value!r}, expected letters, digits, _, -")
    return str(value)


def is_name(value: object) -> bool:
    """Whether `value` may be the name of a topic, group or member."""
    if not isinstance(value, str) or not 1 <= len(value) <= 100 or not value.isascii():
        return False
    return value.replace("_", "a").replace("-", "a").isalnum()
