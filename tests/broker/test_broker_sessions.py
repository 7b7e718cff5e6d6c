"""Rounds and sessions of groups whose members are led by hand, under a virtual clock."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from broker_runs import inside

pytest.importorskip("kio")

from kio.schema.errors import ErrorCode

from broker_runs import LONG, Run, running
from examples.broker.groups import Groups
from examples.broker.wire import BrokerClient, milliseconds

pytestmark = pytest.mark.xdist_group("broker sessions")
JOIN, HEARTBEAT, LEAVE, SYNC = 11, 12, 13, 14


broker = inside(virtual_clock=True, initial_delay=0.0)


class Member:
    """A member that is led by hand."""

    def __init__(self, run: Run, group: str, session: float = 1000.0) -> None:
        self._run, self.group, self.session = run, group, session
        self.id, self.generation = "", -1

    async def join(self, peer: BrokerClient) -> Any:
        fields = {
            "group_id": self.group,
            "session_timeout": milliseconds(int(self.session * 1000)),
            "rebalance_timeout": milliseconds(60_000),
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": b"m"}],
        }
        answer = await peer.call(JOIN, 4, member_id=self.id, **fields)
        self.id = answer.member_id
        self.generation = answer.generation_id
        return answer

    async def beat(self, peer: BrokerClient) -> ErrorCode:
        answer = await peer.call(
            HEARTBEAT, 3, group_id=self.group, member_id=self.id, generation_id=self.generation
        )
        return answer.error_code

    async def rebalances(self, peer: BrokerClient) -> bool:
        return await self.beat(peer) is ErrorCode.rebalance_in_progress

    async def sync(self, peer: BrokerClient, **assignments: bytes) -> Any:
        given = [{"member_id": id, "assignment": one} for id, one in assignments.items()]
        return await peer.call(
            SYNC,
            3,
            group_id=self.group,
            member_id=self.id,
            generation_id=self.generation,
            assignments=given,
        )


def play(body: Any) -> None:
    asyncio.run(asyncio.wait_for(body, LONG))


async def until(holds: Callable[[], Awaitable[Any]]) -> None:
    """Look again and again until it holds; `play` ends it."""
    while not await holds():  # noqa: ASYNC110 (it is another process's state)
        await asyncio.sleep(0.005)


def peer(run: Run) -> BrokerClient:
    return BrokerClient("127.0.0.1", run.port, "by-hand")


def described(run: Run, name: str) -> tuple[str, int]:
    """State, and how many members."""
    group = Groups(Path(run.broker.settings.directory) / "groups").load(name)
    return group.state, len(group.members)


async def two(one: Member, first: BrokerClient, other: Member, second: BrokerClient) -> None:
    """Both come into one generation, and `one` leads it."""
    await one.join(first)
    joins = asyncio.create_task(other.join(second))
    await until(lambda: one.rebalances(first))
    again = await one.join(first)
    await joins
    assert again.leader == one.id
    assert one.generation == other.generation


async def vanish_in(run: Run, call: Callable[[BrokerClient], Awaitable[Any]], begun: Any) -> None:
    """Begin a call over a connection of its own, and close that when the call has begun."""
    async with peer(run) as one:
        task = asyncio.create_task(call(one))
        await until(begun)
        await asyncio.sleep(0.1)
        assert not task.done()
    await asyncio.gather(task, return_exceptions=True)
    await asyncio.sleep(0.1)  # the broker has seen it, too


async def test_a_member_that_falls_silent_is_out(broker: Run) -> None:
    one, other = Member(broker, "silent", 10), Member(broker, "silent", 30)
    async with peer(broker) as first, peer(broker) as second:
        await two(one, first, other, second)
        broker.daemon.advance(11)
        await until(lambda: other.rebalances(second))
        again = await other.join(second)
        assert (again.leader, len(again.members)) == (other.id, 1)
        assert await one.beat(first) is ErrorCode.unknown_member_id


async def test_heartbeats_keep_a_session(broker: Run) -> None:
    one = Member(broker, "beating", 10)
    async with peer(broker) as first, peer(broker) as second:
        await one.join(first)
        for turn in range(8):
            broker.daemon.advance(6)
            assert await one.beat((first, second)[turn // 2 % 2]) is ErrorCode.none
        broker.daemon.advance(11)

        async def empty() -> bool:
            return described(broker, "beating") == ("Empty", 0)

        await until(empty)


async def test_an_empty_session_is_no_other_members(broker: Run) -> None:
    one = Member(broker, "returns", 10)
    async with peer(broker) as first:
        await one.join(first)
        gone = await first.call(LEAVE, 2, group_id="returns", member_id=one.id)
        assert gone.error_code is ErrorCode.none
        one.id = ""
        broker.daemon.advance(6)
        await one.join(first)
        broker.daemon.advance(6)
        assert await one.beat(first) is ErrorCode.none


async def test_syncs_wait_for_the_leader(broker: Run) -> None:
    one, other = Member(broker, "syncs"), Member(broker, "syncs")
    async with peer(broker) as first, peer(broker) as second:
        await two(one, first, other, second)
        waiting = asyncio.create_task(other.sync(second))
        assert described(broker, "syncs") == ("Completing", 2)
        own = await one.sync(first, **{one.id: b"for the leader", other.id: b"other"})
        assert own.assignment == b"for the leader"
        assert (await waiting).assignment == b"other"
        assert described(broker, "syncs") == ("Stable", 2)


async def test_a_sync_ends_when_the_leader_leaves(broker: Run) -> None:
    one, other = Member(broker, "leaves"), Member(broker, "leaves")
    async with peer(broker) as first, peer(broker) as second:
        await two(one, first, other, second)
        waiting = asyncio.create_task(other.sync(second))
        gone = await first.call(LEAVE, 2, group_id="leaves", member_id=one.id)
        assert gone.error_code is ErrorCode.none
        assert (await waiting).error_code is ErrorCode.rebalance_in_progress


async def test_who_does_not_come_to_the_rebalance_is_out(broker: Run) -> None:
    one, other = Member(broker, "late", 100), Member(broker, "late", 100)
    async with peer(broker) as first, peer(broker) as second:
        await one.join(first)
        waiting = asyncio.create_task(other.join(second))  # for one, in vain
        await until(lambda: one.rebalances(first))
        broker.daemon.advance(61)
        answer = await waiting
        assert (answer.leader, len(answer.members)) == (other.id, 1)
        assert await one.beat(first) is ErrorCode.unknown_member_id


async def test_who_vanishes_while_it_waits_for_the_others_has_its_session(broker: Run) -> None:
    one, other = Member(broker, "in-join"), Member(broker, "in-join", 10)
    async with peer(broker) as first:
        await one.join(first)
        await vanish_in(broker, other.join, lambda: one.rebalances(first))
        assert len((await one.join(first)).members) == 2
        broker.daemon.advance(11)
        await until(lambda: one.rebalances(first))


async def test_who_vanishes_while_it_waits_for_its_assignment_has_its_session(broker: Run) -> None:
    one, other = Member(broker, "in-sync"), Member(broker, "in-sync", 10)
    async with peer(broker) as first, peer(broker) as second:
        await two(one, first, other, second)

        async def any_time() -> bool:
            return True

        await vanish_in(broker, other.sync, any_time)
        await one.sync(first, **{one.id: b"one", other.id: b"other"})
        broker.daemon.advance(11)
        await until(lambda: one.rebalances(first))


async def test_an_id_that_nobody_gave_out_is_unknown(broker: Run) -> None:
    stranger = Member(broker, "strangers")
    stranger.id = "somebody"
    async with peer(broker) as first:
        assert (await stranger.join(first)).error_code is ErrorCode.unknown_member_id
        stranger.session = 0.001
        assert (await stranger.join(first)).error_code is ErrorCode.invalid_session_timeout


def test_sessions_of_dead_workers_end(tmp_path: Path) -> None:
    with running(tmp_path, virtual_clock=True, initial_delay=0.0) as run:

        async def join() -> None:
            for number in range(6):  # of both workers
                async with peer(run) as one:
                    await Member(run, f"group-{number}", 10).join(one)

        async def gone() -> None:
            for group in (f"group-{n}" for n in range(6)):
                assert described(run, group)[1] == 1

            async def empty() -> bool:
                return all(described(run, f"group-{n}") == ("Empty", 0) for n in range(6))

            run.daemon.advance(11)
            await until(empty)

        play(join())
        for index in range(2):
            run.kill("worker", index)
        play(gone())
