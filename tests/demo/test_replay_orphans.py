"""A worker of a replay whose parent ended before the worker could look."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from common_fixtures import embedded
from daemons import LONG
from wheeld.demo.workload import REQUEST
from wheeld_client.replay import Crew

daemon = embedded(capacity=256)

STARTS_AND_ENDS = """
import subprocess, sys
command = [sys.executable, "-m", "wheeld.demo.worker", sys.argv[1], "0"]
print(subprocess.Popen(command, stdout=subprocess.DEVNULL).pid, flush=True)
"""


def test_a_worker_whose_parent_is_gone(daemon: str, tmp_path: Path) -> None:
    np.save(tmp_path / "requests.npy", np.zeros(1, REQUEST))
    order: dict[str, Any] = {
        "requests": str(tmp_path / "requests.npy"),
        "runtime_dir": None,
        "worker": "demo",
        "daemon": daemon,
    }
    Crew(tmp_path, 1, "wheeld.demo.worker", order)
    command = [sys.executable, "-c", STARTS_AND_ENDS, str(tmp_path)]
    said, out = os.pipe()
    with open(said, "rb") as errors:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=out, check=True)
        os.close(out)
        try:
            assert select.select([errors], [], [], LONG)[0], "it still waits for its parent"
            assert errors.read() == b"the replay is gone\n"
        except BaseException:
            os.kill(int(done.stdout), signal.SIGKILL)
            raise
