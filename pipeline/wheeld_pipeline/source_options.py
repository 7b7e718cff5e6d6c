"""Shared by the data sources `wheeld` and `wheeld.kafka`: options from Spark's strings, shares of a
batch, and the batch of a task."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping
from typing import Any, Final, TypeVar

from wheeld_pipeline.errors import PipelineError

_SPARKS_OWN: Final = frozenset({"checkpointlocation", "queryname", "path"})
"""Options that Spark passes and a source ignores, in lower case."""
_QUERY_ID: Final = "sql.streaming.queryId"
_BATCH_ID: Final = "streaming.sql.batchId"
Parser = Callable[[str, str], Any]
K = TypeVar("K", bound=Hashable)


def parsed(
    source: str, given: Mapping[str, str], known: Mapping[str, tuple[str, Parser]]
) -> dict[str, Any]:
    """The values of options by field; `known`: option -> its field and parser.

    Raises
    ------
    PipelineError
        An option is unknown, or its value is not allowed.
    """
    parsers = {option.lower(): own for option, own in known.items()}
    values = {}
    for option, value in given.items():
        if own := parsers.get(option.lower()):
            values[own[0]] = own[1](option, value)
        elif option.lower() not in _SPARKS_OWN:
            names = ", ".join(known)
            raise PipelineError(f"option {option!r}: {source} has no such option; {names}")
    return values


def wrong(option: str, value: str, expected: str) -> PipelineError:
    return PipelineError(f"option {option}={value!r}: expected {expected}")


def text(option: str, value: str) -> str:
    if not value:
        raise wrong(option, value, "some text")
    return value


def flag(option: str, value: str) -> bool:
    if value.lower() not in ("true", "false"):
        raise wrong(option, value, "true or false")
    return value.lower() == "true"


def count(most: int) -> Parser:
    """A parser of whole numbers from 1 to `most`."""

    def parse(option: str, value: str) -> int:
        if not value.strip().isdecimal() or not 1 <= int(value) <= most:
            raise wrong(option, value, f"a whole number from 1 to {most}")
        return int(value)

    return parse


def seconds(expected: str, allowed: Callable[[float], bool]) -> Parser:
    """A parser of numbers of seconds that are `allowed`; `expected` says which."""

    def parse(option: str, value: str) -> float:
        try:
            found = float(value)
        except ValueError:
            found = math.nan
        if not allowed(found):
            raise wrong(option, value, f"seconds, {expected}")
        return found

    return parse


def at_most(begin: Mapping[K, int], ends: Mapping[K, int], rows: int) -> dict[K, int]:
    """End positions with at most `rows` rows in total after `begin`, shared fairly: a long one
    takes nothing from the others."""
    waiting = {key: max(end - begin.get(key, 0), 0) for key, end in ends.items()}
    found = {}
    for rank, (key, left) in enumerate(sorted(waiting.items(), key=lambda item: item[1])):
        step = min(left, rows // (len(waiting) - rank))
        found[key] = begin.get(key, 0) + step
        rows -= step
    return found


def of_task() -> tuple[str, int]:
    """The query, and the number of the batch, of this task of a stream."""
    from pyspark import TaskContext

    context = TaskContext.get()
    assert context is not None, "a task of Spark"
    query, batch = context.getLocalProperty(_QUERY_ID), context.getLocalProperty(_BATCH_ID)
    if query is None or batch is None:
        raise PipelineError("this Spark does not pass query id and batch id to its tasks")
    return query, int(batch)


def refuse_overwrite(overwrite: bool, what: str) -> None:
    if overwrite:
        raise PipelineError(f'mode("overwrite"): {what} can only be added; use mode("append")')
