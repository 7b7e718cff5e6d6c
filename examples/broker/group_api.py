"""JoinGroup and what else is about groups, idempotent producers and coordinators."""

from __future__ import annotations

import logging
import secrets
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from kio.schema.errors import ErrorCode

from examples.broker.delayed import DelayedJoin, DelayedSync
from examples.broker.groups import Group, GroupError, Groups, Member
from examples.broker.log_api import LEADER
from examples.broker.settings import Settings
from examples.broker.wire import Call, seconds
from wheeld_client import AsyncPurgatory, AsyncTimers, Deadlines

ID_REQUIRED_FROM: Final = 4
"""Versions of JoinGroup in which a newcomer is given an id, and joins by it (KIP-394)."""
LONGEST_NAME: Final = 32
"""Of a client, in its member id: that is in the payload of its session's timer."""
_GROUP: Final = 0

log = logging.getLogger("broker.worker")

Answer = dict[str, Any]


class GroupApi:
    """Answers one worker's requests about groups."""

    def __init__(
        self, settings: Settings, groups: Groups, waiting: AsyncPurgatory, timers: AsyncTimers
    ) -> None:
        self._settings, self._groups, self._waiting = settings, groups, waiting
        self._timers = timers
        self._now_ns = timers.timers.now_ns  # the wheel's clock, the same in all processes
        self._sessions = Deadlines(timers, f"{waiting.name}-sessions", self._session_over)

    @contextmanager
    def _changing(self, name: str) -> Iterator[Group]:
        """A group to change, under its lock. At the end who waits in it looks again,
        in all workers, also if this one is killed before.
        """
        with self._waiting.changing(name), self._groups.changing(name) as group:
            yield group

    # -- sessions -------------------------------------------------------------------------------

    def _session(self, name: str, id: str, seconds: float) -> None:
        """The delayed heartbeat: from now on a member has so many seconds."""
        self._sessions.start(self._groups.session(name, id), seconds)

    def _session_over(self, key: tuple[str, str]) -> None:
        """Nothing was heard of a member, in whichever worker: the others join again without it."""
        digest, id = key
        with self._changing(self._groups.name_of(digest)) as group:
            if self._sessions.remaining(key) == 0.0:  # else somebody has heard of it just now
                log.warning("group %s: nothing was heard of %s", group.name, id)
                group.remove(id, self._now_ns())

    # -- a round: join, then sync ---------------------------------------------------------------

    async def join_group(self, call: Call) -> Answer:
        """Wait for the others, and tell who they are."""
        body = call.body
        name, id = body.group_id, body.member_id
        session = seconds(body.session_timeout)
        rebalance = seconds(getattr(body, "rebalance_timeout", body.session_timeout)) or session
        shortest, longest = self._settings.shortest_session, self._settings.longest_session
        if not name:
            return {"error_code": ErrorCode.invalid_group_id, "member_id": id}
        if not shortest <= session <= longest:
            return {"error_code": ErrorCode.invalid_session_timeout, "member_id": id}
        protocols = {one.name: one.metadata.hex() for one in body.protocols}
        member = Member(protocols, session, min(rebalance, longest), call.client, call.host)
        now_ns = self._now_ns()
        try:
            with self._changing(name) as group:
                if not id:
                    id = f"{call.client[:LONGEST_NAME]}-{uuid.uuid4()}"
                    if call.version >= ID_REQUIRED_FROM:
                        group.announce(id, now_ns, now_ns + int(session * 1e9))
                        return {"error_code": ErrorCode.member_id_required, "member_id": id}
                elif id not in group.members and id not in group.announced:
                    raise GroupError(ErrorCode.unknown_member_id)
                generation = group.generation
                waits = group.join(
                    id, member, body.protocol_type, now_ns, self._settings.initial_delay
                )
                self._session(name, id, session + (member.rebalance if waits else 0.0))
        except GroupError as error:
            return {"error_code": error.code, "member_id": id}
        if waits:
            await self._joined(group, generation)
        with self._groups.changing(name) as group:
            if id not in group.members or (waits and group.generation <= generation):
                return {"error_code": ErrorCode.unknown_member_id, "member_id": id}
            self._session(name, id, session)
        return self._round(group, id)

    async def _joined(self, group: Group, generation: int) -> None:
        """Wait for the end of the rebalance, and end it when it is time."""
        now_ns = self._now_ns()
        if group.earliest_ns > now_ns:  # the first of a group waits for others
            await self._timers.sleep((group.earliest_ns - now_ns) / 1e9)
            self._finish(group.name)
            now_ns = self._now_ns()
        timeout = max(0.0, (group.deadline_ns - now_ns) / 1e9)
        waiting = DelayedJoin(self._groups, group.name, generation, timeout)
        if not await self._waiting.wait(waiting, [group.name]):
            self._finish(group.name)

    def _finish(self, name: str) -> None:
        with self._changing(name) as group:
            group.finish(self._now_ns())

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
        assignments = {one.member_id: one.assignment.hex() for one in body.assignments}
        try:
            with self._changing(name) as group:
                member = group.check(id, generation)
                if group.state == "Preparing":
                    raise GroupError(ErrorCode.rebalance_in_progress)
                group.assign(id, assignments)
                self._session(name, id, member.session + member.rebalance)
            waiting = DelayedSync(self._groups, name, generation, member.rebalance)
            await self._waiting.wait(waiting, [name])
            with self._groups.changing(name) as group:
                member = group.check(id, generation)
                self._session(name, id, member.session)
                if group.state != "Stable":
                    raise GroupError(ErrorCode.rebalance_in_progress)
        except GroupError as error:
            return {"error_code": error.code}
        return {
            "assignment": bytes.fromhex(member.assignment),
            "protocol_type": group.kind,
            "protocol_name": group.protocol,
        }

    async def heartbeat(self, call: Call) -> Answer:
        """A sign of life; the answer says whether there is a rebalance to join."""
        body = call.body
        group = self._groups.load(body.group_id)
        key = self._groups.session(body.group_id, body.member_id)
        try:
            member = group.check(body.member_id, body.generation_id)
            if not self._sessions.extend(key, member.session):
                raise GroupError(ErrorCode.unknown_member_id)  # just now
        except GroupError as error:
            return {"error_code": error.code}
        preparing = group.state == "Preparing"
        return {"error_code": ErrorCode.rebalance_in_progress if preparing else ErrorCode.none}

    async def leave_group(self, call: Call) -> Answer:
        """One member goes; since version 3 several may."""
        body, answers = call.body, []
        gone = [body] if hasattr(body, "member_id") else list(body.members)
        with self._changing(body.group_id) as group:
            for one in gone:
                known = one.member_id in group.members or one.member_id in group.announced
                code = ErrorCode.none if known else ErrorCode.unknown_member_id
                answers.append({"member_id": one.member_id, "error_code": code})
                self._sessions.cancel(self._groups.session(body.group_id, one.member_id))
                group.remove(one.member_id, self._now_ns())
        if hasattr(body, "member_id"):
            return {"error_code": answers[0]["error_code"]}
        return {"members": answers}

    # -- offsets --------------------------------------------------------------------------------

    async def offset_commit(self, call: Call) -> Answer:
        """Note how far a group has come."""
        body, code = call.body, ErrorCode.none
        generation = getattr(body, "generation_id_or_member_epoch", -1)
        try:
            with self._groups.changing(body.group_id) as group:
                group.check_commit(body.member_id, generation)
                for topic in body.topics:
                    for part in topic.partitions:
                        told = [part.committed_offset, part.committed_metadata or ""]
                        group.offsets[f"{part.partition_index}/{topic.name}"] = told
        except GroupError as error:
            code = error.code
        return {
            "topics": [
                {
                    "name": topic.name,
                    "partitions": [
                        {"partition_index": part.partition_index, "error_code": code}
                        for part in topic.partitions
                    ],
                }
                for topic in body.topics
            ]
        }

    async def offset_fetch(self, call: Call) -> Answer:
        """How far a group has come; -1: nobody said."""
        offsets = self._groups.load(call.body.group_id).offsets
        asked: dict[str, list[int]] = {}
        if call.body.topics is None:
            for place in offsets:
                number, name = place.split("/", 1)
                asked.setdefault(name, []).append(int(number))
        else:
            asked = {one.name: list(one.partition_indexes) for one in call.body.topics}
        topics = []
        for name, numbers in asked.items():
            parts = []
            for number in numbers:
                offset, metadata = offsets.get(f"{number}/{name}", (-1, ""))
                parts.append(
                    {"partition_index": number, "committed_offset": offset, "metadata": metadata}
                )
            topics.append({"name": name, "partitions": parts})
        return {"topics": topics}

    # -- to look at -----------------------------------------------------------------------------

    async def describe_groups(self, call: Call) -> Answer:
        """State and members of groups."""
        return {"groups": [_described(self._groups.load(name)) for name in call.body.groups]}

    async def list_groups(self, call: Call) -> Answer:
        """All groups, or those in certain states."""
        wanted = [state.lower() for state in getattr(call.body, "states_filter", ())]
        groups = [
            {"group_id": one.name, "protocol_type": one.kind, "group_state": _state(one)}
            for one in self._groups.all()
        ]
        return {
            "groups": [one for one in groups if not wanted or one["group_state"].lower() in wanted]
        }

    # -- the rest -------------------------------------------------------------------------------

    async def find_coordinator(self, call: Call) -> Answer:
        """All workers are one coordinator, of groups only."""
        body, own = call.body, self._settings
        wrong = getattr(body, "key_type", _GROUP) != _GROUP
        code = ErrorCode.transactional_id_authorization_failed if wrong else ErrorCode.none
        place = {"error_code": code, "node_id": LEADER, "host": own.host, "port": own.port}
        keys = getattr(body, "coordinator_keys", ())
        return place | {"coordinators": [place | {"key": key} for key in keys]}

    async def init_producer_id(self, call: Call) -> Answer:
        """An id for an idempotent producer, which nobody else gets. There are no transactions."""
        if call.body.transactional_id is not None:
            code = ErrorCode.transactional_id_authorization_failed
            return {"error_code": code, "producer_id": -1, "producer_epoch": -1}
        return {"producer_id": secrets.randbits(62), "producer_epoch": 0}


def _state(group: Group) -> str:
    """By Kafka's name."""
    names = {"Preparing": "PreparingRebalance", "Completing": "CompletingRebalance"}
    return names.get(group.state, group.state)


def _described(group: Group) -> Answer:
    there = bool(group.kind or group.offsets)
    members = [
        {
            "member_id": id,
            "client_id": one.client,
            "client_host": one.host,
            "member_metadata": bytes.fromhex(one.protocols.get(group.protocol, "")),
            "member_assignment": bytes.fromhex(one.assignment),
        }
        for id, one in group.members.items()
    ]
    return {
        "group_id": group.name,
        "group_state": _state(group) if there else "Dead",
        "protocol_type": group.kind,
        "protocol_data": group.protocol,
        "members": members,
    }
