"""Intake: KIP-72's rules of reading: which channels are read, muted, and served in which order."""

import asyncio
import random

import pytest

from intake_peers import Backwards, Desk, Peer, Place, framed, refused_peers, ripple, until
from model_pool import ModelPool

BOTH = pytest.mark.parametrize("strict", [False, True], ids=["lenient", "strict"])


# -- 5: a connection reads its length prefix without the pool -------------------------------------


@BOTH
async def test_5_prefix_without_the_pool(strict: bool) -> None:
    pool = ModelPool(100, strict=strict)
    all_of_it = pool.try_allocate(100)
    async with Place(pool, Desk()) as place:
        peer = await place.peer()
        await peer.send(framed(b"abc")[:3])
        (connection,) = place.connections()
        await until(lambda: connection._have == 3, "three bytes read")
        assert pool.asked == [100]
        assert place.stats("muted") == 0
        await peer.send(framed(b"abc")[3:])
        await place.until(muted=1, refusals=1)
        assert pool.asked[1] == 3
        assert (pool.used, place.stats("bytes"), place.stats("in_flight")) == (100, 0, 0)
        pool.release(all_of_it)
        assert await peer.answer() == b"abc"


# -- 5: when the pool refuses, that connection mutes itself; only if nothing is allocated ---------


@BOTH
async def test_5_refused_mutes_itself(strict: bool) -> None:
    pool = ModelPool(100, strict=strict)
    desk = Desk(closed=True)
    async with Place(pool, desk) as place:
        half = await place.peer()
        await half.send(framed(b"h" * 100)[:50])
        await place.until(bytes=100)
        refused, early = await place.peer(), await place.peer()
        await refused.send(framed(b"refused"))
        await early.send(b"\0")
        await place.until(muted=1, refusals=1)
        assert [one._transport.is_reading() for one in place.connections()] == [True, False, True]
        await ripple()
        assert place.stats("muted") == 1
        await half.send(framed(b"h" * 100)[50:])
        await place.until(requests=1)
        desk.open()
        assert await half.answer() == b"h" * 100
        assert await refused.answer() == b"refused"


async def test_5_a_muted_connection_costs_no_loop_turns() -> None:
    pool = ModelPool(10)
    hold = pool.try_allocate(10)
    async with Place(pool, Desk()) as place:
        peer = await place.peer()
        await peer.send(framed(b"y" * 10) + framed(b"z" * 10) * 100)
        await place.until(muted=1)
        (connection,) = place.connections()
        calls: list[int] = []
        connection.get_buffer = calls.append
        await ripple()
        assert calls == []
        del connection.get_buffer
        pool.release(hold)
        assert await peer.answer() == b"y" * 10
        for _ in range(100):
            assert await peer.answer() == b"z" * 10


# -- 5: as soon as memory returns, all such connections are unmuted -------------------------------


@BOTH
async def test_5_all_are_served_when_memory_returns_elsewhere(strict: bool) -> None:
    pool = ModelPool(100, strict=strict)
    hold = pool.try_allocate(100)
    async with Place(pool, Desk()) as place:
        peers = await refused_peers(place, 10)
        assert place.stats("requests") == 0
        pool.release(hold)
        answers = await asyncio.gather(*(peer.answer() for peer in peers))
        assert answers == [b"x" * (number + 1) for number in range(10)]
        await place.until(muted=0)


@BOTH
async def test_5_all_are_served_one_after_the_other(strict: bool) -> None:
    pool = ModelPool(10, strict=strict)
    pool.wait_available = lambda *arguments: False  # type: ignore[method-assign]
    desk = Desk(closed=True)
    async with Place(pool, desk) as place:
        first = await place.peer()
        await first.send(framed(b"f" * 10))
        await place.until(requests=1)
        peers = await refused_peers(place, 10)
        desk.open()
        await asyncio.gather(*(peer.answer() for peer in [first, *peers]))
        await place.until(muted=0, requests=11)


@pytest.mark.parametrize("how", ["close", "vanish", "release"])
async def test_5_memory_that_another_peer_had_unmutes(how: str) -> None:
    pool = ModelPool(10)
    pool.wait_available = lambda *arguments: False  # type: ignore[method-assign]
    desk = Desk(closed=True)
    async with Place(pool, desk) as place:
        first = await place.peer()
        await first.send(framed(b"f" * 10)[: None if how == "release" else 9])
        await place.until(bytes=10, requests=how == "release")
        (peer,) = await refused_peers(place, 1)
        if how == "release":
            await until(lambda: desk.requests, "begun")
            desk.requests[0].release()
        else:
            getattr(first, how)()
        await place.until(requests=1 + (how == "release"), muted=0)
        desk.open()
        assert await peer.answer() == b"x"


