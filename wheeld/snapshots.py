"""The daemon's snapshots: restored at start, written every few seconds and at the end."""

from __future__ import annotations

from wheeld.resources import Resources
from wheeld.workers import Workers


class Snapshots:
    """Does nothing without --state-dir."""

    def __init__(self, resources: Resources, workers: Workers) -> None:
        self._resources = resources
        self._workers = workers

    def restore(self) -> None:
        """Before the first clock."""

    async def keep_writing(self) -> None:
        """Until cancelled."""

    def write_last(self) -> None:
        """After the last clock."""
