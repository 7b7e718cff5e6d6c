"""A join: it waits until the group has all its members."""

from __future__ import annotations

from examples.broker.groups import Generation, Groups, Ticket
from wheeld_client import DelayedOperation


class DelayedJoin(DelayedOperation):
    """Completes when the member is in a generation.

    Watch it under the group's name; each join of a member triggers it.

    Attributes
    ----------
    generation : Generation or None
        After completion: the group. None: the time was up before.
    """

    def __init__(
        self, groups: Groups, group: str, member: str, ticket: Ticket, timeout: float
    ) -> None:
        super().__init__(timeout)
        self._groups, self._group, self._member = groups, group, member
        self._ticket = ticket
        self.generation: Generation | None = None

    def try_complete(self) -> bool:
        """Look into the group's file: the last member may have come to another worker."""
        return self._find() is not None and self.force_complete()

    def on_complete(self) -> None:
        """Note the generation that `try_complete` has seen."""
        self.generation = self._find()

    def on_expiration(self) -> None:
        """Leave, under the group's lock: the last member may be coming at this moment."""
        self.generation = self.withdraw()

    def withdraw(self) -> Generation | None:
        """Wait no longer; the generation, if it was too late for that."""
        return self._groups.withdraw(self._group, self._member, self._ticket)

    def _find(self) -> Generation | None:
        return self._groups.find(self._group, self._member, self._ticket.attempt)
