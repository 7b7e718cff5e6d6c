"""The broker's benchmark runs, and writes what it says it writes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("kio")

from programs import ROOT, of_checkout


@pytest.mark.slow
def test_a_brief_run_writes_everything(tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    command = [sys.executable, "-m", "bench.broker", "--brief", "--json", str(file)]
    options = {"cwd": ROOT, "env": of_checkout(), "capture_output": True, "text": True}
    done = subprocess.run(command, **options)  # type: ignore[call-overload]
    assert done.returncode == 0, done.stderr
    assert len(json.loads(file.read_text(encoding="utf-8"))["measurements"]) == 5
