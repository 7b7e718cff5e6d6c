"""The jobs of a daemon's applications, as entries of its status.

They are stored in timers of workers, so the supervisor does not read them; the program that shows
the status does.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from wheeld_client import JobBoard, JobState
from wheeld_core.errors import WheelError

MOST_JOBS: Final = 200
"""The most jobs in the metrics: each is a label, and applications choose how many they have."""


def with_jobs(
    status: dict[str, Any], name: str | Path, runtime_dir: Path | None = None
) -> dict[str, Any]:
    """A status with the first `MOST_JOBS` jobs by name."""
    try:
        found = JobBoard(str(name), runtime_dir).jobs() if status["keys"]["used"] else []
    except (WheelError, OSError):  # it has just stopped, or is another user's
        found = []
    named = [_entry(each) for each in found if each.schedule != "removed"]
    return {**status, "jobs": named[:MOST_JOBS], "jobs_unnamed": len(named[MOST_JOBS:])}


def _entry(job: JobState) -> dict[str, Any]:
    return {
        "name": f"{job.application}/{job.name}",
        "runs": job.runs,
        "failures": job.failures,
        "failing": job.failing,
        "missed": job.missed,
        "late_s": job.late,
        "lasted_s": job.lasted,
        "next": job.next,
        "paused": job.paused,
        "running": job.running,
        "worker": job.worker,
    }
