"""A produce with acks=all: it waits until all followers have the record."""

from __future__ import annotations

from examples.broker.storage import Partition
from wheeld_client import DelayedOperation


class DelayedProduce(DelayedOperation):
    """Completes when the high watermark has passed the record.

    Watch it under its partition's key; a follower's fetch triggers that key.

    Attributes
    ----------
    replicated : bool
        After completion: all followers have it. False: the time was up before.
    """

    def __init__(self, partition: Partition, offset: int, timeout: float) -> None:
        super().__init__(timeout)
        self._partition = partition
        self._offset = offset
        self.replicated = False

    def try_complete(self) -> bool:
        """Look at the shared words only: the followers may have fetched from another worker."""
        return self._replicated() and self.force_complete()

    def on_complete(self) -> None:
        """Judge once, at the moment that counts."""
        self.replicated = self._replicated()

    def _replicated(self) -> bool:
        return self._partition.high_watermark > self._offset