async def test_5_strict_pool_with_too_little() -> None:
    pool = ModelPool(100, strict=True)
    hold = [pool.try_allocate(60), pool.try_allocate(40)]
    async with Place(pool, Desk()) as place:
        large, small = await place.peer(), await place.peer()
        await large.send(framed(b"l" * 90))
        await place.until(muted=1)
        await small.send(framed(b"s" * 30))
        await place.until(muted=2)
        pool.release(hold[1])
        assert await small.answer() == b"s" * 30
        await until(lambda: pool.waited_for[-1:] == [90], "waits for as much as is needed")
        assert place.stats("muted") == 1
        refusals = place.stats("refusals")
        await ripple()
        assert place.stats("refusals") == refusals, "tried again for nothing"
        pool.release(hold[0])
        assert await large.answer() == b"l" * 90


# -- 5: with less than 10 % available the ready are served in random order ------------------------


async def test_5_random_order_when_refused() -> None:
    pool = ModelPool(1000)
    hold = pool.try_allocate(1000)
    async with Place(pool, Desk(), rng=Backwards()) as place:
        await refused_peers(place, 8)
        del pool.asked[:]
        pool.release(hold)
        await place.until(requests=8)
        assert pool.asked[-8:] == [8, 7, 6, 5, 4, 3, 2, 1]


@pytest.mark.parametrize(("held", "shuffled"), [(890, False), (901, True)])
async def test_5_random_order_when_memory_is_tight(held: int, shuffled: bool) -> None:
    pool = ModelPool(1000)
    pool._fits = lambda size: True  # type: ignore[method-assign]
    apart = pool.try_allocate(held)
    async with Place(pool, Desk(), rng=Backwards(), first_bytes=0) as place:
        connections = []
        for _ in range(5):
            await place.peer()
            new = [one for one in place.connections() if one not in connections]
            connections += new
        del pool.asked[:]
        for size, connection in enumerate(connections, 1):
            # As the loop does for sockets that are readable in the same turn.
            connection.get_buffer(-1)[:] = size.to_bytes(4, "big")
            connection.buffer_updated(4)
        await until(lambda: len(pool.asked) == 5, "all were tried")
        assert pool.asked == ([5, 4, 3, 2, 1] if shuffled else [1, 2, 3, 4, 5])
    pool.release(apart)


async def test_5_order_of_arrival_when_there_is_memory() -> None:
    pool = ModelPool(1000)
    desk = Desk(closed=True)
    async with Place(pool, desk, max_requests=1, rng=Backwards()) as place:
        first = await place.peer()
        await first.send(framed(b"first"))
        await place.until(requests=1)
        await refused_peers(place, 6)
        assert place.stats("refusals") == 0
        desk.open()
        await place.until(requests=7)
        assert pool.asked == [5, 1, 2, 3, 4, 5, 6]


async def test_5_who_comes_later_does_not_overtake() -> None:
    pool = ModelPool(1000)
    desk = Desk(closed=True)
    async with Place(pool, desk, max_requests=1) as place:
        first = await place.peer()
        await first.send(framed(b"first"))
        await place.until(requests=1)
        (waiting,) = await refused_peers(place, 1)
        late = await place.peer()
        (connection,) = [
            one for one in place.connections() if one._state.value == "prefix" and not one._busy
        ]
        place.intake._gate._max_requests = 2  # a slot is free, and nobody was told
        connection.get_buffer(-1)[:] = (9).to_bytes(4, "big")
        connection.buffer_updated(4)
        place.intake._gate._max_requests = 1
        await ripple()
        assert pool.asked == [5]
        await late.send(b"x" * 9)
        desk.open()
        assert await waiting.answer() == b"x"
        assert await late.answer() == b"x" * 9
        assert pool.asked == [5, 1, 9]


async def test_5_nobody_starves(rng_seed: int) -> None:
    pool = ModelPool(10)
    served = [0] * 8
    enough = asyncio.Event()

    async def use(number: int, peer: Peer) -> None:
        while not enough.is_set():
            await peer.ask(bytes([number]) * 10)
            served[number] += 1

    async with Place(pool, Desk(), rng=random.Random(rng_seed)) as place:
        users = [use(number, await place.peer()) for number in range(8)]
        tasks = [asyncio.create_task(user) for user in users]
        await until(lambda: min(served) >= 20, "each was served twenty times")
        enough.set()
        await asyncio.gather(*tasks)
        assert place.stats("refusals") > 0
