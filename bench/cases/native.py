"""Cases in C, over the headers of the core; each prints a number for each thing as JSON."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from bench.cases.servers import Missing
from bench.processes import Sample

HERE = Path(__file__).parent
INCLUDE = HERE.parents[1] / "core" / "include"
FLAGS = ["-std=c11", "-O3", "-D_GNU_SOURCE", "-pthread", f"-I{INCLUDE}"]


def program(name: str, quick_amount: int, amount: int, quick: bool) -> Iterator[Sample]:
    compiler = shlex.split(os.environ.get("CC", "cc"))
    if shutil.which(compiler[0]) is None:
        raise Missing(f"{name}: there is no C compiler {compiler[0]}")
    with tempfile.TemporaryDirectory(prefix="wheeld-bench-") as directory:
        binary = f"{directory}/{name}"
        subprocess.run([*compiler, *FLAGS, HERE / f"{name}.c", "-o", binary], check=True)
        while True:
            found = subprocess.check_output([binary, str(quick_amount if quick else amount)])
            sample: Sample = json.loads(found)
            yield sample
