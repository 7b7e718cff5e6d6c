"""Progress of a job of Spark on stderr."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

from wheeld_core.progress import show_progress

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@contextlib.contextmanager
def of_job(spark: SparkSession, title: str, tasks: int) -> Iterator[None]:
    """Show how many tasks are done while the block runs a job of Spark with `tasks` tasks.

    Through Spark Connect that is unknown, and nothing is shown.
    """
    try:
        tracker = spark.sparkContext.statusTracker()
    except Exception:  # Connect has no context; which error it raises depends on its version
        yield
        return
    over = threading.Event()

    def watch() -> None:
        with show_progress(title, tasks, "tasks") as tell:
            while not over.wait(0.2):
                stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
                tell(sum(stage.numCompletedTasks for stage in stages if stage))

    thread = threading.Thread(target=watch, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
