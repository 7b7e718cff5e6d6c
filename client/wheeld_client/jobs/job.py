"""A function that is a job, and its options."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    Generic,
    Literal,
    ParamSpec,
    TypeAlias,
    TypedDict,
    TypeVar,
    overload,
)

from wheeld_client.jobs.calendars import Calendar
from wheeld_client.timers.policies import span_of
from wheeld_core.arguments import Seconds, float_of, shown, utf8_size
from wheeld_core.timer_options import Conflict, Key

if TYPE_CHECKING:
    from wheeld_client.jobs.jobs import Jobs

NAME_BYTES: Final = 512
"""The longest name of a job: the keys of its timers contain it and the application's name."""


P = ParamSpec("P")
R = TypeVar("R")


class JobKeywords(TypedDict, total=False):
    """The fields of `JobOptions`, for type checkers."""

    name: str | None
    at_most_once: bool
    overlap: Literal["skip", "wait"]
    grace: Seconds | None
    jitter: Seconds
    retries: int
    backoff: Seconds


@dataclass(frozen=True)
class JobOptions:
    """Options of `every`, `cron`, `on` and `task`.

    Attributes
    ----------
    name : str, optional
        Unique in its `Jobs`; default: the function's `__qualname__`.
    at_most_once : bool
        If a worker dies in it, it is not run again.
    overlap : {'skip', 'wait'}
        Occurrences that fall due while one runs are left out, or run after it.
    grace : float or timedelta, optional
        Seconds; an occurrence that would begin later than that is left out. Default: each runs.
    jitter : float or timedelta
        Seconds; each occurrence is delayed by a random time up to this.
    retries : int
        How often it is run again after an exception.
    backoff : float or timedelta
        Seconds before the first retry; each further one waits twice as long, up to an hour.
    """

    name: str | None = None
    at_most_once: bool = False
    overlap: Literal["skip", "wait"] = "skip"
    grace: Seconds | None = None
    jitter: Seconds = 0.0
    retries: int = 0
    backoff: Seconds = 1.0

    def __post_init__(self) -> None:
        if self.overlap not in ("skip", "wait"):
            raise ValueError(f"overlap={shown(self.overlap)}: expected 'skip' or 'wait'")
        if type(self.at_most_once) is not bool:
            raise TypeError(f"at_most_once={shown(self.at_most_once)}: expected True or False")
        for option in ("grace", "jitter", "backoff"):
            given = getattr(self, option)
            if given is not None or option != "grace":
                object.__setattr__(self, option, span_of(option, given))
        if type(self.retries) is not int or self.retries < 0:
            raise ValueError(f"retries={shown(self.retries)}: expected an int, 0 or more")
        if self.name is None:
            return
        if type(self.name) is not str or not 1 <= utf8_size(self.name) <= NAME_BYTES:
            raise ValueError(
                f"name={shown(self.name)}: expected a str of 1 to {NAME_BYTES} bytes of UTF-8"
            )


class Job(Generic[P, R]):
    """A function that `Jobs` runs. Calling it calls the function, here and now."""

    def __init__(
        self,
        jobs: Jobs,
        function: Callable[P, R],
        calendar: Calendar | None,
        options: JobOptions,
    ) -> None:
        if not callable(function):
            raise TypeError(f"a job is a function: got {shown(function)}")
        functools.update_wrapper(self, function)
        self.function, self.calendar, self.options = function, calendar, options
        self.name = _name_of(function) if options.name is None else options.name
        self._jobs = jobs

    @property
    def jitter(self) -> float:
        return float_of(self.options.jitter)

    @property
    def grace(self) -> float | None:
        return None if self.options.grace is None else float_of(self.options.grace)

    @property
    def backoff(self) -> float:
        return float_of(self.options.backoff)

    def __call__(self, *args: P.args, **options: P.kwargs) -> R:
        return self.function(*args, **options)

    @overload
    def schedule(self, delay: Seconds, /, *args: P.args, **keywords: P.kwargs) -> int: ...
    @overload
    def schedule(
        self,
        delay: Seconds,
        /,
        *args: Any,
        key: Key | None,
        on_conflict: Conflict = "raise",
        **keywords: Any,
    ) -> int: ...
    def schedule(  # type: ignore[misc] # mypy: `P.kwargs` may have a `key`, too
        self,
        delay: Seconds,
        /,
        *args: Any,
        key: Key | None = None,
        on_conflict: Conflict = "raise",
        **keywords: Any,
    ) -> int:
        """Run it in `delay` seconds with these arguments, in any worker that runs the jobs.

        Parameters
        ----------
        delay : float or timedelta
        *args, **keywords
            Of the function: None, bool, int, float, str, and lists and dicts of these.
        key : str, bytes, int or a flat tuple of those, optional
            At most one pending run of this job has it.
        on_conflict : {'raise', 'keep', 'replace', 'later', 'earlier'}
            As in `Timers.schedule`; 'replace' debounces.

        Returns
        -------
        int
            The id of its timer, which `Timers.cancel` takes.

        Raises
        ------
        TypeError, ValueError
            JSON would change an argument, or the function does not accept the arguments; nothing is
            scheduled.
        KeyInUse, PayloadTooLarge, WheelFull, DaemonNotRunning
            As in `Timers.schedule`.
        """
        return self._jobs._schedule(self, delay, args, keywords, key, on_conflict)


def _name_of(function: Callable[..., Any]) -> str:
    name = getattr(function, "__qualname__", None)
    if type(name) is not str:
        raise TypeError(f"{shown(function)} has no __qualname__: give the job a name=")
    return name


AnyJob: TypeAlias = Job[..., Any]
