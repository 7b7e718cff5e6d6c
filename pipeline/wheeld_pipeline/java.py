"""Starting Spark's Java quietly.

Java and log4j write some six uninteresting lines when they start. They go into a pipe. Lines from
before Spark has started are shown only if it does not start; later lines are shown at once.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import IO, TYPE_CHECKING, Final

from wheeld_pipeline.errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_SHOWN: Final = 20
"""Lines shown of a failed start."""


class _Quiet:
    """Reads what Java writes to stderr, in a thread."""

    def __init__(self, stream: IO[bytes]) -> None:
        self.lines: list[str] = []
        self.up = threading.Event()
        self._stream = stream
        threading.Thread(target=self._read, name="java", daemon=True).start()

    def _read(self) -> None:
        for line in self._stream:
            text = line.decode(errors="replace")
            if self.up.is_set():
                sys.stderr.write(text)
            else:
                self.lines.append(text)


def session(app: str, master: str | None, settings: dict[str, str], verbose: bool) -> SparkSession:
    """A session of Spark, embedded or on a cluster; an active session is used unchanged.

    Without `master`, `spark-submit` has set one. With `verbose`, Java's output is shown.

    Raises
    ------
    PipelineError
        Spark did not start; Java's output is on stderr.
    """
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    if master is not None:
        settings = settings | {"spark.master": master}
    builder = SparkSession.builder.appName(app)
    for key, value in settings.items():
        builder = builder.config(key, value)
    if SparkContext._gateway is not None:  # this process has a Java already
        return _calm(builder.getOrCreate())
    conf = SparkConf().setAppName(app).setAll(list(settings.items()))
    quiet = None
    try:
        streams = {} if verbose else {"stderr": subprocess.PIPE}
        gateway = launch_gateway(conf, streams)  # type: ignore[no-untyped-call]
        if not verbose:
            quiet = _Quiet(gateway.proc.stderr)
        SparkContext(conf=conf, gateway=gateway)
        return _calm(builder.getOrCreate())
    except Exception as error:  # of PySpark, or of Java: a setting, a package, a master
        if quiet is not None:
            sys.stderr.writelines(quiet.lines[-_SHOWN:])
        reason = str(error).strip().splitlines()[0]
        raise PipelineError(f"Spark did not start: {reason}") from error
    finally:
        if quiet is not None:
            quiet.up.set()


def _calm(spark: SparkSession) -> SparkSession:
    spark.sparkContext.setLogLevel("ERROR")
    return spark
