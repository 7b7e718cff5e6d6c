"""The directory of a trace, and what else `--trace` needs, checked before anything is made."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

from wheeld.trace.spool import SPOOL_FOLDER
from wheeld_core.errors import WheelError


def check_pyarrow() -> None:
    """Is there what the recorder writes Parquet with? It is not loaded here.

    Raises
    ------
    WheelError
        It is not installed.
    """
    if importlib.util.find_spec("pyarrow") is None:
        raise WheelError("--trace needs pyarrow, which is not here: pip install 'wheeld[parquet]'")


def prepare(given: str | os.PathLike[str]) -> Path:
    """Make the directory of a trace, or check the one that is there; returns its whole path.

    Raises
    ------
    WheelError
        It cannot be made, is no directory, or cannot be written to.
    """
    directory = Path(given).absolute()
    try:
        directory.mkdir(mode=0o750, parents=True, exist_ok=True)
        spool = directory / SPOOL_FOLDER
        spool.mkdir(mode=0o700, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise WheelError(
            f"trace {error.filename or directory} is not a directory; expected one that can be "
            "made or written to"
        ) from error
    except OSError as error:
        raise WheelError(
            f"trace {directory}: {error.strerror}; give a directory that uid {os.geteuid()} can "
            "write to"
        ) from error
    for folder in (directory, spool):
        if not os.access(folder, os.W_OK | os.X_OK):
            raise WheelError(
                f"trace {folder} cannot be written to by uid {os.geteuid()}; give another "
                "directory, or change its owner or mode"
            )
    return directory


def make_again(trace: Path) -> Path:
    """The folder of spools, made again if somebody has removed it, with the directory around it."""
    spool = trace / SPOOL_FOLDER
    if not spool.is_dir():
        trace.mkdir(mode=0o750, exist_ok=True)
        spool.mkdir(mode=0o700, exist_ok=True)
    return spool
