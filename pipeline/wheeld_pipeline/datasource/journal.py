"""Journal: the directory with the source's durable state, and the rules for changing its files.

    journal.json                      the journal's token: offsets, keys and the receiver carry it
    reader.lock, reader.json          the one query that reads it, and what it has committed
    batches/QUERY/committed.json      the last batch of QUERY that is committed
    batches/QUERY/BATCH/              its partitions that are begun (stage.py)
    hosts/HOST/                       the daemon on that host, and what was received (host.py)

Files appear complete, by rename or link. Nothing is flushed to the disk: the journal survives the
death of any process, and when the host goes down its wheel is gone as well.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import socket
import time
from pathlib import Path
from typing import Any

from wheeld_pipeline.errors import PipelineError
from wheeld_pipeline.files import write_json

_TOMBSTONE_SECONDS = 86_400


def host_name() -> str:
    """This host's name in the journal: its host name, or WHEELD_HOST, since containers have other
    names.

    Raises
    ------
    PipelineError
        It cannot be the name of a directory.
    """
    found = os.environ.get("WHEELD_HOST") or socket.gethostname()
    if "/" in found or found in (".", ".."):
        raise PipelineError(f"WHEELD_HOST={found!r}: expected the name of this host, without '/'")
    return found


def read_json(path: Path) -> dict[str, Any] | None:
    """Read a file that appeared by rename; None: there is none."""
    try:
        found: dict[str, Any] = json.loads(path.read_text())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise PipelineError(f"{path} is not a journal file: {error}") from error
    return found


def made_once(fresh: Path, path: Path) -> bool:
    """Let a complete file appear under its name: of several attempts one wins."""
    try:
        os.link(fresh, path)
    except FileExistsError:
        return False
    finally:
        fresh.unlink(missing_ok=True)
    return True


class Journal:
    """One journal; made when it is first opened.

    Parameters
    ----------
    directory : str
        Where it is.

    Raises
    ------
    PipelineError
        It cannot be made there.
    """

    def __init__(self, directory: str) -> None:
        self.directory = Path(directory)
        self.host = host_name()
        try:
            self.host_directory(self.host).mkdir(parents=True, exist_ok=True, mode=0o700)
            facts = read_json(self.directory / "journal.json")
            if facts is None:
                fresh = self.directory / f".journal-{secrets.token_hex(4)}"
                write_json(fresh, {"token": secrets.token_hex(4)})
                made_once(fresh, self.directory / "journal.json")
                facts = read_json(self.directory / "journal.json")
        except OSError as error:
            raise PipelineError(
                f"option journal={directory!r}: host {self.host} cannot write there: "
                f"{error.strerror}"
            ) from error
        assert facts is not None
        self.token = str(facts["token"])

    @property
    def receiver(self) -> str:
        """The name of the worker that receives expirations, on each host."""
        return f"spark-{self.token}"

    def hosts(self) -> list[str]:
        return sorted(path.name for path in (self.directory / "hosts").iterdir())

    def host_directory(self, host: str) -> Path:
        return self.directory / "hosts" / host

    def batch_directory(self, query: str, batch: int) -> Path:
        return self.directory / "batches" / query / str(batch)

    def committed(self, query: str) -> int:
        facts = read_json(self.directory / "batches" / query / "committed.json")
        return -1 if facts is None else int(facts["batch"])

    def commit(self, query: str, batch: int) -> None:
        """Record that this batch, and all before it, are committed and never read again."""
        directory = self.directory / "batches" / query
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        if self.committed(query) < batch:
            write_json(directory / "committed.json", {"batch": batch})
        for path in directory.iterdir():
            if path.name.isdecimal() and int(path.name) <= batch:
                shutil.rmtree(path, ignore_errors=True)

    def forget_old(self) -> None:
        """Remove the files of writes that will not be repeated, once none of their tasks can
        run."""
        for path in (self.directory / "batches").glob("write-*/committed.json"):
            with contextlib.suppress(OSError):
                if path.stat().st_mtime < time.time() - _TOMBSTONE_SECONDS:
                    shutil.rmtree(path.parent)
