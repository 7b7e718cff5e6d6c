"""Checks, before anything is made, the directory of a trace and the other needs of `--trace`."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from typing import Final

from wheeld_core import extras, trust
from wheeld_core.errors import WheelError

SPOOL_FOLDER: Final = "_spool"


def check_pyarrow() -> None:
    """Check that pyarrow is installed, without loading it. `WheelError`: it is not installed."""
    if importlib.util.find_spec("pyarrow") is None:
        raise WheelError(
            f"--trace needs pyarrow, which is not installed: {extras.command('parquet')}"
        )


def prepare(given: str | os.PathLike[str]) -> Path:
    """Make the directory of a trace, or check an existing one; returns its absolute path.
    `WheelError`: it cannot be made, is not a directory, is not writable, belongs to another user,
    or others may write to it."""
    directory = Path(given).absolute()
    spool = directory / SPOOL_FOLDER
    try:
        trust.own_directory(directory, 0o750)
        _make_spool(spool)
    except (FileExistsError, NotADirectoryError) as error:
        raise WheelError(
            f"trace {error.filename or directory} is not a directory; expected one that can be "
            "made or written to"
        ) from error
    except OSError as error:
        raise WheelError(
            f"trace {directory}: {error.strerror or error}; give a directory that only uid "
            f"{os.geteuid()} can write to"
        ) from error
    for folder in (directory, spool):
        if not os.access(folder, os.W_OK | os.X_OK):
            raise WheelError(
                f"trace {folder} cannot be written to by uid {os.geteuid()}; give another "
                "directory, or change its owner or mode"
            )
    return directory


def make_again(trace: Path) -> Path:
    """The folder of spools, made again together with its parent if it was removed."""
    spool = trace / SPOOL_FOLDER
    if not spool.is_dir() or spool.is_symlink():
        trace.mkdir(mode=0o750, exist_ok=True)
        _make_spool(spool)
    return spool


def _make_spool(spool: Path) -> None:
    """Make the folder of spools, or check an existing one: through a symbolic link the recorder
    would write and remove files elsewhere."""
    if spool.is_symlink():
        raise PermissionError(f"{spool} is a link; refusing to write through it")
    trust.own_directory(spool, 0o700)
