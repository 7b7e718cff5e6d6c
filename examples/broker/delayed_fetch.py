"""A fetch: it waits until its partitions together have the bytes it wants at least."""

from __future__ import annotations

from typing import Any, NamedTuple

from examples.broker.settings import Key
from examples.broker.storage import Partition
from wheeld_client import DelayedOperation


class Wanted(NamedTuple):
    """One partition of a fetch, from an offset on."""

    key: Key
    partition: Partition
    offset: int


class DelayedFetch(DelayedOperation):
    """Completes when enough bytes are there; when the time is up, with what is there.

    Watch it under the keys of all its partitions; an append triggers a follower's fetch, a moved
    high watermark a consumer's.

    Parameters
    ----------
    wanted : list of Wanted
        An offset behind a log's end completes it at once, as that is an error.
    least, most : int
        Bytes; `most` may be passed by one record.
    replica : bool
        A follower reads to the log's end, a consumer to the high watermark.

    Attributes
    ----------
    parts : list of dict
        After completion: `topic`, `partition`, `first`, `bytes`, `high_watermark`, `log_end`.
    blob : bytes
        After completion: the records, part after part.
    """

    def __init__(
        self, wanted: list[Wanted], least: int, most: int, timeout: float, *, replica: bool = False
    ) -> None:
        super().__init__(timeout)
        self._wanted, self._least, self._most = wanted, least, most
        self._replica = replica
        self.parts: list[dict[str, Any]] = []
        self.blob = b""

    def try_complete(self) -> bool:
        """Count the bytes that are there, from shared state only."""
        return (self._wrong() or self._available() >= self._least) and self.force_complete()

    def on_complete(self) -> None:
        """Read, whether enough is there or the time is up."""
        left, blobs = self._most, []
        for key, partition, offset in self._wanted:
            # One look at each word: they move, and an answer must fit what it says of them.
            watermark, log_end = partition.high_watermark, partition.log_end
            end = log_end if self._replica else watermark
            raw = partition.read(offset, end, left) if left > 0 else b""
            left -= len(raw)
            blobs.append(raw)
            self.parts.append(
                {
                    "topic": key[0],
                    "partition": key[1],
                    "first": offset,
                    "bytes": len(raw),
                    "high_watermark": watermark,
                    "log_end": log_end,
                }
            )
        self.blob = b"".join(blobs)

    def _wrong(self) -> bool:
        return any(offset > partition.log_end for _, partition, offset in self._wanted)

    def _available(self) -> int:
        return sum(
            partition.size(offset, self._end(partition)) for _, partition, offset in self._wanted
        )

    def _end(self, partition: Partition) -> int:
        return partition.log_end if self._replica else partition.high_watermark
