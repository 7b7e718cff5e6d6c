"""The options of the data source, from strings, checked before anything is done."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from wheeld_pipeline.source_options import Parser, count, flag, parsed, seconds, text, wrong


@dataclass(frozen=True)
class Options:
    """The values of `option(...)`; see `WheeldDataSource`."""

    name: str = "default"
    runtime_dir: str | None = None
    journal: str = ""
    timeout: float = 60.0
    job: str | None = None
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
        values = parsed("wheeld", given, {name: (name, own) for name, own in _PARSERS.items()})
        values.setdefault("journal", _default_journal(values.get("name", "default")))
        return cls(**values)


def _default_journal(name: str) -> str:
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return str(Path(state, "wheeld", "spark", Path(name).name))


def _plain(option: str, value: str) -> str:
    if not value or len(value) > 100 or not all(c.isalnum() or c in "._-" for c in value):
        raise wrong(option, value, "letters, digits, '.', '_' or '-', at most 100")
    return value


def _directory(option: str, value: str) -> str:
    if not os.path.isabs(value):
        raise wrong(option, value, "an absolute path: tasks run in directories of their own")
    return value


_SECONDS: Final = seconds("0 or more", lambda found: 0 <= found < 1e6)
_PARSERS: Final[dict[str, Parser]] = {
    "name": text,
    "runtime_dir": text,
    "journal": _directory,
    "timeout": _SECONDS,
    "job": _plain,
    "max_rows_per_trigger": count(2**62),
    "partition_rows": count(2**31),
    "visit_interval": _SECONDS,
    "fail_on_data_loss": flag,
}
