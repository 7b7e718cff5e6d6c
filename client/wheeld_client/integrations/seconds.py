"""How long a request may take; checked when the application is made, not at its first request."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import timedelta
from numbers import Real
from typing import Any, TypeVar

from wheeld_client.connection.options import check_seconds
from wheeld_core.arguments import Seconds, float_of

__all__: list[str] = []

Request = TypeVar("Request")


def limit_of(seconds: Seconds | None, option: str = "seconds") -> float | None:
    """A limit in seconds; None, as for infinity: no limit.

    Raises
    ------
    TypeError, ValueError
        It is no number; it is NaN or negative. The message names the option.
    """
    if seconds is None:
        return None
    return None if math.isinf(found := check_seconds(option, seconds)) else found


def limits_of(
    seconds: Seconds | Callable[[Request], Seconds | None] | None,
) -> Callable[[Request], float | None]:
    """A function that returns the limit of a request.

    A function may return less than 0, after subtracting time that others have used: it counts as 0,
    over at once.

    Raises
    ------
    TypeError, ValueError
        As `limit_of`: raised here for a number, and at each request for a function's result.
    """
    if not callable(seconds):
        limit = limit_of(seconds)
        return lambda _: limit
    of_request = seconds

    def limit_of_request(request: Request) -> float | None:
        found: Any = of_request(request)
        given = isinstance(found, Real | timedelta)
        return limit_of(max(float_of(found), 0.0) if given else found)

    return limit_of_request
