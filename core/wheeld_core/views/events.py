"""Events with data that does not fit into their records.

All records have one size. A payload in the heap, for example, is kept beside the array that `poll`
returns, by name and by the event's id. Slices, selections, copies and concatenations of the array
have this data as well; a record finds it through the array that it is a part of.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Beside = Mapping[str, Mapping[int, Any]]
_NOTHING: Final[Beside] = {}


class Events(np.ndarray[Any, np.dtype[Any]]):
    """An array of events with data beside their records.

    Attributes
    ----------
    beside : mapping
        Name of the data -> the event's id -> the value.
    """

    beside: Beside

    def __array_finalize__(self, source: object) -> None:
        self.beside = getattr(source, "beside", _NOTHING)

    def __getitem__(self, item: Any) -> Any:
        part = super().__getitem__(item)
        if isinstance(part, np.ndarray) and part.dtype.names is None:
            return part.view(np.ndarray)  # a field: events no longer
        return part

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        made = super().__array_function__(function, types, args, kwargs)
        if isinstance(made, np.ndarray) and made.dtype.names and "timer_id" in made.dtype.names:
            return with_beside(made, _merged(_events_in([*args, *kwargs.values()])))
        return made.view(np.ndarray) if isinstance(made, Events) else made

    def __reduce__(self) -> Any:
        return with_beside, (np.array(self, subok=False), self.beside)


def with_beside(events: npt.NDArray[Any], beside: Beside) -> Events:
    joined = events.view(Events)
    joined.beside = beside
    return joined


def wider(dtype: np.dtype[Any], name: str, kind: str) -> np.dtype[Any]:
    """The dtype with one more field."""
    kinds: Any = dtype.fields
    return np.dtype([(known, kinds[known][0]) for known in kinds] + [(name, kind)])


def widened(events: npt.NDArray[Any], wide: np.dtype[Any]) -> npt.NDArray[Any]:
    """A copy with the fields of `wide`; fields that the events lack are 0."""
    found: npt.NDArray[Any] = np.zeros(len(events), wide)
    for name in events.dtype.names or ():
        found[name] = events[name]
    beside = getattr(events, "beside", None)
    return found if beside is None else with_beside(found, beside)


def beside_of(event: np.void, what: str) -> Any:
    """The data of that name for the event. None if it has none, or if the event is a copy outside
    of any array."""
    whole: Any = event
    while whole is not None and not isinstance(whole, Events):
        whole = getattr(whole, "base", None)
    return None if whole is None else whole.beside.get(what, {}).get(int(event["timer_id"]))


def _events_in(given: Any) -> list[Events]:
    if isinstance(given, Events):
        return [given]
    return (
        [one for part in given for one in _events_in(part)]
        if isinstance(given, list | tuple)
        else []
    )


def _merged(arrays: list[Events]) -> Beside:
    merged: dict[str, dict[int, Any]] = {}
    for array in arrays:
        for what, things in array.beside.items():
            merged.setdefault(what, {}).update(things)
    return merged
