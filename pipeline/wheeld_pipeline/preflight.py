"""Checks that the Python of the executors has wheeld, before work is sent there.

Without wheeld, tasks fail one after another, and Spark restarts executors for minutes; only their
logs have the reason.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from wheeld_pipeline.errors import PipelineError, brief

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession


def check(spark: SparkSession, tasks: int) -> None:
    """Run this many tasks that import the modules of the pipeline's tasks.

    Raises
    ------
    PipelineError
        One of them fails; names the host, its Python and the module.
    """

    def look(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        # A nested function is pickled by its code: an executor without wheeld can run it.
        import socket
        import sys
        from importlib import import_module

        import pyarrow as pa

        said = ""
        try:
            # the first loads the compiled module
            for name in ("wheeld_pipeline", "duckdb", "pandas"):
                import_module(name)
        except ImportError as error:
            said = f"{sys.executable} on {socket.gethostname()} has no {error.name}"
        for batch in batches:
            yield pa.RecordBatch.from_pydict({"said": [said] * batch.num_rows})

    try:
        rows = spark.range(0, tasks, 1, tasks).mapInArrow(look, "said string").collect()
        lacks = next((row[0] for row in rows if row[0]), None)
    except Exception as error:  # of Spark: a Python that does not start, or has no pyarrow
        lacks = brief(error)
    if lacks is not None:
        raise PipelineError(
            f"the executors cannot run wheeld: {lacks}; install wheeld for their Python, or send "
            "an environment along with --conf spark.archives: docs/on-your-cluster.md"
        )
