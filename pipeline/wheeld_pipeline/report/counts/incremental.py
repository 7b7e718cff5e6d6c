"""Incremental reports: the counts of each hour are kept, and only new hours are read.

    STATE/2026-03-01T12.arrow     the lines of `cube.count` over that hour's files

Hourly lines are combined like the lines of tasks, so the report covers the whole trace. An hour is
counted again if its files changed (as those of the current hour do), or the wheel whose candidates
were tried, or the step of time that the whole trace needs. An hour that retention has removed from
the trace is removed from the state, too.
"""

from __future__ import annotations

import hashlib
import json
import os
from functools import partial
from pathlib import Path
from typing import Any, Final

from wheeld_core.progress import show_progress
from wheeld_pipeline import trace_files
from wheeld_pipeline.errors import PipelineError
from wheeld_pipeline.files import on_disk
from wheeld_pipeline.report.counts import cube, wheels
from wheeld_pipeline.report.counts.counters import RowWindow
from wheeld_pipeline.report.counts.in_process import LocalEngine, count_part, each_of

FORMAT: Final = 2
_FINE_STEP: Final = 60
"""Seconds: longer steps of time are made from steps of a minute, so a growing trace keeps them."""
_KEY: Final = b"wheeld"
_SUFFIX: Final = ".arrow"


class IncrementalEngine(LocalEngine):
    """See `analyse.Engine`. Keeps the counts of hours in `state`, which is made if it is missing.

    `PipelineError`: `state` holds something else, or the files are not in folders by hour.
    """

    def __init__(
        self, events: list[Path], counters: list[Path], window: RowWindow, state: str | Path
    ) -> None:
        super().__init__(trace_files.share_files(events), counters, window)
        self._state = on_disk("--incremental", state)
        self._hours: dict[str, list[Path]] = {}
        for file in events:
            self._hours.setdefault(_hour_of(file), []).append(file)
        self.read: list[str] = []
        """Hours that were counted again."""
        _prepare(self._state)

    def _parts(self, step_seconds: int, tried: wheels.Candidates) -> list[Any]:
        fine = min(step_seconds, _FINE_STEP)
        signs = {hour: _sign(files, fine, tried) for hour, files in self._hours.items()}
        known = {hour: _load(self._state / f"{hour}{_SUFFIX}", signs[hour]) for hour in signs}
        self.read = [hour for hour, lines in known.items() if lines is None]
        function = partial(_count_hour, hours=self._hours, step_seconds=fine, tried=tried)
        with show_progress("report", len(self.read), "new hours") as tell:
            for done, (hour, lines) in enumerate(each_of(function, self.read), 1):
                _save(self._state / f"{hour}{_SUFFIX}", signs[hour], lines)
                known[hour] = lines
                tell(done)
        for path in self._state.glob(f"*{_SUFFIX}"):
            if path.stem not in known:
                path.unlink()
        return [_coarser(lines, step_seconds // fine) for lines in known.values()]


def _hour_of(file: Path) -> str:
    """The hour of a file in `date=2026-03-01/hour=12/`, as 2026-03-01T12."""
    parts = dict(part.split("=", 1) for part in file.parts[-3:-1] if "=" in part)
    if set(parts) != {"date", "hour"}:
        raise PipelineError(
            f"{file} is not in a folder date=.../hour=...: expected a trace as it was recorded; "
            "make the report without --incremental"
        )
    return f"{parts['date']}T{int(parts['hour']):02}"


def _sign(files: list[Path], step_seconds: int, tried: wheels.Candidates) -> str:
    facts = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in sorted(files)]
    content = [FORMAT, step_seconds, list(tried), facts, list(cube.TYPES)]
    return hashlib.sha256(json.dumps(content, default=str).encode()).hexdigest()


def _count_hour(
    hour: str, hours: dict[str, list[Path]], step_seconds: int, tried: wheels.Candidates
) -> tuple[str, Any]:
    import pyarrow as pa

    files = trace_files.share_files(hours[hour])
    parts = [count_part(files, step_seconds, tried, each) for each in range(len(files.parts))]
    return hour, pa.concat_tables(parts)


def _coarser(lines: Any, factor: int) -> Any:
    """The same lines with longer steps of time."""
    import pyarrow.compute as pc

    at = lines.schema.get_field_index("step")
    return lines.set_column(at, "step", pc.divide(lines["step"], factor))


def _prepare(state: Path) -> None:
    if state.exists() and not state.is_dir():
        raise PipelineError(f"--incremental {state} is a file: expected a directory")
    state.mkdir(parents=True, exist_ok=True)
    foreign = [each.name for each in state.iterdir() if each.suffix not in (_SUFFIX, ".part")]
    if foreign:
        raise PipelineError(
            f"--incremental {state} holds {sorted(foreign)[0]}: expected a directory for the "
            "counts alone"
        )


def _load(path: Path, sign: str) -> Any:
    """The stored lines; None: there are none, or they belong to other files."""
    import pyarrow as pa

    try:
        with pa.OSFile(str(path), "rb") as file:
            lines = pa.ipc.open_file(file).read_all()
    except (FileNotFoundError, pa.ArrowException):  # one that is cut short is counted anew
        return None
    return lines if (lines.schema.metadata or {}).get(_KEY) == sign.encode() else None


def _save(path: Path, sign: str, lines: Any) -> None:
    import pyarrow as pa

    part = path.with_suffix(".part")
    lines = lines.replace_schema_metadata({_KEY: sign.encode()})
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with (
        pa.OSFile(str(part), "wb") as file,
        pa.ipc.new_file(file, lines.schema, options=options) as out,
    ):
        out.write_table(lines)
    os.replace(part, path)
