"""Has a batch commands? Spark's log of offsets says so, before the batch runs.

    CHECKPOINT/query/offsets/12    v1, a line about the batch, then a line for each source

Asking Spark for the first row would be a job, and most batches have none.
"""

from __future__ import annotations

from wheeld_pipeline.overflow.checkpoint.files import Files
from wheeld_pipeline.overflow.driver.job import QUERY

_NOTHING = "-"
"""Spark writes this for a source that has had nothing."""
_LINES = 4
"""The version, the batch, the source of commands, the beat."""


class CommandOffsets:
    """The log, read as far as the driver's batches.

    Parameters
    ----------
    files : Files
        The checkpoint.
    """

    def __init__(self, files: Files) -> None:
        self._files = files
        self._last: tuple[int, str | None] = (-1, _NOTHING)

    def moved(self, batch: int) -> bool:
        """False: the batch has no commands. True: it has, or the log cannot tell."""
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
