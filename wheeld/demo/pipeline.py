"""The pipeline's report of the run, made afterwards from the trace of the demo's daemons.

The report is optional: if its packages are missing, the demo says so in one line and still
succeeds.
"""

from __future__ import annotations

import contextlib
import importlib.util
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from wheeld_core import extras

PACKAGES: Final = ("duckdb", "pyarrow", "pandas", "jinja2")
RING: Final = 1 << 18
"""Events that may wait for the recorder. 16 MiB: also a small /dev/shm has room for that."""
PAGE: Final = "report.html"


def missing() -> str | None:
    """Why no report is possible; None if it seems possible."""
    lacking = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if lacking:
        return f"it needs {', '.join(lacking)}: {extras.command('report')}"
    return None


@contextlib.contextmanager
def recording(wanted: bool) -> Iterator[Path | None]:
    """A directory for the trace during the block; None if the user wants no report."""
    if not wanted:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="wheeld-demo-trace-") as made:
        yield Path(made, "trace")


def report(trace: Path, out: Path, notes: Sequence[str], tick: Callable[[], None]) -> str:
    """Make the report of a trace, in a process of its own, which needs no Java."""
    command = [sys.executable, "-P", "-m", "wheeld", "pipeline", "report", str(trace)]
    command += ["--out", str(out), "--engine", "local"]
    command += [f"--note={note}" for note in notes]
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=said
        )
        try:
            while process.poll() is None:
                tick()
                time.sleep(0.02)
            tick()  # Ctrl-C ends that process, too: its end is not what to report
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait()
        if process.returncode == 0:
            return f"report in {out / PAGE}"
        said.seek(0)
        lines = [line for line in said.read().splitlines() if line.strip()]
    reason = lines[-1].removeprefix("wheeld: ") if lines else f"exit code {process.returncode}"
    return f"no report: {reason}"
