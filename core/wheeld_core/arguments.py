"""Numbers that callers give, and how a message shows what was given."""

from __future__ import annotations

import math
import reprlib
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from typing import Any, Final, NoReturn, TypeAlias, TypeVar

from wheeld_core.errors import InvalidDelay

LONGEST: Final = 120
"""Characters of a value in a message."""
MOST_NAME: Final = 1024
"""Bytes."""
END_OF_TIME: Final = 9.3e9
"""Seconds; 2**63 ns are a little less."""
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

Seconds: TypeAlias = float | timedelta
"""A span of time."""
When: TypeAlias = float | datetime
"""A point in time: seconds on a clock, or a datetime with a time zone."""


Made = TypeVar("Made")


class _Bounded(reprlib.Repr):
    """A short `repr` that never raises: an error message about a value must not itself fail."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = LONGEST

    def repr_int(self, x: int, level: int) -> str:
        """Python refuses to convert integers of more than 4,300 digits."""
        if x.bit_length() > 3 * LONGEST:
            return f"an int of about {int(x.bit_length() * math.log10(2)) + 1} digits"
        return repr(x)

    def repr_bytes(self, x: bytes, level: int) -> str:
        return repr(x[:LONGEST]) + ("..." if len(x) > LONGEST else "")

    repr_bytearray = repr_bytes

    def repr_instance(self, x: Any, level: int) -> str:
        try:
            text = str.__str__(repr(x))
        except Exception as error:
            return f"<{type(x).__name__}, whose repr raises {type(error).__name__}>"
        return text if len(text) <= LONGEST else f"{text[:LONGEST]}..."


_bounded: Final = _Bounded()


def shown(value: object) -> str:
    """A short `repr(value)` for an error message; never raises."""
    try:
        return _bounded.repr(value)
    except Exception as error:  # of a class that pretends to be another
        return f"<{type(value).__name__}, whose repr raises {type(error).__name__}>"


def check_name(name: Any) -> None:
    """`TypeError`, `ValueError`: it cannot be a name in shared memory."""
    expect("name", name, str)
    if utf8_size(name) < 0:
        raise ValueError(f"name={shown(name)}: expected text that UTF-8 can hold")
    if utf8_size(name) > MOST_NAME or "\0" in name:
        raise ValueError(f"name={shown(name)}: expected at most {MOST_NAME:,} bytes, and no NUL")


def utf8_size(text: str) -> int:
    """How many bytes a text has; -1: it has lone surrogates, and UTF-8 cannot hold it."""
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        return -1


def expect(what: str, value: object, *kinds: type) -> None:
    """Raise TypeError unless the argument `what` is of one of these kinds."""
    if not isinstance(value, kinds):
        names = " or ".join(kind.__name__ for kind in kinds)
        raise TypeError(f"{what}: got {type(value).__name__}, expected {names}")


def whole_of(what: str, given: Any, most: int, least: int = 1) -> int:
    """An integer from `least` to `most`; TypeError, ValueError: it is something else."""
    if isinstance(given, bool) or not hasattr(given, "__index__"):
        raise TypeError(f"{what}={shown(given)}: expected an int")
    if not least <= (whole := int(given.__index__())) <= most:
        raise ValueError(f"{what}={shown(given)}: expected {least} to {most:,}")
    return whole


def made_of(
    kind: type[Made], call: str, given: dict[str, Any], inner: frozenset[str] = frozenset()
) -> Made:
    """A dataclass of options as a call got them; the TypeError for one that it does not have names
    the call, and those that it has. `inner`: options that no call takes."""
    names = [each.name for each in fields(kind) if each.name not in inner]  # type: ignore[arg-type]
    for name in given:
        if name not in names:
            raise TypeError(
                f"{call}() got an unexpected keyword argument {shown(name)}: expected some of "
                f"{', '.join(names)}"
            )
    return kind(**given)


def float_of(given: Any, what: str = "") -> float:
    """A span in seconds; infinity for an integer that no float holds. `what` is its name in an
    error message.

    Raises
    ------
    TypeError
        It is neither a number nor a timedelta.
    ValueError
        It is a datetime without a time zone.
    """
    if type(given) is float:
        return given
    if isinstance(given, timedelta):
        return _span_seconds(given)
    if isinstance(given, datetime):
        refuse_time(given, "a delay")
    if (kind := getattr(getattr(given, "dtype", None), "kind", "")) == "M":
        raise TypeError(
            f"got {shown(given)}, which has no time zone: expected seconds, a timedelta, or for a "
            "point in time a datetime with a time zone"
        )
    if kind == "m":  # numpy's: as a number it counts its own unit. NaT becomes NaN
        return float(given / given.dtype.type(1, "s"))
    try:
        return math.ldexp(given, 0)  # reads it once, as the native calls do
    except OverflowError:
        return math.inf if given > 0 else -math.inf
    except ValueError:  # Decimal("sNaN")
        return math.nan
    except TypeError as error:
        name = f"{what}: " if what else ""
        text = f"{name}got {shown(given)}, expected seconds: a number, or a timedelta"
        raise TypeError(text) from error


def seconds_of(given: Seconds) -> float:
    """A span in seconds as `float_of`; InvalidDelay if it is NaN."""
    seconds = float_of(given)
    if math.isnan(seconds):
        raise InvalidDelay(f"expected a number of seconds, or None: got {shown(given)}")
    return seconds


def refuse_time(given: datetime, what: str) -> NoReturn:
    """Raise the error for a datetime where a span of time is expected."""
    since_epoch(given)
    raise TypeError(
        f"{what} is a number of seconds or a timedelta: got {shown(given)}; for a point in time "
        "use a call that takes one, such as schedule_at, or subtract the present from it"
    )


def since_epoch(when: datetime) -> timedelta:
    """The span from 1970 to a time; ValueError if it has no time zone."""
    if when.utcoffset() is None:
        raise ValueError(
            f"{shown(when)} has no time zone, so it is a different point in time on each host: "
            "use datetime.now(UTC), or make it aware with .astimezone() or "
            ".replace(tzinfo=...)"
        )
    return when - EPOCH


def epoch_ns(when: datetime) -> int:
    """The nanoseconds from 1970 to a time; errors as `since_epoch`."""
    return _span_ns(since_epoch(when))


def _span_ns(span: timedelta) -> int:
    return span // timedelta(microseconds=1) * 1000 + int(getattr(span, "nanoseconds", 0))  # pandas


def _span_seconds(span: timedelta) -> float:
    """Its seconds; pandas leaves out its nanoseconds. Times 1e9 and cut, as the core does, the
    number is no shorter than the span."""
    if not getattr(span, "nanoseconds", 0):
        return span.total_seconds()
    ns = _span_ns(span)
    seconds = ns / 10**9
    return math.nextafter(seconds, math.inf) if int(seconds * 1e9) < ns else seconds


def time_of(when: Any) -> float:
    """A point in time on a clock that counts seconds, as `float_of`; TypeError for a span."""
    if isinstance(when, timedelta):
        raise TypeError(
            f"when is a point in time: got {shown(when)}; for a span from now use a call that "
            "takes a delay, such as schedule"
        )
    return float_of(when, "when")


def step_ns(seconds: Seconds) -> int:
    """The nanoseconds to advance a virtual clock by; ValueError if `seconds` is not a valid
    step."""
    step = float_of(seconds)
    if not 0 <= step < math.inf:
        raise ValueError(f"advance by {shown(seconds)} s: expected a number, 0 or more")
    return round(min(step, END_OF_TIME) * 1e9)
