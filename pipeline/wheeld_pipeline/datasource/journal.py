"""Journal: the directory with the source's durable state, and the rules for changing its files.

    journal.json                      the journal's token: offsets and names of workers carry it
    reader.lock, reader.json          the one query that reads it, and what it has committed
    batches/QUERY/committed.json      the last batch of QUERY that is committed
    batches/QUERY/BATCH/              its partitions that are begun (stage.py)
    hosts/HOST/daemon.json            the daemon on that host
    hosts/HOST/visited.json           the last visit of the reading query there (visits.py)
    hosts/HOST/lane-NNN/              one worker of the source and what it received (lane.py)

Files appear complete, by rename or link; a file that is appended to is truncated to whole records
by the next process that opens it. Nothing is flushed to the disk: the journal survives the death of
any process, and when the host goes down its wheel is gone as well.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
import shutil
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from wheeld_pipeline.errors import PipelineError
from wheeld_pipeline.files import write_json

_TOMBSTONE_SECONDS = 86_400
_PAUSE = 0.005
"""Seconds between two attempts to get a lock."""


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


def link_json(path: Path, content: dict[str, Any]) -> bool:
    """Make a complete file if there is none; one of several attempts wins."""
    fresh = path.with_name(f".{path.name}-{secrets.token_hex(4)}")
    fresh.write_text(json.dumps(content))
    try:
        os.link(fresh, path)
    except FileExistsError:
        return False
    finally:
        fresh.unlink(missing_ok=True)
    return True


@contextlib.contextmanager
def locked(path: Path, seconds: float) -> Iterator[bool]:
    """Hold a lock that the kernel releases when this process dies; False: not acquired in that
    time."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        yield take_lock(file, seconds)
    finally:
        os.close(file)


def take_lock(file: int, seconds: float) -> bool:
    """Lock an open file, trying for some seconds."""
    give_up = time.monotonic() + seconds
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= give_up:
                return False
            time.sleep(_PAUSE)
        else:
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
            self.lanes_directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            facts = read_json(self.directory / "journal.json")
            if facts is None:
                link_json(self.directory / "journal.json", {"token": secrets.token_hex(4)})
                facts = read_json(self.directory / "journal.json")
        except OSError as error:
            raise PipelineError(
                f"option journal={directory!r}: host {self.host} cannot write there: "
                f"{error.strerror}"
            ) from error
        assert facts is not None
        self.token = str(facts["token"])

    @property
    def lanes_directory(self) -> Path:
        return self.host_directory(self.host)

    def host_directory(self, host: str) -> Path:
        return self.directory / "hosts" / host

    def hosts(self) -> list[str]:
        return sorted(path.name for path in (self.directory / "hosts").iterdir())

    def lane_numbers(self, host: str | None = None) -> list[int]:
        found = self.host_directory(host or self.host).glob("lane-*")
        return sorted(int(path.name[5:]) for path in found)

    def lane_directory(self, number: int, host: str | None = None) -> Path:
        return self.host_directory(host or self.host) / f"lane-{number:03}"

    def worker_name(self, prefix: str, number: int) -> str:
        return f"{prefix}-{self.token}-{number}"

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

    def bind(self, daemon: Path) -> None:
        """Raise unless this journal belongs to the daemon in that directory, or to no daemon
        yet."""
        path = self.lanes_directory / "daemon.json"
        facts = read_json(path)
        if facts is None:
            link_json(path, {"directory": str(daemon.resolve())})
            facts = read_json(path)
        assert facts is not None
        if facts["directory"] != str(daemon.resolve()):
            raise PipelineError(
                f"host {self.host}: the journal {self.directory} is of the daemon in "
                f"{facts['directory']}, not of the one in {daemon}: give each daemon a journal"
            )
