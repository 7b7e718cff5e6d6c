"""Groups: members wait in a group's file until as many are there as it is to have.

One small JSON file per group, replaced as a whole under a lock. A member joins by an *attempt*, a
number that only grows. When the last one comes, all who wait become a *generation*; the file keeps
who was in it, so that a member whose connection broke asks again by the same attempt and gets the
same answer.

A waiting member is forgotten when its time is up, when its connection broke (`withdraw`) and when
its worker is dead: none of these can be in a new generation.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

KEPT_GENERATIONS: Final = 32


@dataclass(frozen=True)
class Generation:
    """A complete group."""

    number: int
    members: list[str]


@dataclass(frozen=True)
class Ticket:
    """One request to join, as it waits.

    Attributes
    ----------
    worker : str
        Where it waits.
    serial : int
        Which of that worker's requests it is: a request sent again to the same worker replaces the
        first, and the end of the first must not take away the second.
    deadline_ns : int
        On the monotonic clock, which all processes of a host share.
    """

    attempt: int
    worker: str
    serial: int
    deadline_ns: int


@dataclass
class _State:
    generation: int = 0
    size: int = 0
    waiting: dict[str, dict[str, Any]] = field(default_factory=dict)
    formed: list[tuple[int, dict[str, int]]] = field(default_factory=list)

    def find(self, member: str, attempt: int) -> Generation | None:
        """The generation that this attempt got into."""
        for number, attempts in reversed(self.formed):
            if attempts.get(member) == attempt:
                return Generation(number, sorted(attempts))
        return None


class GroupSizeError(ValueError):
    """Others wait in the group for another number of members."""


class Groups:
    """The groups of a broker, as one worker sees them.

    Parameters
    ----------
    directory : Path
        The same for all workers; made if it is not there.
    lives : callable
        Tells of a worker's name whether that worker lives.
    """

    def __init__(self, directory: Path, lives: Callable[[str], bool]) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._lives = lives

    def join(self, group: str, member: str, size: int, ticket: Ticket, now_ns: int) -> None:
        """Let a member wait; forms a generation when it is the last one.

        Raises
        ------
        GroupSizeError
            `size` differs from what those who wait asked for.
        """
        with self._locked(group):
            state = self._load(group)
            if state.find(member, ticket.attempt) is not None:
                return
            state.waiting = {
                name: other
                for name, other in state.waiting.items()
                if other["deadline_ns"] > now_ns and self._lives(other["worker"])
            }
            if state.waiting.keys() - {member} and state.size != size:
                raise GroupSizeError(f"group {group}: got size {size}, others want {state.size}")
            state.size = size
            state.waiting[member] = asdict(ticket)
            if len(state.waiting) >= size:
                attempts = {name: one["attempt"] for name, one in state.waiting.items()}
                state.generation += 1
                state.formed = [*state.formed, (state.generation, attempts)][-KEPT_GENERATIONS:]
                state.waiting = {}
            self._store(group, state)

    def find(self, group: str, member: str, attempt: int) -> Generation | None:
        """The generation that the attempt got into, if there is one yet. Takes no lock."""
        return self._load(group).find(member, attempt)

    def withdraw(self, group: str, member: str, ticket: Ticket) -> Generation | None:
        """End an attempt that may still wait.

        Returns
        -------
        Generation or None
            None: it waits no more, and no generation will have it. Else it was too late: others
            count on the member.
        """
        with self._locked(group):
            state = self._load(group)
            formed = state.find(member, ticket.attempt)
            if formed is None and state.waiting.get(member) == asdict(ticket):
                del state.waiting[member]
                self._store(group, state)
            return formed

    def waiting(self, group: str) -> list[str]:
        """Who is noted as waiting."""
        return sorted(self._load(group).waiting)

    # -- the file -------------------------------------------------------------------------------

    @contextmanager
    def _locked(self, group: str) -> Iterator[None]:
        descriptor = os.open(self._directory / f"{group}.lock", os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _load(self, group: str) -> _State:
        try:
            text = (self._directory / f"{group}.json").read_text()
        except FileNotFoundError:
            return _State()
        return _State(**json.loads(text))

    def _store(self, group: str, state: _State) -> None:
        fresh = self._directory / f"{group}.new"
        fresh.write_text(json.dumps(asdict(state)))
        fresh.rename(self._directory / f"{group}.json")
