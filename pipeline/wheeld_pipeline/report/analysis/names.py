"""Workers by name: two of one name, of different daemons or runs, are told apart."""

from __future__ import annotations

from typing import Any

from wheeld_pipeline.report.counts.rows import WHEEL

_RUN_DIGITS = 4


def of_workers(frame: Any) -> list[str | None]:
    """A name for the worker of each row, as a page shows it.

    Parameters
    ----------
    frame : pandas.DataFrame
        `worker`, `host`, `daemon`, `run`.
    """
    wheels = frame.drop_duplicates(["worker", *WHEEL]).groupby("worker")
    counts, distinct = wheels.size(), wheels[list(WHEEL)].nunique()

    def name(row: dict[str, Any]) -> str | None:
        worker = row["worker"]
        if worker not in counts.index or counts[worker] == 1:
            return worker  # type: ignore[no-any-return]
        enough = (each for each in WHEEL if distinct.loc[worker, each] == counts[worker])
        which = next(enough, "run")
        return f"{worker} · {row[which][:_RUN_DIGITS] if which == 'run' else row[which]}"

    return [name(row) for row in frame.to_dict("records")]
