"""PointWorker: many timers at points in time, of one of the clocks."""

from __future__ import annotations

import math
from collections.abc import Iterable
from datetime import datetime
from typing import Any, Final, Unpack

import numpy as np
import numpy.typing as npt

from wheeld_client.connection.options import MOST_SECONDS
from wheeld_client.connection.worker import ConnectedWorker
from wheeld_client.timers import batches
from wheeld_core import _native
from wheeld_core.arguments import When, epoch_ns, shown, time_of
from wheeld_core.errors import InvalidDelay
from wheeld_core.timer_options import Clock, Conflict, Key, SharedOptions
from wheeld_core.views import CLOCKS

CLOCK_NUMBERS: Final = {name: number for number, name in CLOCKS.items()}
NEVER_NS: Final = 2**63 - 1


def clock_number(clock: object) -> int:
    """The number of one of the clocks, or ValueError."""
    if not isinstance(clock, str) or clock not in CLOCK_NUMBERS:
        raise ValueError(f"clock={shown(clock)}: expected one of {', '.join(CLOCK_NUMBERS)}")
    return CLOCK_NUMBERS[clock]


def deadline_of(when: When, clock: str | None) -> tuple[int, int]:
    """A point in time as nanoseconds on a clock, and the number of that clock; raises as
    `Timers.schedule_at`."""
    if isinstance(when, datetime):
        deadline, number = epoch_ns(when), clock_number("realtime" if clock is None else clock)
        if number != _native.CLOCK_REALTIME:
            raise ValueError(f"clock={shown(clock)}: a datetime is a time on 'realtime'")
        good = deadline >= 0
    else:
        number = clock_number("monotonic" if clock is None else clock)
        seconds = time_of(when)
        good = 0 <= seconds < math.inf
        deadline = int(seconds * 1e9) if good and seconds < MOST_SECONDS else NEVER_NS
    if not good:
        raise InvalidDelay(f"when must be a finite number of seconds, 0 or more: got {shown(when)}")
    return min(deadline, NEVER_NS), number


class PointWorker(ConnectedWorker):
    """The part of `Timers` that deals with many points in time."""

    def schedule_at_many(
        self,
        deadlines_ns: npt.ArrayLike,
        cookies: npt.ArrayLike | None = None,
        *,
        clock: Clock = "monotonic",
        payloads: tuple[Any, npt.ArrayLike] | None = None,
        keys: Iterable[Key] | None = None,
        on_conflict: Conflict = "raise",
        **options: Unpack[SharedOptions],
    ) -> npt.NDArray[np.uint64]:
        """Arm one timer per point in time; all of them or, on an error, none.

        Parameters
        ----------
        deadlines_ns : array_like of int64, shape (n,)
            Nanoseconds on `clock`; a time that has passed fires at once.
        cookies : array_like of uint64, shape (n,), or int, optional
            One each, or one for all; default 0.
        clock : {'monotonic', 'realtime', 'boottime'}
            As in `schedule_at`.
        payloads : (bytes-like, array_like of int64, shape (n + 1,)), optional
            All payloads in a row, and the offsets where each begins and the last one ends, as in
            Arrow.
        keys, on_conflict
            As in `schedule_many`, with its errors.
        **options
            interval, to, block, detached, keep: as in `schedule`, for all.

        Returns
        -------
        numpy.ndarray of uint64, shape (n,)
            The ids; with keys, the ids of the timers that have them afterwards.

        Raises
        ------
        ValueError
            A dtype or shape is wrong, or there is no such clock or receiver. With `block=False`
            also as in `schedule_many`.
        KeyInUse, InvalidDelay, PayloadTooLarge, WheelFull, KeysFull, RingFull, DaemonNotRunning
        """
        deadlines = batches.deadlines_array(deadlines_ns)
        count, number = len(deadlines), clock_number(clock)
        checked = batches.cookies_array(cookies, count)
        data, places = (None, 0) if payloads is None else _payload_rows(payloads, count)
        ids = np.empty(count, np.uint64)
        named = batches.keys_for(keys, on_conflict, count)
        if named is None:
            self._schedule_at_batch(deadlines, number, checked, ids, data, places, **options)
        else:
            order = (deadlines, number, named, on_conflict, checked, ids, data, places)
            self._schedule_keys(*order, **options)
        return ids

    def reschedule_at_many(
        self, ids: npt.ArrayLike, deadlines_ns: npt.ArrayLike, *, block: bool = True
    ) -> npt.NDArray[np.bool_]:
        """Move timers of any worker to points in time: nanoseconds on each timer's clock.

        Returns and raises as `reschedule_many`.
        """
        checked = batches.ids_array(ids)
        deadlines = batches.deadlines_array(deadlines_ns)
        if len(deadlines) != len(checked):
            raise ValueError(
                f"deadlines_ns: got shape {deadlines.shape}, expected {checked.shape} like ids"
            )
        moved = np.empty(len(checked), np.bool_)
        self._reschedule_batch(checked, deadlines, moved, block, True)
        return moved


def _payload_rows(
    payloads: tuple[Any, npt.ArrayLike], count: int
) -> tuple[Any, npt.NDArray[np.int64]]:
    data, places = payloads
    offsets = np.ascontiguousarray(places, np.int64)
    if offsets.shape != (count + 1,):
        raise ValueError(
            f"payloads: got offsets of shape {offsets.shape}, expected ({count + 1},): where each "
            "payload begins, and where the last one ends"
        )
    return data, offsets
