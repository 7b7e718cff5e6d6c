"""Checks of the arrays that batch calls take: what is wrong is named before anything is done."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from wheeld_core.errors import PayloadTooLarge


def delays_array(delays: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """`delays` as contiguous float64 of one dimension, or ValueError."""
    return _one_dimension("delays", np.asarray(delays), "iuf", "float64 seconds", np.float64)


def ids_array(ids: npt.ArrayLike) -> npt.NDArray[np.uint64]:
    """`ids` as contiguous uint64 of one dimension, or ValueError."""
    ids = _ints_as_ids(ids)
    array = np.asarray(ids)
    if array.size == 0:
        return np.empty(0, np.uint64)
    return _one_dimension("ids", array, "iu", "uint64 timer ids", np.uint64)


def _ints_as_ids(ids: Any) -> Any:
    """A list of Python ints as uint64, of which numpy would make floats in some cases."""
    if isinstance(ids, np.ndarray) or not isinstance(ids, Iterable):
        return ids
    listed = list(ids)
    if not all(isinstance(id, int) for id in listed):
        return listed
    return np.array([id if 0 <= id < 2**64 else 0 for id in listed], np.uint64)


def cookies_array(cookies: npt.ArrayLike | None, count: int) -> npt.NDArray[np.uint64] | int:
    """`cookies` as `count` uint64, or one int for all, or ValueError."""
    if cookies is None:
        return 0
    if isinstance(cookies, int):
        return cookies
    array = _one_dimension("cookies", np.asarray(cookies), "iu", "uint64", np.uint64)
    return _same_length("cookies", array, count)


def payloads_array(
    payloads: npt.ArrayLike | None, count: int, room: int
) -> npt.NDArray[Any] | None:
    """`payloads` as `count` rows of bytes no wider than `room`, or an error."""
    if payloads is None:
        return None
    array = np.asarray(payloads)
    if array.dtype.kind not in "SV" or array.ndim != 1:
        raise ValueError(
            f"payloads: got dtype {array.dtype}, shape {array.shape}; expected dtype S or V, "
            f"shape ({count},); nothing of the batch was scheduled"
        )
    if array.dtype.itemsize > room:
        raise PayloadTooLarge(
            f"payloads have {array.dtype.itemsize} bytes each; this wheel holds {room} per timer "
            "(wheeld start --payload-bytes); nothing of the batch was scheduled"
        )
    return np.ascontiguousarray(_same_length("payloads", array, count))


def _one_dimension(
    name: str, array: npt.NDArray[Any], kinds: str, wanted: str, dtype: type[np.generic]
) -> npt.NDArray[Any]:
    if array.dtype.kind not in kinds or array.ndim != 1:
        if array.size == 0 and array.ndim == 1:
            return np.empty(0, dtype)
        raise ValueError(
            f"{name}: got dtype {array.dtype}, shape {array.shape}; expected {wanted}, shape (n,); "
            "nothing of the batch was done"
        )
    if array.dtype.kind == "i" and dtype is np.uint64 and array.size and array.min() < 0:
        raise ValueError(f"{name}: got {array.min()}, expected no negative numbers")
    return np.ascontiguousarray(array, dtype)


def _same_length(name: str, array: npt.NDArray[Any], count: int) -> npt.NDArray[Any]:
    if len(array) != count:
        raise ValueError(
            f"{name}: got shape {array.shape}, expected ({count},) like delays; "
            "nothing of the batch was scheduled"
        )
    return array
