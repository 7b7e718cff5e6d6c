"""Compile a program of C once: `compiled` keeps binaries in build/programs.

Its folder there is the hash of all that makes it: what the preprocessor makes of its source,
the flags and the compiler. So a change to any header that it includes makes another. Binaries that
were not used for a week are removed. Deleting the folder is always safe.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import shlex
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

KEPT = Path(__file__).resolve().parent.parent / "build" / "programs"
KEPT_SECONDS = 7 * 24 * 3600


@functools.cache
def version(compiler: str) -> bytes:
    return _run([*shlex.split(compiler), "--version"])


def compiled(compiler: str | None, flags: list[str], source: Path, include: Path) -> Path:
    """The binary of `source` with the headers below `include`, from the cache if it is there.

    FileNotFoundError: there is no compiler. RuntimeError: it does not compile.
    """
    if compiler is None:
        raise FileNotFoundError("no C compiler: install gcc or clang, or set CC")
    command = _command(compiler, flags, source, include)
    text = _run([*command, "-E", "-P"])
    parts = [version(compiler), *map(os.fsencode, (compiler, *flags)), text]
    name = hashlib.sha256(b"\0".join(parts)).hexdigest()[:32]
    binary = KEPT / name / source.stem  # programs print what they are called
    try:
        os.utime(binary)
    except FileNotFoundError:
        binary.parent.mkdir(parents=True, exist_ok=True)
        _forget()
        with tempfile.TemporaryDirectory(dir=KEPT) as own:  # several processes may build it at once
            made = Path(own) / source.stem
            _run([*command, "-o", str(made)])
            made.replace(binary)
    return binary


def compile_to(binary: Path, compiler: str, flags: list[str], source: Path, include: Path) -> None:
    """Compile it without the cache, for a binary that is used only once.

    Raises RuntimeError, as `compiled` does."""
    _run([*_command(compiler, flags, source, include), "-o", str(binary)])


def _command(compiler: str, flags: list[str], source: Path, include: Path) -> list[str]:
    # a copy of the headers elsewhere makes the same binary
    places = [f"-I{include}", f"-ffile-prefix-map={include}=include", str(source)]
    return [*shlex.split(compiler), *flags, *places]


def _run(command: list[str]) -> bytes:
    done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{shlex.join(command)} failed:\n{done.stderr.decode(errors='replace')}")
    return done.stdout


def _forget() -> None:
    """Remove binaries that nobody has used for long; another process may be removing them, too."""
    old = time.time() - KEPT_SECONDS
    for kept in os.listdir(KEPT):
        with contextlib.suppress(FileNotFoundError):
            used = [binary.stat().st_mtime for binary in (KEPT / kept).iterdir()]
            if used and max(used) < old:
                shutil.rmtree(KEPT / kept)
