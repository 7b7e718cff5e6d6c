"""The commands of docs/on-your-cluster.md, on a standalone master with two workers."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from programs import ROOT
from proofs.torture.overflow.spark import Cluster

PAGE = ROOT / "docs" / "on-your-cluster.md"
PACKAGES = ("wheeld", "wheeld_core", "wheeld_client", "wheeld_pipeline")


@pytest.fixture(scope="module")
def environment(java: None) -> dict[str, str]:
    """Of this process, but nothing of the checkout is on the path of others, and no other test's
    session of Spark is theirs."""
    found = {
        name: value
        for name, value in os.environ.items()
        if name != "PYTHONPATH" and not name.startswith(("PYSPARK_", "SPARK_"))
    }
    binaries = os.pathsep.join([str(Path(sys.executable).parent), found["PATH"]])
    return found | {"PATH": binaries, "SPARK_LOCAL_IP": "127.0.0.1"}


@pytest.fixture(scope="module")
def cluster(
    environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, Path]]:
    base = tmp_path_factory.mktemp("cluster")
    with ExitStack() as stack:
        yield Cluster(base, stack, environment, workers=2).url, base


def made(folder: Path, packages: tuple[str, ...]) -> Path:
    """An environment with what wheeld needs, and with these of its packages."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    site = next(folder.glob("lib/python3*/site-packages"))
    elsewhere = sysconfig.get_path("purelib")  # by path: what is installed editable is not there
    (site / "sitecustomize.py").write_text(f"import sys\nsys.path.append({elsewhere!r})\n")
    for package in packages:
        found = importlib.util.find_spec(package)
        assert found is not None
        assert found.origin is not None
        shutil.copytree(Path(found.origin).parent, site / package)
    return folder


def test_executors_without_wheeld_are_told_of_in_a_line(
    cluster: tuple[str, Path], environment: dict[str, str], tmp_path: Path
) -> None:
    bare = made(tmp_path / "bare", ()) / "bin" / "python"
    done = subprocess.run(
        [sys.executable, "-m", "wheeld", "pipeline", "generate", str(tmp_path / "out"), "--rows=9",
         f"--master={cluster[0]}", f"--conf=spark.pyspark.python={bare}",
         "--conf=spark.executor.memory=512m", "--conf=spark.driver.host=127.0.0.1",
         "--conf=spark.cores.max=1"],
        env=environment, capture_output=True, text=True, cwd=tmp_path, check=False,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    said = f"wheeld: the executors cannot run wheeld: {bare} on "
    assert said in done.stderr.splitlines()[-1], done.stderr
    assert "has no wheeld_pipeline; install wheeld for their Python" in done.stderr
    assert not (tmp_path / "out").exists()


def test_the_commands_of_the_page(
    cluster: tuple[str, Path], environment: dict[str, str], tmp_path: Path
) -> None:
    made(tmp_path / "environment", PACKAGES)
    blocks = re.findall(r"(?:^    .*\n)+", PAGE.read_text(), re.M)
    pack = next(line for line in blocks[0].splitlines() if "tar -czf" in line)
    submit = re.sub(r"^    ", "", blocks[1], flags=re.M)
    more = "spark-submit --conf spark.executor.memory=512m --conf spark.driver.host=127.0.0.1 "
    script = f"{pack}\n{submit.replace('spark-submit ', more)}"
    done = subprocess.run(
        ["bash", "-euc", script], cwd=tmp_path, capture_output=True, text=True, check=False,
        env=environment | {"MASTER": cluster[0], "SHARED": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-4000:]
    assert f"20,000 requests in {tmp_path}/workload" in done.stdout
    assert pq.read_table(tmp_path / "workload").num_rows == 20_000
    for number in range(2):
        logs = [log.read_text() for log in (cluster[1] / f"work-{number}").glob("*/*/stderr")]
        assert any("environment.tar.gz" in log for log in logs), logs
        assert any("Finished task" in log for log in logs if "environment.tar.gz" in log)
