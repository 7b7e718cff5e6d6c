"""One Spark session for all tests of the pipeline, in one process of the run; another process runs
tests that start their own."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from browsers import missing
from programs import ROOT, of_checkout
from wheeld_pipeline import PipelineError, session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Of JVMs that live for seconds: the second compiler takes a third of the processor, for nothing.
os.environ.setdefault("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC")

INTERPRETED = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
"""To compile each plan takes longer than the few rows of a test do without. The server of
test_connect.py, which plans the same reports, compiles as Spark does by default."""

CLASSES = Path(__file__).with_name("java_classes.py")
KEPT = ROOT / "build" / "java"


@pytest.hookimpl(tryfirst=True)  # pytest-xdist reads the marks in the same hook
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that start a Spark of their own need not wait for those of the one session."""
    for item in items:
        fixtures = getattr(item, "fixturenames", ())
        if group := next((name for name in ("spark", "java") if name in fixtures), None):
            item.add_marker(pytest.mark.xdist_group(group))


@pytest.fixture(scope="session")
def java(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """For tests that start a Spark of their own.

    All of them share an archive of Spark's classes: with it each starts in half of the time. It
    stays for the next run.
    """
    try:
        session.check()
    except PipelineError as error:
        missing(str(error))
    options = os.environ["JDK_JAVA_OPTIONS"]
    with pytest.MonkeyPatch.context() as environment:
        if (archive := _archive(options, tmp_path_factory)).exists():  # else this Java makes none
            # A Java with another class path goes without, and would say so on stdout.
            quiet = "-Xlog:disable -Xlog:all=error:stderr"
            use = f"{options} -XX:SharedArchiveFile={archive} {quiet}"
            environment.setenv("JDK_JAVA_OPTIONS", use)
        conf = " ".join(f"--conf {key}={value}" for key, value in INTERPRETED.items())
        environment.setenv("PYSPARK_SUBMIT_ARGS", f"{conf} pyspark-shell")
        yield


def _archive(options: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    import pyspark

    home = os.environ.get("JAVA_HOME")
    java = [f"{home}/bin/java" if home else "java", "-version"]
    version = subprocess.run(java, capture_output=True).stderr
    jars = Path(pyspark.__file__).parent / "jars"
    place = f"{jars} {jars.stat().st_mtime_ns} {options}"
    made_of = [version, place.encode(), CLASSES.read_bytes()]
    archive = KEPT / f"classes-{hashlib.sha256(b''.join(made_of)).hexdigest()[:16]}.jsa"
    if not archive.exists():
        folder = tmp_path_factory.mktemp("java")
        KEPT.mkdir(parents=True, exist_ok=True)
        for old in KEPT.glob("classes-*.jsa"):
            old.unlink(missing_ok=True)
        made = KEPT / f"being-made-{os.getpid()}.jsa"
        make = {"JDK_JAVA_OPTIONS": f"{options} -XX:ArchiveClassesAtExit={made}"}
        program = [sys.executable, str(CLASSES), str(folder)]
        subprocess.run(program, env=of_checkout() | make, capture_output=True, check=False)
        if made.exists():
            made.replace(archive)
        shutil.rmtree(folder)
    return archive


@pytest.fixture(scope="session")
def spark(java: None) -> Iterator[SparkSession]:
    settings = {"spark.sql.shuffle.partitions": "2", "spark.python.daemon.module": "warm_daemon"}
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
        made = session.connect("wheeld-tests", "local[2]", settings=settings)
    yield made
    made.stop()
