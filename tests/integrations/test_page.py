"""The examples of the page on frameworks are Python that runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import wheeld

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md"]
PAGES += [ROOT / "docs" / "how-to" / name for name in ("frameworks.md", "celery.md")]
EXAMPLES = [x for page in PAGES for x in re.findall(r"```py\n(.*?)```", page.read_text(), re.S)]


@pytest.mark.parametrize("example", EXAMPLES, ids=range(len(EXAMPLES)))
def test_example(example: str, wheel_server: wheeld.ForkServer, tmp_path: Path) -> None:
    with wheel_server.embedded(name="default", runtime_dir=str(tmp_path), capacity=1024):
        done = subprocess.run(
            [sys.executable, "-c", example],
            env={**os.environ, "WHEELD_RUNTIME_DIR": str(tmp_path)},
            capture_output=True,
            text=True,
            timeout=60,
        )
    assert done.returncode == 0, done.stderr
