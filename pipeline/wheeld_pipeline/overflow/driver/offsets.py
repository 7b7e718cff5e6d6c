"""Spark's part of the checkpoint: tells whether a batch has commands, and puts Spark's files on
disk before the batch is decided.

    CHECKPOINT/query/offsets/12      v1, a line about the batch, then a line for each source
    CHECKPOINT/query/sources/0/5     which files were new then: a line for each
    CHECKPOINT/query/commits/12      batch 12 is over

The offsets tell whether there are commands. Asking Spark for the first row would take a job, and
most batches have no commands.

Spark puts none of its files on disk. If the offsets of a decided batch were lost, Spark would run
it again with more commands, and the manifest would leave them out. So they are put on disk before
the manifest. A torn file can then only be of a batch that was not decided: it is removed, and Spark
reads the same commands again.
"""

from __future__ import annotations

import json

from wheeld_pipeline.overflow.checkpoint.files import Files, LocalFiles
from wheeld_pipeline.overflow.driver.job import QUERY

_NOTHING = "-"
"""Spark writes this for a source without data so far."""
_LINES = 4
"""The version, the batch, the source of commands, the beat."""


class SparkLog:
    """Spark's files, read up to the driver's batches.

    Parameters
    ----------
    files : Files
        The checkpoint.
    """

    def __init__(self, files: Files) -> None:
        self._files = files
        self._last: tuple[int, str | None] = (-1, _NOTHING)
        self._sealed: set[str] = set()

    def moved(self, batch: int) -> bool:
        """False: the batch has no commands. True: it has commands, or the log cannot tell."""
        before = self._last[1] if self._last[0] == batch - 1 else self._of(batch - 1)
        now = self._of(batch)
        self._last = (batch, now)
        return now is None or now != before

    def _of(self, batch: int) -> str | None:
        """The offset of the commands after a batch."""
        name = f"{QUERY}/offsets/{batch}"
        if batch < 0:
            return _NOTHING
        if not self._files.exists(name):
            return None
        lines = self._files.read_text(name).splitlines()
        return lines[2] if len(lines) == _LINES and lines[0] == "v1" else None

    def seal(self) -> None:
        """Put on disk the files that Spark has written for a batch. Then the batch may be
        decided."""
        for folder in self._folders() if isinstance(self._files, LocalFiles) else ():
            fresh = {f"{folder}/{name}" for name in self._files.names(folder)} - self._sealed
            for name in sorted(fresh):
                self._files.sync(name)
            if fresh:
                self._files.sync(folder)
            self._sealed |= fresh

    def mend(self, decided: int) -> None:
        """Called before Spark reads them: removes torn files, and the offsets of a batch after
        `decided` if they name files of commands that are no longer known."""
        if not isinstance(self._files, LocalFiles):
            return
        for folder in set(self._folders()) - {QUERY, f"{QUERY}/sources"}:
            for name in self._numbered(folder):
                if self._is_torn(f"{folder}/{name}"):
                    self._files.remove(f"{folder}/{name}")
        if self._is_torn(f"{QUERY}/metadata"):
            self._files.remove(f"{QUERY}/metadata")
        known = [int(name.split(".")[0]) for name in self._numbered(f"{QUERY}/sources/0")]
        for name in self._numbered(f"{QUERY}/offsets"):
            said = self._of(int(name)) if int(name) > decided else _NOTHING
            if said is None or _files_until(said) > max(known, default=-1):
                self._files.remove(f"{QUERY}/offsets/{name}")

    def _folders(self) -> list[str]:
        """The files, sources first, so that their names are on disk before the offsets."""
        sources = self._files.names(f"{QUERY}/sources")
        within = [f"{QUERY}/sources/{name}" for name in sources]
        made = [*within, f"{QUERY}/sources", f"{QUERY}/offsets", f"{QUERY}/commits", QUERY]
        return [folder for folder in made if self._files.exists(folder)]

    def _numbered(self, folder: str) -> list[str]:
        return [name for name in self._files.names(folder) if name.split(".")[0].isdigit()]

    def _is_torn(self, name: str) -> bool:
        """Each ends with a line of JSON, or with the line for a source without data so far."""
        if not self._files.exists(name):
            return False
        text = self._files.read_text(name).strip("\0\n ")
        last = text.rpartition("\n")[2]
        try:
            return last != _NOTHING and not isinstance(json.loads(last), dict | int)
        except ValueError:
            return True


def _files_until(offset: str) -> int:
    """How far a batch reads the list of files; -1: its source does not list files."""
    try:
        said = json.loads(offset)
    except ValueError:
        return -1
    return int(said.get("logOffset", -1)) if isinstance(said, dict) else -1
