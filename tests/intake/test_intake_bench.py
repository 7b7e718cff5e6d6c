"""The benchmark of `Intake` runs, and writes what it says. How fast anything is, is not tested."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from programs import of_checkout

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_quick_run(tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    command = [sys.executable, "-m", "bench.intake", "--quick", "--json", str(file)]
    command += ["--beside", str(ROOT)]
    done = subprocess.run(command, cwd=tmp_path, env=of_checkout(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "CPU time of the server" in done.stdout
    found = json.loads(file.read_text())
    assert {"cpu", "cores", "kernel", "python"} <= found["machine"].keys()
    rows = found["intake"]["rows"]
    asked = {(row["loop"], row["requests"]) for row in rows}
    assert len(asked) == len(rows) == 4
    for row in rows:
        assert min(row["intake us"], row["bare us"], row["beside us"]) > 0
        assert row["intake least"] <= row["intake us"]
