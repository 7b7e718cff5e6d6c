"""The Spark session of the pipeline's commands, and its requirements on this machine."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from wheeld_core import extras
from wheeld_pipeline import preflight
from wheeld_pipeline.errors import PipelineError, UsageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LEAST_JAVA = 17
DRIVER_MEMORY = "1g"
"""The driver's heap in the embedded Spark, unless SPARK_DRIVER_MEMORY sets another."""
_SETTINGS = {
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.shuffle.partitions": "8",
    "spark.sql.adaptive.enabled": "true",
}
_SUBMITTED = "PYSPARK_GATEWAY_PORT"
"""`spark-submit` sets it for its program, together with a Java process that has the settings."""
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
    """Raise unless this machine meets the requirements of Spark.

    Raises
    ------
    PipelineError
        PySpark or one of its packages is not installed, or Java is missing or too old; says how to
        get it.
    """
    try:
        import pandas  # noqa: F401
        import pyarrow  # noqa: F401
        import pyspark  # noqa: F401
    except ImportError as error:
        raise PipelineError(
            f"this runs on Spark, and {error.name} is not installed: {extras.command('spark')}"
        ) from error
    found = java_version()
    if found is None or found < LEAST_JAVA:
        got = "no Java was found" if found is None else f"this is Java {found}"
        raise PipelineError(
            f"Spark needs Java {LEAST_JAVA} or newer and {got}: install one (Debian: sudo apt-get "
            f"install default-jre-headless) or point JAVA_HOME at it"
        )


def needs_pyspark(least: str, what: str) -> None:
    """Raise unless PySpark is at least of that version, such as 4.2.

    Raises
    ------
    PipelineError
        Names both versions, and the feature that needs it.
    """
    from pyspark import __version__ as found

    if _numbers(found) < _numbers(least):
        raise PipelineError(
            f"{what} needs PySpark {least} or newer and this is {found}: "
            f"pip install 'pyspark>={least}'"
        )


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)[:2]]


@dataclass(frozen=True)
class SparkOptions:
    """Where and how Spark runs: the options of the pipeline's commands.

    Parameters
    ----------
    master : str, optional
        URL of a cluster; default: `local[*]`, Spark inside this process.
    remote : str, optional
        URL of a Spark Connect server, `sc://...`, instead.
    conf : dict
        Settings of Spark; they override everything else.
    packages : str, optional
        Maven coordinates, by commas: `spark.jars.packages`.
    jars : str, optional
        Paths or URLs, by commas: `spark.jars`.
    properties_file : path, optional
        More settings: a key and a value per line, as in `conf/spark-defaults.conf`.
    verbose : bool
        Show the output of Java when it starts.

    Raises
    ------
    PipelineError
        Two of them contradict each other.
    """

    master: str | None = None
    remote: str | None = None
    conf: dict[str, str] = field(default_factory=dict)
    packages: str | None = None
    jars: str | None = None
    properties_file: Path | None = None
    verbose: bool = False

    def __post_init__(self) -> None:
        if self.master and self.remote:
            raise UsageError(
                f"got --master {self.master} and --remote {self.remote}: expected one of them"
            )
        if self.remote and (self.packages or self.jars):
            raise UsageError(
                f"got --remote {self.remote} and jars: a Spark Connect server has its own; start "
                f"it with --packages or --jars"
            )

    @property
    def is_given(self) -> bool:
        """Whether any option asks for Spark; `spark-submit` does."""
        return _SUBMITTED in os.environ or self != SparkOptions(verbose=self.verbose)

    def settings(self) -> dict[str, str]:
        found = {} if self.properties_file is None else _properties(self.properties_file)
        if self.packages:
            found["spark.jars.packages"] = self.packages
        if self.jars:
            found["spark.jars"] = self.jars
        return found | self.conf


