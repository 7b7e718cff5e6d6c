"""The memory pools of a daemon, as strings of the form `NAME=BYTES[,strict][,largest=BYTES]`."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from wheeld_core import _native
from wheeld_core.units import bytes_text, parse_bytes

FORM = "NAME=BYTES[,strict][,largest=BYTES]"
NAME_BYTES = 63
EXAMPLE = "requests=64M,strict,largest=1M"
_NAME = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._-]{{0,{NAME_BYTES - 1}}}")


class Pool(NamedTuple):
    """One memory pool, as `_native.create_pools` takes it."""

    name: str
    size: int
    largest: int
    """Bytes of the largest single request."""
    strict: bool
    """Never lends more than `size`; otherwise one request may exceed it."""

    def text(self) -> str:
        flags = ",strict" if self.strict else ""
        flags += f",largest={bytes_text(self.largest)}" if self.largest != self.size else ""
        return f"{self.name}={bytes_text(self.size)}{flags}"


def parse(texts: Iterable[str]) -> list[Pool]:
    """The pools of a configuration, in its order. `ValueError`: a string is malformed, a name
    occurs twice, or there are too many."""
    pools = [_parse(text) for text in texts]
    if len(pools) > _native.POOLS:
        raise ValueError(f"{len(pools)} pools: expected at most {_native.POOLS}")
    names = [pool.name for pool in pools]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"pool {name!r} is given {names.count(name)} times, expected once")
    return pools


def _parse(text: str) -> Pool:
    name, equals, rest = text.partition("=")
    if not equals:
        raise ValueError(f"pool {text!r}: expected NAME=BYTES, such as {EXAMPLE!r}")
    if not _NAME.fullmatch(name):
        raise ValueError(
            f"pool {text!r}: name {name!r}: expected up to {NAME_BYTES} letters, digits, '.', '_' "
            "or '-', beginning with a letter or digit"
        )
    first, *flags = rest.split(",")
    size = _size(text, "size", first, _native.MAX_POOL_BYTES)
    largest, strict = size, False
    for flag in flags:
        key, _, value = flag.partition("=")
        if flag == "strict":
            strict = True
        elif key == "largest":
            largest = _size(text, "largest", value, size)
        else:
            raise ValueError(
                f"pool {text!r}: unknown {flag!r}: expected 'strict' or 'largest=BYTES', as in "
                f"{EXAMPLE!r}"
            )
    return Pool(name, size, largest, strict)


def _size(text: str, what: str, given: str, most: int) -> int:
    try:
        found = parse_bytes(given)
    except ValueError as error:
        raise ValueError(f"pool {text!r}: {what} {given!r}: {error}") from None
    if not 1 <= found <= most:
        limit = "the pool's size" if what == "largest" else "such as 64M"
        raise ValueError(
            f"pool {text!r}: {what} {given!r}: expected 1 to {bytes_text(most)} bytes, {limit}"
        )
    return found


def difference(left: Iterable[Pool], wanted: Iterable[Pool]) -> list[str]:
    """The differences between the pools of an existing wheel and the configured ones, in words."""
    there = {pool.name: pool for pool in left}
    ours = {pool.name: pool for pool in wanted}
    differ = []
    for name in [*there, *(name for name in ours if name not in there)]:
        if there.get(name) != ours.get(name):
            old = f"--pool {there[name].text()}" if name in there else f"no pool {name}"
            new = ours[name].text() if name in ours else "none"
            differ.append(f"{old} (this start: {new})")
    return differ
