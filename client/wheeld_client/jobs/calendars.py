"""When a job is due. Times are ns: on the wheel's clock for periods, since 1970 for calendars."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Protocol
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from wheeld_core import _native, extras
from wheeld_core.arguments import EPOCH, Seconds, epoch_ns, float_of, shown

MOST_PERIOD: Final = 1e9
"""Seconds."""


class CronError(ValueError):
    """An expression is wrong, or never matches."""


class Calendar(Protocol):
    """When a job is due: `after` gives the first time after another one; None: never again."""

    clock: int
    spec: list[Any]
    """Equal for equal schedules, in each process."""

    def after(self, moment: int | None, now: int) -> int | None: ...


class Every:
    """The multiples of a period, so that all workers have the same grid."""

    clock = _native.CLOCK_BASE

    def __init__(self, period: Seconds) -> None:
        seconds = float_of(period, "period")
        if not 1e-3 <= seconds <= MOST_PERIOD:
            raise ValueError(f"every({shown(period)}): expected 0.001 to {MOST_PERIOD:g} seconds")
        self._period = round(seconds * 1e9)
        self.spec = ["every", self._period]

    def after(self, moment: int | None, now: int) -> int:
        last = now if moment is None else moment
        return (last // self._period + 1) * self._period


class Cron:
    """The times of a cron expression in a zone, as Debian's cron defines them."""

    clock = _native.CLOCK_REALTIME

    def __init__(self, expression: str, tz: str) -> None:
        try:
            from cronsim import CronSim, CronSimError
        except ImportError as error:
            raise ImportError(f"cron() needs cronsim: {extras.command('jobs')}") from error
        if not isinstance(expression, str):
            raise CronError(f"cron({shown(expression)}): expected text, such as '0 3 * * *'")
        try:
            self._zone = ZoneInfo(tz)
        except (ZoneInfoNotFoundError, ValueError, TypeError, OSError) as error:
            raise CronError(f"tz={shown(tz)}: expected a zone, such as 'Europe/Berlin'") from error
        self._simulate: Callable[[datetime], Any] = lambda start: CronSim(expression, start)
        self.spec = ["cron", expression, tz]
        try:
            found = self.after(None, time.time_ns())
        except (CronSimError, AttributeError, TypeError) as error:
            raise CronError(f"cron({shown(expression)}): {error}") from error
        if found is None:
            raise CronError(f"cron({shown(expression)}) never matches in 50 years")

    def after(self, moment: int | None, now: int) -> int | None:
        start = _moment(now if moment is None else moment, self._zone)
        found = next(self._simulate(start), None)
        return None if found is None else epoch_ns(found)


class Trigger:
    """An object with APScheduler's `get_next_fire_time(previous, now)`."""

    clock = _native.CLOCK_REALTIME

    def __init__(self, trigger: Any) -> None:
        if not callable(getattr(trigger, "get_next_fire_time", None)):
            raise TypeError(
                f"on({shown(trigger)}): expected a trigger with get_next_fire_time(previous, now), "
                "such as those of apscheduler.triggers"
            )
        self._trigger = trigger
        text = re.sub(" at 0x[0-9a-f]+", "", str(trigger))  # an address is another in each process
        self.spec = ["trigger", type(trigger).__name__, text]

    def after(self, moment: int | None, now: int) -> int | None:
        previous = None if moment is None else _moment(moment, UTC)
        start = _moment(now, UTC) if previous is None else previous + timedelta(microseconds=1)
        found = self._trigger.get_next_fire_time(previous, start)
        if found is None:
            return None
        if not isinstance(found, datetime):
            raise TypeError(f"{self._trigger!r} gave {shown(found)}, expected a datetime, or None")
        due = epoch_ns(found)
        if moment is not None and due <= moment:  # it would be due for ever
            raise ValueError(f"{self._trigger!r} gave {found}, expected a time after {previous}")
        return due


def of_spec(spec: list[Any]) -> Calendar | None:
    """The schedule of another worker's definition; None: only that worker has it."""
    if spec[0] == "every":
        return Every(spec[1] / 1e9)
    return Cron(spec[1], spec[2]) if spec[0] == "cron" else None


def _moment(ns: int, zone: Any) -> datetime:
    return (EPOCH + timedelta(microseconds=ns // 1000)).astimezone(zone)
