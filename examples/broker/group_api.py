"""JoinGroup and the other APIs for groups, idempotent producers and coordinators."""

from __future__ import annotations

import logging
import secrets
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from kio.schema.errors import ErrorCode

from examples.broker.groups import Group, Groups, Member
from examples.broker.log_api import LEADER
from examples.broker.settings import Settings
from examples.broker.topics import Topics
from examples.broker.wire import (
    Answer,
    Call,
    Key,
    RequestRefused,
    by_partition,
    partitions_of,
    seconds,
)
from wheeld_client import AsyncPurgatory, AsyncTimers, Deadlines, DelayedOperation

LONGEST_NAME: Final = 32
"""Bytes of a client's name in its member id, which is in the payload of its session's timer."""
LONGEST_METADATA: Final = 4096
"""For a commit: offset.metadata.max.bytes."""
_GROUP: Final = 0

log = logging.getLogger("broker.worker")


class DelayedJoin(DelayedOperation):
    """Waits until there is a new generation of a group, under whose name it is watched."""

    def __init__(self, groups: Groups, name: str, generation: int, timeout: float) -> None:
        super().__init__(timeout)
        self._groups, self._name, self._generation = groups, name, generation

    def try_complete(self) -> bool:
        """Whether all have joined, or it was ended without the rest."""
        return self._groups.load(self._name).generation > self._generation and self.force_complete()


class DelayedSync(DelayedJoin):
    """Waits until the leader has assigned the partitions, or a member comes or goes."""

    def try_complete(self) -> bool:
        """Whether it is still the time between the join and the assignment."""
        group = self._groups.load(self._name)
        return not group.awaits_assignment(self._generation) and self.force_complete()


