"""Measurements that are programs in C, over the headers of the core."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import tempfile
from pathlib import Path
from typing import Any

INCLUDE = Path(__file__).resolve().parents[2] / "core" / "include"


def rounds_of(source: Path, amount: int, rounds: int) -> list[dict[str, Any]]:
    """Compile a program with -O2, and run it so many times.

    Parameters
    ----------
    amount
        Its argument: how much one round measures.

    Returns
    -------
    list of dict
        What each round prints as JSON.
    """
    with tempfile.TemporaryDirectory(prefix="wheeld-bench-") as directory:
        binary = f"{directory}/{source.stem}"
        compiler = shlex.split(os.environ.get("CC", "cc"))
        flags = ["-std=c11", "-O2", "-D_GNU_SOURCE", "-pthread", f"-I{INCLUDE}"]
        subprocess.run([*compiler, *flags, str(source), "-o", binary], check=True)
        return [json.loads(subprocess.check_output([binary, str(amount)])) for _ in range(rounds)]
