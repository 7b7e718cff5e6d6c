"""The options of the data source, from strings, checked before anything is done."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

from wheeld_pipeline.errors import PipelineError
from wheeld_pipeline.source_options import SPARKS_OWN, count, flag, text, wrong

_MOST_LANES: Final = 1000


@dataclass(frozen=True)
class Options:
    """The values of `option(...)`; see `WheeldDataSource`."""

    name: str = "default"
    runtime_dir: str | None = None
    journal: str = ""
    worker: str = "spark"
    lanes: int = 16
    lane_timeout: float = 60.0
    job: str | None = None
    beyond_keep: str = "fail"
    max_rows_per_trigger: int | None = None
    partition_rows: int = 500_000
    visit_interval: float = 1.0
    fail_on_data_loss: bool = True

    @classmethod
    def parse(cls, given: Mapping[str, str]) -> Options:
        """From Spark's strings.

        Raises
        ------
        PipelineError
            An option is unknown, or its value is not allowed.
        """
        values: dict[str, Any] = {}
        for key, value in given.items():
            option = key.lower()
            if option in SPARKS_OWN:
                continue
            if option not in _PARSERS:
                known = ", ".join(field.name for field in fields(cls))
                raise PipelineError(f"option {key!r}: wheeld has no such option; {known}")
            values[option] = _PARSERS[option](option, value)
        values.setdefault("journal", _default_journal(values.get("name", "default")))
        return cls(**values)


def _default_journal(name: str) -> str:
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return str(Path(state, "wheeld", "spark", Path(name).name))


def _plain(option: str, value: str) -> str:
    if not value or len(value) > 100 or not all(c.isalnum() or c in "._-" for c in value):
        raise wrong(option, value, "letters, digits, '.', '_' or '-', at most 100")
    return value


def _prefix(option: str, value: str) -> str:
    if not 1 <= len(value.encode()) <= 32 or "\0" in value:
        raise wrong(option, value, "1 to 32 bytes of UTF-8")
    return value


def _directory(option: str, value: str) -> str:
    if not os.path.isabs(value):
        raise wrong(option, value, "an absolute path: tasks run in directories of their own")
    return value


def _seconds(option: str, value: str) -> float:
    try:
        seconds = float(value)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < 1e6:
        raise wrong(option, value, "seconds, 0 or more")
    return seconds


def _keep(option: str, value: str) -> str:
    if value not in ("fail", "allow"):
        raise wrong(option, value, "fail or allow")
    return value


_PARSERS: Final[dict[str, Callable[[str, str], Any]]] = {
    "name": text,
    "runtime_dir": text,
    "journal": _directory,
    "worker": _prefix,
    "lanes": count(_MOST_LANES),
    "lane_timeout": _seconds,
    "job": _plain,
    "beyond_keep": _keep,
    "max_rows_per_trigger": count(2**62),
    "partition_rows": count(2**31),
    "visit_interval": _seconds,
    "fail_on_data_loss": flag,
}