@dataclass
class GroupApi:
    own: Settings
    topics: Topics
    groups: Groups
    rounds: AsyncPurgatory
    timers: AsyncTimers

    def __post_init__(self) -> None:
        self._sessions = Deadlines(self.timers, f"{self.rounds.name}-sessions", self._session_over)

    @property
    def _now_ns(self) -> int:
        """The time of the wheel's clock, the same in all processes."""
        return self.timers.timers.now_ns()

    @contextmanager
    def _changing(self, name: str) -> Iterator[Group]:
        """A group to change, under its lock. At the end its waiters are checked again,
        in all workers, even if this one is killed before.

        A member that has waited has its session from then on, whether or not it is still there.
        """
        with self.rounds.changing(name), self.groups.changing(name) as group:
            before = group.generation, group.state
            yield group
            if (group.generation, group.state) != before and group.state != "Preparing":
                for id, member in group.members.items():
                    self._session(name, id, member.session)

    def _session(self, name: str, id: str, seconds: float) -> None:
        """The delayed heartbeat: from now on a member has this many seconds."""
        self._sessions.start((self.groups.digest(name), id), seconds)

    def _session_over(self, key: tuple[str, str]) -> None:
        """A member sent no heartbeat, to any worker: the others join again without it."""
        digest, id = key
        found = self.groups.of_digest(digest)
        if found is not None:
            with self._changing(found.name) as group:
                if self._sessions.remaining(key) == 0.0:  # else a heartbeat has just arrived
                    log.warning("group %s: no heartbeat from %s", group.name, id)
                    group.remove(id, self._now_ns)

    async def join_group(self, call: Call) -> Answer:
        """Wait for the others, and return them."""
        name, is_new, member = call.body.group_id, not call.body.member_id, self._member(call)
        id = call.body.member_id or f"{call.client[:LONGEST_NAME]}-{uuid.uuid4()}"
        with self._changing(name) as group:
            if not is_new and id not in group.members:
                raise RequestRefused(ErrorCode.unknown_member_id, member_id=id)
            generation, kind = group.generation, call.body.protocol_type
            waits = group.join(id, member, kind, self._now_ns, self.own.initial_delay)
            self._session(name, id, member.session + (member.rebalance if waits else 0.0))
        if waits:
            await self._joined(group, generation)
        with self.groups.changing(name) as group:
            if id not in group.members or (waits and group.generation <= generation):
                raise RequestRefused(ErrorCode.unknown_member_id, member_id=id)
            self._session(name, id, member.session)
        return self._round(group, id)

    def _member(self, call: Call) -> Member:
        body, own = call.body, self.own
        session = seconds(body.session_timeout)
        rebalance = seconds(getattr(body, "rebalance_timeout", body.session_timeout)) or session
        if not body.group_id:
            raise RequestRefused(ErrorCode.invalid_group_id)
        if not own.shortest_session <= session <= own.longest_session:
            raise RequestRefused(ErrorCode.invalid_session_timeout)
        if getattr(body, "group_instance_id", None) is not None:
            raise RequestRefused(ErrorCode.unsupported_version)  # a static member
        protocols = {one.name: one.metadata.hex() for one in body.protocols}
        longest = min(rebalance, own.longest_session)
        return Member(protocols, session, longest)

    async def _joined(self, group: Group, generation: int) -> None:
        """Wait for the end of the rebalance, and end it when it is time."""
        early = group.earliest_ns - self._now_ns
        if early > 0:  # the first member of a group waits for others
            await self.timers.sleep(early / 1e9)
            self._finish(group.name)
        timeout = max(0, group.deadline_ns - self._now_ns) / 1e9
        waiting = DelayedJoin(self.groups, group.name, generation, timeout)
        if not await self.rounds.wait(waiting, [group.name]):
            self._finish(group.name)

    def _finish(self, name: str) -> None:
        with self._changing(name) as group:
            group.finish(self._now_ns)

    def _round(self, group: Group, id: str) -> Answer:
        members = []
        if id == group.leader:
            for other, one in group.members.items():
                metadata = bytes.fromhex(one.protocols.get(group.protocol, ""))
                members.append({"member_id": other, "metadata": metadata})
        return {
            "generation_id": group.generation,
            "protocol_type": group.kind,
            "protocol_name": group.protocol,
            "leader": group.leader,
            "member_id": id,
            "members": members,
        }

    async def sync_group(self, call: Call) -> Answer:
        """Take the leader's assignment, or wait for it."""
        body = call.body
        name, id, generation = body.group_id, body.member_id, body.generation_id
        with self._changing(name) as group:
            member = group.check(id, generation)
            if group.state == "Preparing":
                raise RequestRefused(ErrorCode.rebalance_in_progress)
            group.assign(id, {one.member_id: one.assignment.hex() for one in body.assignments})
            self._session(name, id, member.session + member.rebalance)
        waiting = DelayedSync(self.groups, name, generation, member.rebalance)
        await self.rounds.wait(waiting, [name])
        with self.groups.changing(name) as group:
            member = group.check(id, generation)
            self._session(name, id, member.session)
            if group.state != "Stable":
                raise RequestRefused(ErrorCode.rebalance_in_progress)
        return {
            "assignment": bytes.fromhex(member.assignment),
            "protocol_type": group.kind,
            "protocol_name": group.protocol,
        }

    async def heartbeat(self, call: Call) -> Answer:
        """A sign of life; the answer says whether there is a rebalance to join."""
        body = call.body
        group = self.groups.load(body.group_id)
        member = group.check(body.member_id, body.generation_id)
        key = self.groups.digest(body.group_id), body.member_id
        if not self._sessions.extend(key, member.session):
            raise RequestRefused(ErrorCode.unknown_member_id)  # just now
        if group.state == "Preparing":
            raise RequestRefused(ErrorCode.rebalance_in_progress)
        return {}

    async def leave_group(self, call: Call) -> Answer:
        """One member goes; since version 3 several may."""
        body, answers = call.body, []
        with self._changing(body.group_id) as group:
            for one in getattr(body, "members", [body]):
                known = one.member_id in group.members
                code = ErrorCode.none if known else ErrorCode.unknown_member_id
                answers.append({"member_id": one.member_id, "error_code": code})
                self._sessions.cancel((self.groups.digest(body.group_id), one.member_id))
                group.remove(one.member_id, self._now_ns)
        return {"members": answers} if hasattr(body, "members") else answers[0]

    async def offset_commit(self, call: Call) -> Answer:
        """Note how far a group has come. An offset is of a topic's id: one that is created again
        under its name begins without.
        """
        body, ids = call.body, {topic.id for topic in self.topics.all().values()}

        def note(key: Key, part: Any) -> Answer:
            topic, _ = self.topics.partition(*key).id
            metadata = part.committed_metadata or ""
            if len(metadata) > LONGEST_METADATA:
                raise RequestRefused(ErrorCode.offset_metadata_too_large)
            group.check_commit(body.member_id, getattr(body, "generation_id_or_member_epoch", -1))
            group.offsets[f"{key[1]}/{topic}"] = [part.committed_offset, metadata]
            return {}

        with self.groups.changing(body.group_id) as group:
            for place in [place for place in group.offsets if place.split("/")[1] not in ids]:
                del group.offsets[place]
            return {"topics": by_partition(partitions_of(body.topics), note)}

    async def offset_fetch(self, call: Call) -> Answer:
        """How far a group has come, since version 8 several; -1: nothing was committed."""
        if hasattr(call.body, "groups"):
            groups = [
                {"group_id": one.group_id, "topics": self._committed(one.group_id, one.topics)}
                for one in call.body.groups
            ]
            return {"groups": groups}
        return {"topics": self._committed(call.body.group_id, call.body.topics)}

    def _committed(self, group: str, asked: Any) -> list[Answer]:
        offsets, topics = self.groups.load(group).offsets, self.topics.all()

        def find(key: Key, part: Any) -> Answer:
            topic = topics.get(key[0])
            offset, metadata = offsets.get(f"{key[1]}/{topic and topic.id}", (-1, ""))
            return {"committed_offset": offset, "metadata": metadata}

        if asked is not None:
            return by_partition(partitions_of(asked), find)
        every = [(name, n) for name, topic in topics.items() for n in range(topic.partitions)]
        known = [(key, None) for key in every if f"{key[1]}/{topics[key[0]].id}" in offsets]
        return by_partition(known, find)

    async def find_coordinator(self, call: Call) -> Answer:
        """All workers are one coordinator, of groups only."""
        body, own = call.body, self.own
        wrong = getattr(body, "key_type", _GROUP) != _GROUP
        code = ErrorCode.transactional_id_authorization_failed if wrong else ErrorCode.none
        place = {"error_code": code, "node_id": LEADER, "host": own.host, "port": own.port}
        keys = getattr(body, "coordinator_keys", ())
        return place | {"coordinators": [place | {"key": key} for key in keys]}

    async def init_producer_id(self, call: Call) -> Answer:
        """A unique id for an idempotent producer. There are no transactions."""
        if call.body.transactional_id is not None:
            code = ErrorCode.transactional_id_authorization_failed
            raise RequestRefused(code, producer_id=-1, producer_epoch=-1)
        return {"producer_id": secrets.randbits(62), "producer_epoch": 0}
