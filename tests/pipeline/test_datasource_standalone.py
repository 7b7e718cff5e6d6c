"""The documented script: the data source on a standalone master and worker."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import wheeld

SCRIPT = Path(__file__).parents[2] / "examples" / "spark" / "standalone.sh"


@pytest.mark.usefixtures("java")
def test_standalone() -> None:
    with wheeld.embedded(capacity=1 << 14) as daemon:
        done = subprocess.run(
            ["bash", str(SCRIPT), daemon, "5000"],
            env=os.environ | {"PYSPARK_PYTHON": sys.executable},
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    assert "5000 timers written, 5000 expirations read on spark://127.0.0.1:" in done.stdout
