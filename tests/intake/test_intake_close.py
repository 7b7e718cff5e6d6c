"""Intake: closing one connection or all of them gives all memory back (KIP-72)."""

import asyncio
import socket

import pytest

from intake_peers import BOTH_LOOPS, STATES, Desk, Peer, Place, Stage, framed, ripple, until
from intake_tls_peers import PLAIN_AND_TLS
from model_pool import ModelPool
from wheeld_client.intake.request import Request

pytestmark = BOTH_LOOPS


@pytest.mark.parametrize("state", STATES)
async def test_6_connection_close(state: str) -> None:
    pool = ModelPool(1000)
    async with Stage(state, pool) as stage:
        stage.connection.close()
        await stage.gone()
        assert stage.connection.closed


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("grace", [0, 0.01])
async def test_6_close_in_each_state(state: str, grace: float) -> None:
    pool = ModelPool(1000)
    async with Stage(state, pool) as stage:
        await stage.place.intake.close(grace)
        await stage.gone()
        await stage.place.intake.close(grace)


async def test_6_graceful_close() -> None:
    pool = ModelPool(10)
    desk = Desk(closed=True)
    async with Place(pool, desk) as place:
        working, waiting = await place.peer(), await place.peer()
        await working.send(framed(b"w" * 10) + framed(b"next"))
        await place.until(requests=1)
        await waiting.send(framed(b"text"))
        await place.until(muted=1)
        closing = asyncio.create_task(place.intake.close(None))
        assert await waiting.is_closed()
        with pytest.raises(OSError, match=r"refused|reset"):
            socket.create_connection(("127.0.0.1", place.port))
        assert not closing.done()
        desk.open()
        assert await working.answer() == b"w" * 10
        assert await working.is_closed()
        await closing
        assert desk.got == [b"w" * 10]


@pytest.mark.parametrize("how", ["peer finishes", "intake closes"])
async def test_6_end_before_an_answer_that_takes_long(how: str) -> None:
    pool = ModelPool(1000)
    go = asyncio.Event()

    async def handler(request: Request) -> bytes:
        await go.wait()
        return bytes(16 << 20)

    async with Place(pool, handler, half_close=True) as place:
        peer = await place.peer()
        await peer.send(framed(b"text"))
        await place.until(requests=1)
        closing = None
        if how == "peer finishes":
            peer.finish()
            (connection,) = place.connections()
            await until(lambda: connection._at_eof, "the end was read")
        else:
            closing = asyncio.create_task(place.intake.close(None))
            await ripple()
        go.set()
        assert len(await peer.answer()) == 16 << 20
        assert await peer.is_closed()
        if closing is not None:
            await closing


@pytest.mark.parametrize("how", ["peer finishes", "intake closes"])
async def test_6_end_after_an_answer_that_takes_long(how: str) -> None:
    pool = ModelPool(1000)
    async with Stage("answer", pool) as stage:
        if how == "peer finishes":
            stage.peer.finish()
            await until(lambda: stage.connection._at_eof, "the end was read")
            closing = None
        else:
            closing = asyncio.create_task(stage.place.intake.close(None))
        await ripple()
        assert not stage.connection.closed
        assert len(await stage.peer.answer()) == 16 << 20
        assert await stage.peer.is_closed()
        await stage.gone()
        if closing is not None:
            await closing


async def test_6_close_that_is_cancelled() -> None:
    pool = ModelPool(10)
    desk = Desk(closed=True)
    async with Place(pool, desk) as place:
        peer = await place.peer()
        await peer.send(framed(b"w" * 10))
        await place.until(requests=1)
        closing = asyncio.create_task(place.intake.close(None))
        await ripple()
        assert desk.now == 1
        closing.cancel()
        await asyncio.wait([closing])
        assert closing.cancelled()
        await until(lambda: desk.cancelled == 1, "cancelled")
        await place.intake.close()


async def test_6_handler_that_takes_its_time_to_be_cancelled() -> None:
    pool = ModelPool(10)
    cleaned: list[bool] = []

    async def handler(request: Request) -> bytes:
        try:
            await asyncio.Event().wait()
        finally:
            await ripple()
            cleaned.append(True)
        return b""

    async with Place(pool, handler) as place:
        peer = await place.peer()
        await peer.send(framed(b"w"))
        await place.until(requests=1)
        await ripple()
        await place.intake.close(0)
        assert cleaned == [True]
        assert pool.used == 0


async def test_6_handler_cancelled_before_it_began() -> None:
    pool = ModelPool(10)
    desk = Desk()
    async with Place(pool, desk, first_bytes=0) as place:
        await place.peer()
        (connection,) = place.connections()
        connection.get_buffer(-1)[:] = (4).to_bytes(4, "big")
        connection.buffer_updated(4)
        connection.get_buffer(-1)[:] = b"text"
        connection.buffer_updated(4)
        connection.connection_lost(None)
        await place.until(requests=1, in_flight=0, bytes=0)
        assert desk.got == []
        connection._transport.abort()


@PLAIN_AND_TLS
@pytest.mark.parametrize("how", ["close", "close at once", "bad length", "handler fails"])
async def test_nothing_that_was_answered_is_cut_off(how: str, kind: type[Place]) -> None:
    pool = ModelPool(1000)
    size = 1 << 20

    async def handler(request: Request) -> bytes:
        if bytes(request.data) == b"fails":
            raise ValueError
        if how in ("close", "close at once"):
            request.connection.mute()
        return bytes(size)

    behind = {"bad length": bytes(4), "handler fails": framed(b"fails")}.get(how, b"")
    async with kind(pool, handler) as place:
        peer = await place.peer()
        await peer.send(framed(b"text") + behind + framed(b"more") * 1000)
        closing = None
        if behind:
            await place.until(**{"bad_lengths" if behind == bytes(4) else "errors": 1})
        else:
            await place.until(requests=1, in_flight=0, unsent=0)
            grace = 0 if how == "close at once" else None
            closing = asyncio.create_task(place.intake.close(grace))
            await ripple()
        assert len(await peer.answer()) == size
        assert await peer.read(1) == b"", "the end, no reset"
        if closing is not None:
            await closing
        await place.until(connections=0)


async def test_a_peer_that_sends_on_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    pool = ModelPool(1000)
    monkeypatch.setattr("wheeld_client.intake.connection.LINGER", 0.05)

    async def handler(request: Request) -> bytes:
        return bytes(1 << 20)

    async def sends_on(peer: Peer) -> None:
        while True:  # no number of bytes is enough: on some machine they pass in that time
            await peer.send(bytes(1 << 20))

    async with Place(pool, handler) as place:
        peer = await place.peer()
        await peer.send(framed(b"text") + bytes(4))
        await place.until(bad_lengths=1)
        sending = asyncio.create_task(sends_on(peer))
        await place.until(connections=0)
        await asyncio.wait([sending])
        assert isinstance(sending.exception(), ConnectionError)