def _properties(path: Path) -> dict[str, str]:
    """Parse a file like `conf/spark-defaults.conf`: key, then blanks, `=` or `:`, then the
    value."""
    found = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        text = line.strip()
        if not text or text[0] in "#!":
            continue
        match = re.fullmatch(r"([^\s=:]+)(?:\s*[=:]\s*|\s+)(.*)", text)
        if match is None:
            raise UsageError(
                f"{path}, line {number}: got {text!r}, expected a key, blanks or =, and a value"
            )
        found[match[1]] = match[2]
    return found


def connect(
    app: str = "wheeld",
    options: SparkOptions | str | None = None,
    settings: dict[str, str] | None = None,
    ui: bool = False,
) -> SparkSession:
    """A Spark session; an active one is used unchanged.

    Parameters
    ----------
    app : str
        The application's name.
    options : SparkOptions or str, optional
        A string is the URL of a master; default: the master of `spark-submit`, else `local[*]`,
        Spark inside this process.
    settings : dict, optional
        More settings of Spark; they override the pipeline's settings, and `options` overrides them.
    ui : bool
        Serve Spark's pages for browsers, for long jobs.

    Raises
    ------
    PipelineError
        Spark, Java or the packages of Spark Connect are missing; or Spark did not start, or the
        executors of its cluster lack wheeld.
    """
    if not isinstance(options, SparkOptions):
        options = SparkOptions(options)
    own = options.settings()
    os.environ.setdefault("PYSPARK_PYTHON", own.get("spark.pyspark.python", sys.executable))
    before = _active()
    if options.remote:
        found = _remote(app, options)
        if before is None:
            preflight.check(found, 1)
        return found
    check()
    master = options.master or (None if _SUBMITTED in os.environ else "local[*]")
    chosen = _SETTINGS | {"spark.ui.enabled": str(ui).lower()}
    if master is not None and master.startswith("local"):
        memory = os.environ.get("SPARK_DRIVER_MEMORY", DRIVER_MEMORY)
        chosen |= _LOCAL_SETTINGS | {"spark.driver.memory": memory}
    chosen |= (settings or {}) | own
    from wheeld_pipeline import java

    found = java.session(app, master, chosen, options.verbose or _SUBMITTED in os.environ)
    if before is None and not (found.sparkContext.master or "local").startswith("local"):
        preflight.check(found, found.sparkContext.defaultParallelism)
    return found


def _remote(app: str, options: SparkOptions) -> SparkSession:
    """A session of a Spark Connect server; needs no Java here."""
    assert options.remote is not None
    try:
        import pyspark.sql.connect.session  # noqa: F401
        from pyspark.sql import SparkSession as Remote
    except ImportError as error:
        raise PipelineError(
            f"--remote needs the client of Spark Connect ({error}): {extras.command('connect')}"
        ) from error
    builder = Remote.builder.appName(app).remote(options.remote)
    for key, value in ({"spark.sql.session.timeZone": "UTC"} | options.settings()).items():
        builder = builder.config(key, value)
    try:
        found = builder.getOrCreate()
        found.version  # the first call to the server  # noqa: B018
    except Exception as error:  # of gRPC, whose classes are not imported here
        reason = str(error).strip().splitlines()[0]
        raise PipelineError(
            f"--remote {options.remote}: no answer from a Spark Connect server there: {reason}"
        ) from error
    return found


@contextmanager
def opened(
    app: str = "wheeld",
    options: SparkOptions | str | None = None,
    settings: dict[str, str] | None = None,
    ui: bool = False,
) -> Iterator[SparkSession]:
    """`connect` for commands; stops the session at the end unless it existed before.

    Raises
    ------
    PipelineError
        As `connect`.
    """
    before = _active()
    spark = connect(app, options, settings, ui)
    try:
        yield spark
    finally:
        if before is None:
            spark.stop()


def _active() -> SparkSession | None:
    """The session of this process, if there is one; does not load Spark to find out."""
    if "pyspark" not in sys.modules:
        return None
    from pyspark.sql import SparkSession

    return SparkSession.getActiveSession()
