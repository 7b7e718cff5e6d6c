"""Checks of the arrays given to batch calls: errors are raised before anything is done."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt

from wheeld_core.arguments import float_of, shown
from wheeld_core.errors import InvalidDelay, PayloadTooLarge
from wheeld_core.timer_options import Key


def delays_array(delays: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """`delays` as contiguous float64 of one dimension, or ValueError."""
    array = np.asarray(delays)
    if array.dtype.kind == "m":  # NaT becomes NaN
        array = array / np.timedelta64(1, "s")
    elif array.dtype.kind == "O" and array.ndim == 1:  # what a single call takes
        with suppress(TypeError):
            array = np.array([float_of(delay) for delay in array], np.float64)
    return _one_dimension("delays", array, "iuf", "float64 seconds", np.float64)


def keys_tuple(keys: Iterable[Key]) -> tuple[Key, ...]:
    """`keys` as a tuple, whose members are checked later, or TypeError."""
    if isinstance(keys, str | bytes) or not isinstance(keys, Iterable):
        raise TypeError(f"keys: got {shown(keys)}, expected a sequence of keys")
    return tuple(keys.reshape(-1).tolist() if isinstance(keys, np.ndarray) else keys)


def keys_for(keys: Iterable[Key] | None, on_conflict: str, count: int) -> tuple[Key, ...] | None:
    """`keys` as a tuple of `count`, or ValueError; None: there are none."""
    if keys is None:
        if on_conflict != "raise":
            raise ValueError("on_conflict= is about the keys: give keys=, too")
        return None
    named = keys_tuple(keys)
    if len(named) != count:
        raise ValueError(
            f"keys: got {len(named)}, expected {count}, one for each of the times; nothing of the "
            "batch was scheduled"
        )
    return named


def ids_array(ids: npt.ArrayLike) -> npt.NDArray[np.uint64]:
    """`ids` as contiguous uint64 of one dimension, or ValueError; 0 stands for numbers that cannot
    be ids."""
    if isinstance(ids, np.ndarray) and ids.dtype == np.uint64:
        return _one_dimension("ids", ids, "u", "uint64 timer ids", np.uint64)
    listed = _integers(ids)
    if listed is not None:
        return np.array([id if 0 <= id < 2**64 else 0 for id in listed], np.uint64)
    array = np.asarray(ids)
    if array.size == 0:
        return np.empty(0, np.uint64)
    if array.dtype.kind == "i" and array.min() < 0:
        array = np.maximum(array, 0)
    return _one_dimension("ids", array, "iu", "uint64 timer ids", np.uint64)


def cookies_array(cookies: npt.ArrayLike | None, count: int) -> npt.NDArray[np.uint64] | int:
    """`cookies` as `count` uint64, or one int for all, or ValueError."""
    if cookies is None:
        return 0
    if isinstance(cookies, int | np.integer):
        return operator.index(cookies)
    listed = _integers(cookies)
    if listed is None:
        array = _one_dimension("cookies", np.asarray(cookies), "iu", "uint64", np.uint64)
    else:
        array = np.array(_in_range("cookies", listed, 2**64 - 1), np.uint64)
    return _same_length("cookies", array, count)


def deadlines_array(deadlines: npt.ArrayLike) -> npt.NDArray[np.int64]:
    """`deadlines_ns` as contiguous int64 of one dimension, or an error."""
    listed = _integers(deadlines)
    array = np.asarray(deadlines) if listed is None else np.array(listed, object)
    if array.ndim != 1 or (array.size and listed is None and array.dtype.kind not in "iu"):
        raise ValueError(
            f"deadlines_ns: got dtype {array.dtype}, shape {array.shape}; expected int64 "
            "nanoseconds, shape (n,); nothing in the batch was done"
        )
    if array.size and (array.min() < 0 or array.max() > np.iinfo(np.int64).max):
        worst = array.min() if array.min() < 0 else array.max()
        raise InvalidDelay(f"deadlines_ns: got {shown(worst)}, expected 0 to 2**63 - 1 ns")
    return np.ascontiguousarray(array, np.int64)


def _integers(values: Any) -> list[int] | None:
    """A list of integers of any types, which numpy would sometimes turn into floats.

    None: it is an array, or not of integers.
    """
    if isinstance(values, np.ndarray) and (values.dtype.kind != "O" or values.ndim != 1):
        return None
    if isinstance(values, str | bytes) or not isinstance(values, Iterable):
        return None
    try:
        return list(map(operator.index, values))
    except TypeError:
        return None


def _in_range(name: str, values: list[int], most: int) -> list[int]:
    for value in values:
        if not 0 <= value <= most:
            raise ValueError(
                f"{name}: got {shown(value)}, expected 0 to {most}; nothing was scheduled"
            )
    return values


Payloads = tuple[Any, Any]
"""The form that `_schedule_batch` takes: all bytes, and the width of each payload or where each
begins."""


def payloads_array(payloads: npt.ArrayLike | None, count: int, room: int) -> Payloads:
    """`payloads` as `count` pieces of bytes no wider than `room`, or an error."""
    if payloads is None:
        return None, 0
    texts = _bytes_list(payloads)
    if texts is not None:
        return _joined(texts, count, room)
    array = np.asarray(payloads)
    if array.dtype.kind not in "SV" or array.ndim != 1:
        raise ValueError(
            f"payloads: got dtype {array.dtype}, shape {array.shape}; expected bytes, or dtype "
            f"S or V, shape ({count},); nothing of the batch was scheduled"
        )
    if array.dtype.itemsize > room:
        raise _too_large("payloads have", array.dtype.itemsize, " each", room)
    return np.ascontiguousarray(_same_length("payloads", array, count)), array.dtype.itemsize


def _bytes_list(payloads: Any) -> list[Any] | None:
    """A list of bytes, which numpy would pad to one width and strip of NULs at their ends."""
    if isinstance(payloads, np.ndarray):
        payloads = payloads.tolist() if payloads.dtype.kind == "O" and payloads.ndim == 1 else None
    if not isinstance(payloads, Sequence) or isinstance(
        payloads, str | bytes | bytearray | memoryview
    ):
        return None
    texts = list(payloads)
    return (
        texts if all(isinstance(text, bytes | bytearray | memoryview) for text in texts) else None
    )


def _joined(texts: list[Any], count: int, room: int) -> Payloads:
    if len(texts) != count:
        raise ValueError(
            f"payloads: got shape ({len(texts)},), expected ({count},) like delays; "
            "nothing of the batch was scheduled"
        )
    texts = [bytes(text) for text in texts]
    places = np.zeros(count + 1, np.int64)
    np.cumsum(np.fromiter(map(len, texts), np.int64, count), out=places[1:])
    for number, text in enumerate(texts):
        if len(text) > room:
            raise _too_large(f"payloads[{number}] has", len(text), "", room)
    return b"".join(texts), places


def _too_large(what: str, size: int, each: str, room: int) -> PayloadTooLarge:
    return PayloadTooLarge(
        f"{what} {size} bytes{each}; this wheel holds {room} per timer "
        "(wheeld start --max-payload, --payload-bytes); nothing of the batch was scheduled"
    )


def _one_dimension(
    name: str, array: npt.NDArray[Any], kinds: str, wanted: str, dtype: type[np.generic]
) -> npt.NDArray[Any]:
    if array.dtype.kind not in kinds or array.ndim != 1:
        if array.size == 0 and array.ndim == 1:
            return np.empty(0, dtype)
        raise ValueError(
            f"{name}: got dtype {array.dtype}, shape {array.shape}; expected {wanted}, shape (n,); "
            "nothing in the batch was done"
        )
    if array.dtype.kind == "i" and dtype is np.uint64 and array.size and array.min() < 0:
        raise ValueError(f"{name}: got {array.min()}, expected no negative numbers")
    with np.errstate(over="ignore"):  # a longdouble becomes infinity, which is refused
        return np.ascontiguousarray(array, dtype)


def _same_length(name: str, array: npt.NDArray[Any], count: int) -> npt.NDArray[Any]:
    if len(array) != count:
        raise ValueError(
            f"{name}: got shape {array.shape}, expected ({count},) like delays; "
            "nothing of the batch was scheduled"
        )
    return array
