"""Consumer groups: the rules, and the files in which groups outlive the worker that changes them.

One small JSON file per group, replaced as a whole under a flock, which dies with its holder.

    Empty -> Preparing -> Completing -> Stable
               ^______________|___________|      a member comes, goes, or wants another round

Preparing: members join, until all have or the time is up; then there is a new generation.
Completing: the generation waits for its leader's assignment. The rules read no clock.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from kio.schema.errors import ErrorCode

from examples.broker.settings import locked, write_whole
from examples.broker.wire import RequestRefused


@dataclass
class Member:
    """A member of a group. Times are seconds."""

    protocols: dict[str, str]  # name -> metadata in hexadecimal digits, the preferred one first
    session: float
    rebalance: float
    joined: bool = True  # in this round
    assignment: str = ""


@dataclass
class Group:
    """A group. Its times are nanoseconds of the monotonic clock."""

    name: str
    state: str = "Empty"
    generation: int = 0
    kind: str = ""
    protocol: str = ""
    leader: str = ""
    earliest_ns: int = 0  # the rebalance may end
    deadline_ns: int = 0  # it ends in any case
    members: dict[str, Member] = field(default_factory=dict)
    offsets: dict[str, list[Any]] = field(default_factory=dict)
    """"partition/topic's id" -> offset and metadata that were committed."""

    def check(self, member: str, generation: int) -> Member:
        if member not in self.members:
            raise RequestRefused(ErrorCode.unknown_member_id)
        if generation != self.generation:
            raise RequestRefused(ErrorCode.illegal_generation)
        return self.members[member]

    def awaits_assignment(self, generation: int) -> bool:
        """Whether that generation exists and its leader has yet to assign the partitions."""
        return self.state == "Completing" and self.generation == generation

    def join(self, id: str, member: Member, kind: str, now_ns: int, delay: float) -> bool:
        """A member joins, or joins again; an empty group waits for `delay` seconds for others.

        Returns whether there is a rebalance to wait for. Else the member already has the result, or
        missed the answer.
        """
        before = self.members.get(id)
        others = [set(one.protocols) for key, one in self.members.items() if key != id]
        common = set(member.protocols).intersection(*others)
        if not kind or not common or (others and kind != self.kind):
            raise RequestRefused(ErrorCode.inconsistent_group_protocol)
        stands = self.state == "Completing" or (self.state == "Stable" and id != self.leader)
        if before is not None and before.protocols == member.protocols and stands:
            return False
        if before is not None:
            member.assignment = before.assignment
        was_empty = not self.members
        self.members[id], self.kind = member, kind
        self.prepare(now_ns, delay if was_empty else 0.0)
        return True

    def prepare(self, now_ns: int, delay: float = 0.0) -> None:
        """Begin a rebalance, unless there is one."""
        if self.state != "Preparing":
            self.state, self.earliest_ns = "Preparing", now_ns + int(delay * 1e9)
            self.deadline_ns = 0
        longest = max((one.rebalance for one in self.members.values()), default=0.0)
        self.deadline_ns = self.deadline_ns or now_ns + int(longest * 1e9)
        self.finish(now_ns)

    def finish(self, now_ns: int) -> None:
        """End the rebalance, if all have joined or its time is up."""
        all_joined = all(one.joined for one in self.members.values())
        if self.state != "Preparing" or now_ns < self.earliest_ns:
            return
        if not all_joined and now_ns < self.deadline_ns:
            return
        self.members = {id: one for id, one in self.members.items() if one.joined}
        self.generation += 1
        self.protocol, self.state = "", "Empty"
        if self.members:
            self.state = "Completing"
            common = set.intersection(*(set(one.protocols) for one in self.members.values()))
            first = next(iter(self.members.values()))
            self.protocol = next(name for name in first.protocols if name in common)
            if self.leader not in self.members:
                self.leader = next(iter(self.members))
        for one in self.members.values():
            one.joined, one.assignment = False, ""

    def assign(self, member: str, assignments: dict[str, str]) -> None:
        """The leader's assignment; from anybody else it is ignored."""
        if member == self.leader and self.state == "Completing":
            for id, one in self.members.items():
                one.assignment = assignments.get(id, "")
            self.state = "Stable"

    def remove(self, member: str, now_ns: int) -> None:
        """A member goes, by itself or because its session ended."""
        if self.members.pop(member, None) is not None:
            self.prepare(now_ns)

    def check_commit(self, member: str, generation: int) -> None:
        """Whether it may commit. Without a generation: a non-member, if there are no members."""
        if generation < 0 and not self.members:
            return
        self.check(member, generation)
        if self.state == "Completing":
            raise RequestRefused(ErrorCode.rebalance_in_progress)


class Groups:
    """The groups of a broker, as one of its processes sees them."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory

    def load(self, name: str) -> Group:
        """A group as it is now, read-only; one that does not exist yet is empty."""
        return self.of_digest(self.digest(name)) or Group(name)

    @contextmanager
    def changing(self, name: str) -> Iterator[Group]:
        """A group to change, under its lock; an exception changes nothing."""
        digest = self.digest(name)
        with locked(self._directory / digest[:2]):  # of a few
            group = self.load(name)
            before = asdict(group)
            yield group
            if asdict(group) != before:
                write_whole(self._directory / f"{digest}.json", json.dumps(asdict(group)))

    def begin_anew(self) -> None:
        """The broker starts: nobody's session has outlived it. Committed offsets stay."""
        for path in self._directory.glob("*.json"):
            group = self.of_digest(path.stem)
            if group is not None:
                with self.changing(group.name) as one:
                    one.members, one.state = {}, "Empty"

    def digest(self, name: str) -> str:
        """A short stand-in for a group's name, which may be long."""
        return hashlib.blake2b(name.encode(), digest_size=16).hexdigest()

    def of_digest(self, digest: str) -> Group | None:
        try:
            fields = json.loads((self._directory / f"{digest}.json").read_text())
        except FileNotFoundError:
            return None
        members = {id: Member(**one) for id, one in fields.pop("members").items()}
        return Group(**fields, members=members)
