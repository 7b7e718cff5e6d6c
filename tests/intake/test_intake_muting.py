"""Intake: memory that returns never undoes an explicit mute (KIP-72)."""

from typing import Any

import pytest

from intake_peers import BOTH_LOOPS, Desk, Place, framed, refused_peers, ripple, until
from intake_tls_peers import PLAIN_AND_TLS
from model_pool import ModelPool
from wheeld_client.intake.request import Request

pytestmark = BOTH_LOOPS

BOTH = pytest.mark.parametrize("strict", [False, True], ids=["lenient", "strict"])


@BOTH
async def test_5_one_request_in_flight(strict: bool) -> None:
    pool = ModelPool(100, strict=strict)
    desk = Desk(closed=True)
    async with Place(pool, desk) as place:
        peer = await place.peer()
        await peer.send(framed(b"first") + framed(b"second"))
        await place.until(requests=1)
        hold = pool.try_allocate(95)
        (other,) = await refused_peers(place, 1)
        pool.release(hold)
        await place.until(requests=2, muted=0)
        await ripple()
        assert desk.got == [b"first", b"x"]
        assert pool.asked.count(6) == 0, "asked for memory with a request in flight"
        desk.open()
        assert await peer.answer() == b"first"
        assert await peer.answer() == b"second"
        assert await other.answer() == b"x"


@pytest.mark.parametrize("when", ["before the prefix", "while refused"])
async def test_5_mute_is_not_undone_by_memory(when: str) -> None:
    pool = ModelPool(100)
    async with Place(pool, Desk()) as place:
        peer = await place.peer()
        (connection,) = place.connections()
        hold = pool.try_allocate(100)
        if when == "while refused":
            await peer.send(framed(b"text"))
            await place.until(muted=1)
        connection.mute()
        connection.mute()
        if when == "before the prefix":
            await peer.send(framed(b"text"))
        await place.until(muted=0, muted_explicitly=1)
        assert connection.muted
        assert not connection._transport.is_reading()
        (other,) = await refused_peers(place, 1)
        pool.release(hold)
        assert await other.answer() == b"x"
        await ripple()
        assert place.stats("requests") == 1
        assert pool.used == 0
        connection.unmute()
        connection.unmute()
        assert await peer.answer() == b"text"
        await place.until(muted_explicitly=0)


async def test_5_unmute_does_not_undo_a_refusal() -> None:
    pool = ModelPool(100)
    async with Place(pool, Desk()) as place:
        peer = await place.peer()
        (connection,) = place.connections()
        connection.mute()
        hold = pool.try_allocate(100)
        await peer.send(framed(b"text"))
        connection.unmute()
        await place.until(muted=1)
        assert not connection._transport.is_reading()
        await ripple()
        assert place.stats("requests") == 0
        pool.release(hold)
        assert await peer.answer() == b"text"


@PLAIN_AND_TLS
async def test_5_never_mutes_a_half_read_request(kind: type[Place]) -> None:
    pool = ModelPool(100)
    async with kind(pool, Desk()) as place:
        peer = await place.peer()
        (connection,) = place.connections()
        text = framed(b"text")
        await peer.send(text[:6])
        await until(lambda: connection._have == 2 and pool.used == 4, "half read")
        connection.mute()
        assert connection._transport.is_reading()
        await peer.send(text[6:] + text)
        assert await peer.answer() == b"text"
        await until(lambda: not connection._transport.is_reading(), "muted")
        await ripple()
        assert place.stats("requests") == 1
        connection.unmute()
        assert await peer.answer() == b"text"


async def test_5_throttling_in_a_handler() -> None:
    pool = ModelPool(100)
    muted: list[Any] = []

    async def handler(request: Request) -> bytes:
        request.connection.mute()
        muted.append(request.connection)
        return bytes(request.data)

    async with Place(pool, handler) as place:
        peer = await place.peer()
        await peer.send(framed(b"one") + framed(b"two"))
        assert await peer.answer() == b"one"
        await ripple()
        assert place.stats("requests") == 1
        muted[0].unmute()
        assert await peer.answer() == b"two"
        peer.close()
        await place.until(connections=0)
        muted[0].mute()
        muted[0].unmute()
        assert muted[0].closed


@PLAIN_AND_TLS
async def test_an_answer_is_taken_before_the_next_request(kind: type[Place]) -> None:
    pool = ModelPool(100)

    async def handler(request: Request) -> bytes:
        return bytes(16 << 20)

    async with kind(pool, handler) as place:
        peer = await place.peer()
        (connection,) = place.connections()
        await peer.send(framed(b"one") + framed(b"two"))
        await until(lambda: connection._draining, "the answer is under way")
        await ripple()
        assert place.stats("requests") == 1
        assert pool.used == 0
        assert connection._transport.get_write_buffer_limits() == (0, 0), "not taken entirely"
        if connection.tls:
            assert connection._transport.get_write_buffer_size() < 1 << 17
        assert len(await peer.answer()) == 16 << 20
        assert len(await peer.answer()) == 16 << 20
        await place.until(unsent=0)
        assert connection._unsent.obj == b"", "the answer is kept"
