"""Intake: errors, idleness and the two bounds, on requests and on bytes (KIP-72)."""

import asyncio
from typing import Any

import numpy as np
import pytest

from intake_peers import BOTH_LOOPS, SLOW, STATES, Desk, Place, Stage, framed, ripple, until
from model_pool import ModelPool
from wheeld_client import ClientClosed, DaemonNotRunning
from wheeld_client.intake.request import Request

pytestmark = BOTH_LOOPS

# -- 6: errors give back --------------------------------------------------------------------------


@pytest.mark.parametrize("error", [ClientClosed("closed"), DaemonNotRunning("gone")])
async def test_6_pool_that_fails(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    pool = ModelPool(1000)
    desk = Desk(closed=True)
    async with Place(pool, desk) as place:
        working = await place.peer()
        await working.send(framed(b"w" * 1000))
        await place.until(requests=1)
        waiting = [await place.peer() for _ in range(3)]
        for number, peer in enumerate(waiting, 1):
            await peer.send(framed(b"text"))
            await place.until(muted=number)
        pool.fail(error)
        for peer in waiting:
            assert await peer.is_closed()
        for _ in range(3):
            late = await place.peer()
            await late.send(framed(b"text"))
            assert await late.is_closed()
        desk.open()
        assert await working.answer() == b"w" * 1000
        await place.until(connections=1, bytes=0, in_flight=0, muted=0)
        assert place.stats("pool_errors") > 1
        pool.failure = None
        assert await working.ask(b"again") == b"again"
    assert [repr(error) in record.message for record in caplog.records] == [True]


@pytest.mark.parametrize("keep", [lambda data: data[1:], np.asarray], ids=["part", "array"])
async def test_6_memory_that_a_handler_keeps(keep: Any) -> None:
    pool = ModelPool(1000)
    kept: list[Any] = []

    async def handler(request: Request) -> bytes:
        kept.append(keep(request.data))
        return b"done"

    async with Place(pool, handler) as place:
        peer = await place.peer()
        assert await peer.ask(b"text") == b"done"
        await place.until(bytes=0, in_flight=0, errors=0)
        assert pool.used == 0
        assert pool.exported == 1
        assert bytes(kept[0]).endswith(b"ext")


# -- 6: idle expiry still works while muted --------------------------------------------------------


@pytest.mark.parametrize("state", STATES)
async def test_6_idle(state: str) -> None:
    pool = ModelPool(1000)
    async with Stage(state, pool) as stage:
        stage.place.let_pass(900)
        await ripple()
        assert stage.place.stats("connections") == 1
        stage.place.let_pass(200)
        if state == "handler":
            await ripple()
            assert stage.place.stats("connections") == 1
            stage.desk.open()
            assert await stage.peer.answer() == b"y" * 100
            stage.desk.cancelled = 1
            stage.place.let_pass(1100)
        await stage.gone()
        slow = state in ("prefix", "body", "answer")
        assert stage.place.stats("slow_closed" if slow else "idle_closed") == 1


async def test_6_idle_one_after_the_other() -> None:
    pool = ModelPool(100)
    async with Place(pool, Desk(), idle_timeout=0.05) as place:
        for _ in range(5):
            await place.peer()
            await asyncio.sleep(0.01)
        await place.until(connections=0, idle_closed=5)


@pytest.mark.parametrize("sent", [0, 5, 104])
async def test_6_idle_while_muted(sent: int) -> None:
    pool = ModelPool(1000)
    hold = pool.try_allocate(1000)
    async with Place(pool, Desk(), **SLOW) as place:
        peer = await place.peer()
        (connection,) = place.connections()
        await peer.send(framed(b"y" * 100)[:sent])
        if sent:
            await place.until(muted=1)
        place.let_pass(600)
        connection.mute()
        place.let_pass(300)
        await ripple()
        assert place.stats("connections") == 1
        place.let_pass(200)
        await place.until(connections=0, idle_closed=1, muted_explicitly=0)
        pool.release(hold)


@pytest.mark.parametrize("begun", [1, 9], ids=["prefix", "body"])
async def test_6_a_byte_now_and_then_is_not_enough(begun: int) -> None:
    pool = ModelPool(1000)
    async with Place(pool, Desk(), **SLOW, prefix_bytes=8) as place:
        peer = await place.peer()
        (connection,) = place.connections()
        text = framed(b"z" * 1000, 8)
        await peer.send(text[:begun])
        await until(lambda: connection._have == 1, "begun")
        for more in (1, 2):
            place.let_pass(400)
            await peer.send(text[begun + more : begun + more + 1])
            await until(lambda more=more: connection._have == 1 + more, "another byte")
        assert place.stats("connections") == 1
        place.let_pass(400)
        await place.until(connections=0, bytes=0, slow_closed=1)


async def test_6_who_is_busy_is_not_idle() -> None:
    pool = ModelPool(100)
    hold = pool.try_allocate(100)
    async with Place(pool, Desk(), **SLOW) as place:
        silent = await place.peer()
        place.let_pass(600)
        peer = await place.peer()
        place.let_pass(300)
        await peer.send(framed(b"text")[:1])
        await until(lambda: any(one._have == 1 for one in place.connections()), "begun")
        place.let_pass(200)
        assert await silent.is_closed()
        (connection,) = place.connections()
        place.let_pass(700)
        await peer.send(framed(b"text")[1:6])
        await place.until(muted=1)
        pool.release(hold)
        await place.until(bytes=4)
        place.let_pass(900)
        await peer.send(b"xt")
        assert await peer.answer() == b"text"
        place.let_pass(900)
        await ripple()
        assert not connection.closed
        place.let_pass(200)
        assert await peer.is_closed()
        await place.until(connections=0, idle_closed=2)


# -- 6: two bounds hold together ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "max_requests", "at_work"), [(1000, 3, 3), (25, 10, 3), (1000, 500, 8)]
)
async def test_6_two_bounds(size: int, max_requests: int, at_work: int) -> None:
    pool = ModelPool(size)
    desk = Desk(closed=True)
    async with Place(pool, desk, max_requests=max_requests) as place:
        half = await place.peer()
        await half.send(framed(b"h" * 10)[:7])
        await place.until(in_flight=1)
        peers = [await place.peer() for _ in range(7)]
        for peer in peers:
            await peer.send(framed(b"w" * 10))
        await place.until(in_flight=at_work, muted=8 - at_work, requests=at_work - 1)
        await ripple()
        assert place.stats("in_flight") == at_work
        assert pool.used == 10 * at_work
        await half.send(framed(b"h" * 10)[7:])
        desk.open()
        assert await half.answer() == b"h" * 10
        for peer in peers:
            assert await peer.answer() == b"w" * 10
        assert desk.most <= at_work
        assert pool.most_used <= 10 * at_work


async def test_6_slot_without_memory_counts() -> None:
    pool = ModelPool(1000)
    go = asyncio.Event()

    async def handler(request: Request) -> bytes:
        request.release()
        await go.wait()
        return b"done"

    async with Place(pool, handler, max_requests=1, max_waiting=0) as place:
        one, two = await place.peer(), await place.peer()
        await one.send(framed(b"one"))
        await place.until(requests=1, bytes=0)
        await two.send(framed(b"two"))
        await place.until(muted=1)
        await ripple()
        assert place.stats("requests") == 1
        go.set()
        assert await one.answer() == await two.answer() == b"done"
