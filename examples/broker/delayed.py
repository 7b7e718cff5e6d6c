"""What waits in the purgatories.

`try_complete` only looks, and at shared state only: any process may make its condition true.
"""

from __future__ import annotations

from typing import NamedTuple

from examples.broker.groups import Groups
from examples.broker.log import Partition
from wheeld_client import DelayedOperation


class DelayedProduce(DelayedOperation):
    """Waits until all followers in sync have what was appended; triggered by their fetches.

    Watched under the keys of its partitions.

    Parameters
    ----------
    appended : list
        Partitions, and the offsets behind what was appended to them.
    """

    def __init__(self, appended: list[tuple[Partition, int]], timeout: float) -> None:
        super().__init__(timeout)
        self._appended = appended

    def try_complete(self) -> bool:
        """Look at the high watermarks."""
        done = all(one.watermark >= end or one.deleted for one, end in self._appended)
        return done and self.force_complete()


class Wanted(NamedTuple):
    """One partition of a fetch."""

    partition: Partition
    offset: int
    replica: bool

    @property
    def end(self) -> int:
        """Followers read up to the log's end, consumers up to the high watermark."""
        return self.partition.end if self.replica else self.partition.watermark


class DelayedFetch(DelayedOperation):
    """Waits until its partitions together have enough bytes; triggered by appends and watermarks.

    Watched under the keys of its partitions.
    """

    def __init__(self, wanted: list[Wanted], least: int, timeout: float) -> None:
        super().__init__(timeout)
        self._wanted, self._least = wanted, least

    def try_complete(self) -> bool:
        """Count the bytes."""
        there = 0
        for one in self._wanted:
            there += one.partition.size(one.offset, one.end)
            if there >= self._least or one.partition.deleted:
                return self.force_complete()
        return False


class DelayedJoin(DelayedOperation):
    """Waits until all members have joined, or for the time that a rebalance may take.

    Watched under the group's name; triggered by who ends the rebalance. When the time is up, it
    ends it: who has not joined by then is out.
    """

    def __init__(self, groups: Groups, name: str, generation: int, timeout: float) -> None:
        super().__init__(timeout)
        self._groups, self._name, self._generation = groups, name, generation

    def try_complete(self) -> bool:
        """Is there a new generation?"""
        return self._groups.load(self._name).generation > self._generation and self.force_complete()


class DelayedSync(DelayedOperation):
    """Waits until the leader has said who gets what; or until a member comes or goes.

    Watched under the group's name.
    """

    def __init__(self, groups: Groups, name: str, generation: int, timeout: float) -> None:
        super().__init__(timeout)
        self._groups, self._name, self._generation = groups, name, generation

    def try_complete(self) -> bool:
        """Is it still the time between the join and the assignment?"""
        group = self._groups.load(self._name)
        return not group.awaits_assignment(self._generation) and self.force_complete()
