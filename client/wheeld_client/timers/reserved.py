"""ReservingWorker: timers whose ids are known, and can be recorded, before they are armed.

For programs that keep a journal: record the ids, arm, and if this process dies in between, its
successor (`on_death="keep"`) asks `was_armed` which of them were armed.
"""

from __future__ import annotations

import math
import operator
from datetime import datetime
from typing import Any, Final, Unpack

import numpy as np
import numpy.typing as npt

from wheeld_client.connection.options import MOST_SECONDS
from wheeld_client.connection.worker import ConnectedWorker
from wheeld_client.timers import batches
from wheeld_core import _native
from wheeld_core.arguments import When, epoch_ns, shown, time_of
from wheeld_core.errors import InvalidDelay, WheelFull
from wheeld_core.timer_options import SharedOptions
from wheeld_core.views import CLOCKS

CLOCK_NUMBERS: Final = {name: number for number, name in CLOCKS.items()}
NEVER_NS: Final = 2**63 - 1


def clock_number(clock: str) -> int:
    """The number of one of the clocks, or ValueError."""
    if clock not in CLOCK_NUMBERS:
        raise ValueError(f"clock={shown(clock)}: expected one of {', '.join(CLOCK_NUMBERS)}")
    return CLOCK_NUMBERS[clock]


def deadline_of(when: When, clock: str | None) -> tuple[int, int]:
    """A point in time as nanoseconds of a clock, and the number of that clock; with the errors of
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


class ReservingWorker(ConnectedWorker):
    """The part of `Timers` that deals with reserved ids."""

    _payload_room: int

    def reserve(self, count: int, *, block: bool = True) -> npt.NDArray[np.uint64]:
        """Take `count` free slots and return the ids that timers armed in them will have.

        They count as taken until they are armed (`schedule_at_many(..., ids=)`) or given back
        (`release`); when this worker ends, its policy applies to them as to its other slots.

        Parameters
        ----------
        count : int
        block : bool
            Whether it may wait until the clock has given back what it can, if too few slots are
            free. False: it never sleeps.

        Returns
        -------
        numpy.ndarray of uint64, shape (count,)

        Raises
        ------
        TypeError, ValueError
            `count` is not an integer; it is negative.
        WheelFull, DaemonNotRunning
            Nothing is reserved.
        """
        wanted = operator.index(count)
        if wanted < 0:
            raise ValueError(f"count={shown(wanted)}: expected 0 or more")
        if wanted > _native.MAX_CAPACITY:
            raise WheelFull(
                f"count={shown(wanted)}: no wheel has more than {_native.MAX_CAPACITY} slots"
            )
        ids = np.empty(wanted, np.uint64)
        self._reserve_batch(ids, block)
        return ids

    def release(self, ids: npt.ArrayLike) -> None:
        """Give back those of `ids` that are reserved and not armed; the others stay as they are."""
        self._release_batch(batches.ids_array(ids))

    def was_armed(self, ids: npt.ArrayLike) -> npt.NDArray[np.bool_]:
        """Was a timer armed under each of these ids, whatever became of it? Shape (n,).

        For ids that this worker reserved, or one of the same name before it whose slots were kept
        (`adopted`); ask before anything else is scheduled, released or received, because the slots
        of those that were not armed may be reused after that. One call arms its timers in order:
        those that were armed are the first ones.
        """
        checked = batches.ids_array(ids)
        armed = np.empty(len(checked), np.bool_)
        self._were_armed(checked, armed)
        return armed

    def schedule_at_many(
        self,
        deadlines_ns: npt.ArrayLike,
        cookies: npt.ArrayLike | None = None,
        *,
        clock: str = "monotonic",
        payloads: tuple[Any, npt.ArrayLike] | None = None,
        ids: npt.ArrayLike | None = None,
        **options: Unpack[SharedOptions],
    ) -> npt.NDArray[np.uint64]:
        """Arm one timer per point in time.

        Parameters
        ----------
        deadlines_ns : array_like of int64, shape (n,)
            Nanoseconds on `clock`; what has passed fires at once.
        cookies : array_like of uint64, shape (n,), or int, optional
            One each, or one for all; default 0.
        clock : {'monotonic', 'realtime', 'boottime'}
            As in `schedule_at`.
        payloads : (bytes-like, array_like of int64, shape (n + 1,)), optional
            All payloads in a row, and where each begins and the last one ends; as Arrow has them.
        ids : array_like of uint64, shape (n,), optional
            From `reserve`: each timer gets its id. They are armed in this order.
        **options
            interval, to, block: as in `schedule`, for all.

        Returns
        -------
        numpy.ndarray of uint64, shape (n,)
            The ids.

        Raises
        ------
        ValueError
            A dtype or shape is wrong, an id is not reserved, or there is no such clock or receiver.
            With `block=False` also as in `schedule_many`.
        InvalidDelay, PayloadTooLarge, WheelFull, RingFull
            Nothing was armed; what was reserved before is still reserved.
        DaemonNotRunning
            With `ids`: what was armed before the clock stopped stays; see `was_armed`. Without:
            it was cancelled.
        """
        deadlines = batches.deadlines_array(deadlines_ns)
        count, number = len(deadlines), clock_number(clock)
        checked = batches.cookies_array(cookies, count)
        data, offsets = (None, None) if payloads is None else _payload_rows(payloads, count)
        if ids is not None:
            given = batches.ids_array(ids)
            if len(given) != count:
                raise ValueError(
                    f"ids: got shape {given.shape}, expected ({count},) like deadlines_ns"
                )
            self._arm_batch(deadlines, number, checked, given, data, offsets, **options)
            return given
        reserved = self.reserve(count, block=options.get("block", True))
        try:
            self._arm_batch(deadlines, number, checked, reserved, data, offsets, **options)
        except BaseException:
            self._take_back(reserved)
            raise
        return reserved

    def _take_back(self, ids: npt.NDArray[np.uint64]) -> None:
        if self._state == "open" and not self._over:
            armed = ids[self.was_armed(ids)]
            self._release_batch(ids)
            for id in armed:  # one by one: the clock may not drain, and a batch would wait for it
                self.cancel(int(id))


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
