"""The pipeline's needs of a machine, and the modules that it loads."""

from __future__ import annotations

import builtins
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from wheeld_pipeline import PipelineError, session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def fake_java(folder: Path, said: str) -> Path:
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho '{said}' >&2\n")
    java.chmod(0o755)
    return folder


@pytest.mark.parametrize("module", ["wheeld_pipeline", "wheeld.cli.app"])
def test_importing_loads_nothing_large(module: str) -> None:
    large = {"pyspark", "pyarrow", "pandas", "matplotlib", "duckdb"}
    code = f"import sys, {module}; print(*({large!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout.strip()) == (0, ""), done.stderr


@pytest.mark.parametrize(
    ("said", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "21" 2023-09-19', 21),
        ('java version "1.8.0_402"', 8),
        ("command failed", None),
    ],
)
def test_java_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, version: int | None
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path, said)))
    assert session.java_version() == version


def test_a_java_that_is_too_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(fake_java(tmp_path, 'java version "11.0.2"')))
    with pytest.raises(PipelineError, match=r"needs Java 17 or newer and this is Java 11: install"):
        session.check()


def test_no_java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(PipelineError, match=r"no Java was found: install one .* JAVA_HOME"):
        session.check()


def test_no_pyspark(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without_spark(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.split(".")[0] == "pyspark":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without_spark)
    with pytest.raises(PipelineError, match=r"pip install '.\[spark\]'"):
        session.check()


@pytest.mark.parametrize("module", ["wheeld_pipeline.datasource", "wheeld_pipeline.kafka"])
def test_a_spark_that_is_too_old_for_a_data_source(module: str) -> None:
    code = f"import pyspark; pyspark.__version__ = '4.1.9'; import {module}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "needs PySpark 4.2 or newer and this is 4.1.9: pip install" in done.stderr


def test_a_master_and_a_remote() -> None:
    with pytest.raises(PipelineError, match="expected one of them"):
        session.SparkOptions(master="local", remote="sc://localhost")


def test_a_session_that_was_there_stays(spark: SparkSession) -> None:
    with session.opened() as found:
        assert found is spark
    assert spark.range(3).count() == 3
