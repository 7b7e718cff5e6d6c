"""Arguments of jobs as JSON, restricted to values that come back exactly as given."""

from __future__ import annotations

import json
import math
from typing import Any, Final

from wheeld_core.arguments import shown

DEEPEST: Final = 100
"""Nesting that every receiver can parse, however deep its own stack is."""
MOST_BITS: Final = 14_284
"""Of an int. Python reads no longer one from text."""


def packed(value: Any, place: str = "argument") -> bytes:
    """A value as bytes that `json.loads` turns into an equal value of the same types.

    Raises
    ------
    TypeError
        Something in it has a type that would come back as another one: a tuple, bytes, a datetime,
        a subclass, a dict with keys that are not str.
    ValueError
        A float is NaN or infinite, a str has lone surrogates, or lists and dicts are nested more
        than 100 deep, such as one that contains itself.
    """
    _check(value, place, ())
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def _check(value: Any, place: str, around: tuple[int, ...]) -> None:
    kind = type(value)
    if value is None or kind is bool:
        return
    if kind is int:
        if value.bit_length() > MOST_BITS:
            raise ValueError(f"{place}: got {shown(value)}, expected at most 4,300 digits")
        return
    if kind is float:
        if not math.isfinite(value):
            raise ValueError(f"{place}: got {value}, expected a finite float")
    elif kind is str:
        if not value.isascii():
            try:
                value.encode()
            except UnicodeEncodeError as error:
                raise ValueError(f"{place}: {shown(value)} has lone surrogates") from error
    elif kind is list or kind is dict:
        if id(value) in around:
            raise ValueError(f"{place}: it contains itself")
        if len(around) == DEEPEST:
            raise ValueError(f"{place[:80]}...: expected lists and dicts up to {DEEPEST} deep")
        inner = (*around, id(value))
        for key, each in value.items() if kind is dict else enumerate(value):
            if kind is dict:
                if type(key) is not str:
                    raise TypeError(f"{place}: got the key {shown(key)}, expected str")
                _check(key, place, inner)
            _check(each, f"{place}[{key!r}]", inner)
    else:
        raise TypeError(
            f"{place}: got {shown(value)}, expected None, bool, int, float, str, list or dict: "
            f"{kind.__name__} would not come back as it is; convert it"
        )
