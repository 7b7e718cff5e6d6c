"""Names of workers, made distinct between daemons and between runs."""

from __future__ import annotations

from typing import Any

import pandas as pd

from wheeld_pipeline.report.counts.columns import WHEEL

_RUN_DIGITS = 4
"""Least number of digits shown of a run; more if two runs begin with the same digits."""


def of_workers(frame: Any, among: Any = None) -> list[str | None]:
    """A name for the worker of each row, as a page shows it: unique among the workers of `frame`
    and `among`, which have the columns `worker`, `host`, `daemon` and `run`.
    """
    known = [each[["worker", *WHEEL]] for each in (frame, among) if each is not None]
    every = pd.concat(known).drop_duplicates()
    wheels = every.groupby("worker")
    counts, distinct = wheels.size(), wheels[list(WHEEL)].nunique()
    digits = _digits(every["run"].dropna().unique())

    def name(row: dict[str, Any]) -> str | None:
        worker = row["worker"]
        if worker not in counts.index or counts[worker] == 1:
            return worker  # type: ignore[no-any-return]
        enough = (each for each in WHEEL if distinct.loc[worker, each] == counts[worker])
        which = next(enough, "run")
        return f"{worker} · {row[which][:digits] if which == 'run' else row[which]}"

    return [name(row) for row in frame.to_dict("records")]


def _digits(runs: Any) -> int:
    longest = max(map(len, runs), default=_RUN_DIGITS)
    enough = (n for n in range(_RUN_DIGITS, longest) if len({run[:n] for run in runs}) == len(runs))
    return next(enough, longest)
