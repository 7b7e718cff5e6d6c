"""Options of data sources, as `wheeld` and `wheeld.kafka` both parse them from Spark's strings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from wheeld_pipeline.errors import PipelineError

SPARKS_OWN: Final = frozenset({"checkpointlocation", "queryname", "path"})
"""Options that Spark passes on and that a source ignores, in lower case."""


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


def count(most: int) -> Callable[[str, str], int]:
    """A parser of whole numbers from 1 to `most`."""

    def parse(option: str, value: str) -> int:
        if not value.strip().isdecimal() or not 1 <= int(value) <= most:
            raise wrong(option, value, f"a whole number from 1 to {most}")
        return int(value)

    return parse
