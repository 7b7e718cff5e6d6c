"""The Spark session that the pipeline's commands run in, and what it needs of this machine."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from wheeld_pipeline.errors import PipelineError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LEAST_JAVA = 17
DRIVER_MEMORY = "1g"
"""Of the embedded Spark: what the driver's heap may have, unless SPARK_DRIVER_MEMORY says more."""
_SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.shuffle.partitions": "8",
    "spark.sql.adaptive.enabled": "true",
}
_LOCAL_SETTINGS = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}


def java_version() -> int | None:
    """The major version of the Java that Spark would start; None: there is none."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    try:
        command = [java or "java", "-version"]
        said = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return None
    found = re.search(r'version "(\d+)(?:\.(\d+))?', said.stderr + said.stdout)
    if found is None:
        return None
    return int(found[2] or 0) if found[1] == "1" else int(found[1])  # Java 8 calls itself 1.8


def check() -> None:
    """Raise unless this machine has what Spark needs.

    Raises
    ------
    PipelineError
        PySpark is not installed, or there is no Java that is new enough; says how to get it.
    """
    try:
        import pyspark  # noqa: F401
    except ImportError as error:
        raise PipelineError(
            "the pipeline runs on Spark, which is not installed: pip install 'wheeld[spark]'"
        ) from error
    found = java_version()
    if found is None or found < LEAST_JAVA:
        got = "no Java was found" if found is None else f"this is Java {found}"
        raise PipelineError(
            f"Spark needs Java {LEAST_JAVA} or newer and {got}: install one (Debian: sudo apt-get "
            f"install default-jre-headless) or point JAVA_HOME at it"
        )


def connect(
    app: str = "wheeld",
    master: str | None = None,
    remote: str | None = None,
    settings: dict[str, str] | None = None,
) -> SparkSession:
    """A Spark session; one that is active already is used as it is.

    Parameters
    ----------
    app : str
        What the application is called.
    master : str, optional
        URL of a cluster; default: `local[*]`, Spark inside this process.
    remote : str, optional
        URL of a Spark Connect server, `sc://...`, instead.
    settings : dict, optional
        More settings of Spark; they win over those of the pipeline.

    Raises
    ------
    PipelineError
        Spark or Java is missing, or both `master` and `remote` are given.
    """
    if master and remote:
        raise PipelineError(f"got --master {master} and --remote {remote}: expected one of them")
    check()
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(app)
    chosen = dict(_SETTINGS)
    if remote:
        builder = builder.remote(remote)
        chosen = {"spark.sql.session.timeZone": "UTC"}
    else:
        master = master or "local[*]"
        builder = builder.master(master)
        if master.startswith("local"):
            chosen |= _LOCAL_SETTINGS
            memory = os.environ.get("SPARK_DRIVER_MEMORY", DRIVER_MEMORY)
            chosen["spark.driver.memory"] = memory
    for key, value in (chosen | (settings or {})).items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    if not remote:
        spark.sparkContext.setLogLevel("ERROR")
    return spark


@contextmanager
def opened(
    app: str = "wheeld",
    master: str | None = None,
    remote: str | None = None,
    settings: dict[str, str] | None = None,
) -> Iterator[SparkSession]:
    """`connect`, and stop the session at the end if it was not there before: what commands use.

    Raises
    ------
    PipelineError
        As `connect`.
    """
    check()
    from pyspark.sql import SparkSession

    before = SparkSession.getActiveSession()
    spark = connect(app, master, remote, settings)
    try:
        yield spark
    finally:
        if before is None:
            spark.stop()
