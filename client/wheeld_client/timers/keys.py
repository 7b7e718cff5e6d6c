"""Decode the keys of timers that the directory holds."""

from __future__ import annotations

from wheeld_core.timer_options import Key, Piece


def decoded(encoded: bytes) -> Key:
    """Decode a key that the native calls have encoded.

    Raises
    ------
    ValueError
        These bytes are not a key: the room was reused or overwritten.
    """
    if encoded[:1] != b"t":
        return _piece(encoded)
    pieces, at = [], 1
    while at < len(encoded):
        end = at + 2 + int.from_bytes(encoded[at : at + 2], "little")
        pieces.append(_piece(encoded[at + 2 : end]))
        at = end
    return tuple(pieces)


def _piece(encoded: bytes) -> Piece:
    kind, content = encoded[:1], encoded[1:]
    if kind == b"s":
        return content.decode()
    if kind == b"b":
        return content
    if kind == b"i":
        return int.from_bytes(content, "little", signed=True)
    if kind == b"I":
        return int(content, 16)
    raise ValueError("not an encoded key")


def under(name: str, key: Key) -> tuple[Piece, ...]:
    """The key `key` within the namespace `name`. A tuple of one piece differs from that piece
    alone."""
    if not isinstance(key, tuple):
        return name, key
    return (name, *key) if len(key) > 1 else (name.encode(), *key)


def begins(key: Key, prefix: Key) -> bool:
    """Whether a key begins with `prefix`, which has the same type. An int begins only with
    itself."""
    if isinstance(key, str) and isinstance(prefix, str):
        return key.startswith(prefix)
    if isinstance(key, bytes) and isinstance(prefix, bytes):
        return key.startswith(prefix)
    if isinstance(key, tuple) and isinstance(prefix, tuple):
        return key[: len(prefix)] == prefix
    return type(key) is type(prefix) and key == prefix
