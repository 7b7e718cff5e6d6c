"""Intake: peers that send or take too slowly, say nothing, or are too many."""

import asyncio
import contextlib
import gc as garbage
import logging
import os
from typing import Any

import pytest

from intake_peers import BOTH_LOOPS, SLOW, Desk, Peer, Place, framed, ripple, until
from intake_tls_peers import PLAIN_AND_TLS, TlsPlace
from model_pool import ModelPool
from wheeld_client.intake import gate
from wheeld_client.intake.connection import Connection
from wheeld_client.intake.gate import PATIENCE, Pace
from wheeld_client.intake.request import Request
from wheeld_client.intake.server import FIRST_BYTES

pytestmark = BOTH_LOOPS

BOTH = pytest.mark.parametrize("strict", [False, True], ids=["lenient", "strict"])
LARGE = 1 << 20


def tick(place: Place, times: int = 1) -> None:
    for _ in range(times):
        place.intake._pace._tick()


@pytest.fixture(autouse=True)
def _ticks_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Pace, "_arm", lambda pace: None)


# -- memory is taken late -----------------------------------------------------------------------


@BOTH
@PLAIN_AND_TLS
@pytest.mark.parametrize("sent", [0, 1, FIRST_BYTES - 1])
async def test_what_is_announced_costs_nothing(strict: bool, sent: int, kind: type[Place]) -> None:
    pool = ModelPool(LARGE, strict=strict)
    async with kind(pool, Desk(), max_requests=1, first_bytes=FIRST_BYTES) as place:
        peers = [await place.peer() for _ in range(10)]
        for peer in peers:
            await peer.send(framed(bytes(LARGE))[: 4 + sent])
        await until(lambda: all(one._size for one in place.connections()), "announced")
        await ripple()
        assert (pool.asked, place.stats("in_flight"), place.stats("muted")) == ([], 0, 0)
        assert await (await place.peer()).ask(b"text") == b"text"
        for peer in peers[:3]:
            await peer.send(framed(bytes(LARGE))[4 + sent :])
            assert await peer.answer() == bytes(LARGE)


async def test_what_is_announced_costs_no_loop_turns() -> None:
    pool = ModelPool(LARGE)
    async with Place(pool, Desk(), first_bytes=FIRST_BYTES) as place:
        peer = await place.peer()
        (connection,) = place.connections()
        await peer.send(framed(bytes(LARGE))[:100])
        await until(lambda: place.intake._peers._watched, "watched")
        await ripple()
        looks: list[int] = []
        connection._peer_event, event = looks.append, connection._peer_event
        await ripple()
        assert looks == []
        await peer.send(b"x")
        await until(lambda: looks, "heard")
        await ripple()
        assert len(looks) == 1
        connection._peer_event = event
        connection.mute()
        connection.unmute()
        await peer.send(framed(bytes(LARGE))[101:])
        assert len(await peer.answer()) == LARGE


async def test_small_requests_come_as_a_whole() -> None:
    pool = ModelPool(1000)
    async with Place(pool, Desk(), first_bytes=FIRST_BYTES) as place:
        peer, torso = await place.peer(), await place.peer()
        await peer.send(framed(b"y" * 100)[:103])
        await torso.send(framed(b"y" * 100)[:103])
        await until(lambda: all(one._size for one in place.connections()), "announced")
        await ripple()
        torso.finish()
        assert await torso.is_closed()
        assert pool.asked == []
        await peer.send(b"y")
        assert await peer.answer() == b"y" * 100


# -- who does not get on ------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("wanted", ["here", "elsewhere", "a slot"])
async def test_who_stands_still_gives_way(
    strict: bool, wanted: str, caplog: pytest.LogCaptureFixture
) -> None:
    pool = ModelPool(LARGE, strict=strict)
    most = 1 if wanted == "a slot" else 500
    async with Place(pool, Desk(), max_requests=most, **SLOW) as place:
        still = await place.peer()
        size = LARGE // 2 if wanted == "a slot" else LARGE
        await still.send(framed(bytes(size))[: size // 2])
        (connection,) = place.connections()
        await until(lambda: connection._have == size // 2 - 4, "half of it")
        tick(place, 10)
        assert place.stats("connections") == 1, "nobody wants it"
        if wanted == "elsewhere":
            pool.wanted_elsewhere = True
            tick(place)
        else:
            other = await place.peer()
            await other.send(framed(b"text"))
            await place.until(muted=1)
            tick(place)
            assert await other.answer() == b"text"
        await place.until(slow_closed=1, bytes=0, in_flight=0)
        assert await still.is_closed()
    assert ["too slow" in record.message for record in caplog.records] == [True]


async def test_who_gets_on_is_not_ended() -> None:
    pool = ModelPool(LARGE)
    async with Place(pool, Desk(), **{**SLOW, "read_timeout": 10.0}) as place:
        peer, other = await place.peer(), await place.peer()
        text = framed(bytes(LARGE))
        step = len(text) // 10
        await peer.send(text[:step])
        await place.until(in_flight=1)
        await other.send(framed(b"text"))
        await place.until(muted=1)
        for sent in range(step, len(text), step):
            have = max(one._have for one in place.connections())
            tick(place)
            await peer.send(text[sent : sent + step])
            await until(
                lambda have=have: max(one._have for one in place.connections()) != have, "more"
            )
        assert len(await peer.answer()) == LARGE
        assert await other.answer() == b"text"
        assert place.stats("slow_closed") == 0


async def test_who_gets_on_too_slowly_is_ended() -> None:
    pool = ModelPool(LARGE)
    async with Place(pool, Desk(), **{**SLOW, "read_timeout": 10.0}) as place:
        peer, other = await place.peer(), await place.peer()
        await peer.send(framed(bytes(LARGE))[:100])
        await place.until(in_flight=1)
        (connection,) = [one for one in place.connections() if one._buffer is not None]
        await until(lambda: connection._have == 96, "begun")
        await other.send(framed(b"text"))
        await place.until(muted=1)
        tick(place)
        await peer.send(b"x")
        await until(lambda: connection._have == 97, "another byte")
        tick(place)
        assert await other.answer() == b"text"
        await place.until(slow_closed=1)


# -- answers ------------------------------------------------------------------------------------


async def test_answers_that_nobody_takes() -> None:
    pool = ModelPool(1000)

    async def handler(request: Request) -> bytes:
        return bytes(16 << 20) if bytes(request.data) == b"much" else b"little"

    async with Place(pool, handler, max_unsent=20 << 20, **SLOW) as place:
        greedy = [await place.peer() for _ in range(2)]
        for number, peer in enumerate(greedy, 1):
            await peer.send(framed(b"much"))
            await place.until(unsent=number * ((16 << 20) + 4))
        other = await place.peer()
        await other.send(framed(b"text"))
        await place.until(muted=1)
        await ripple()
        assert place.stats("requests") == 2
        tick(place, PATIENCE + 1)
        assert await other.answer() == b"little"
        await place.until(slow_closed=2, unsent=0, connections=1)


async def test_a_slow_reader_is_ended_after_a_time() -> None:
    pool = ModelPool(1000)

    async def handler(request: Request) -> bytes:
        return bytes(16 << 20)

    async with Place(pool, handler, **{**SLOW, "idle_timeout": None}) as place:
        peer = await place.peer()
        await peer.send(framed(b"much"))
        await place.until(unsent=(16 << 20) + 4)
        tick(place, 10)
        place.let_pass(900)
        await ripple()
        assert place.stats("connections") == 1
        place.let_pass(200)
        await place.until(connections=0, slow_closed=1, unsent=0)


# -- too many -----------------------------------------------------------------------------------


async def knock(place: Place, count: int) -> list[Peer]:
    return [await place.peer() for _ in range(count)]


async def test_many_that_say_nothing(caplog: pytest.LogCaptureFixture) -> None:
    pool = ModelPool(1000)
    async with Place(pool, Desk(), max_connections=10, **SLOW) as place:
        served = await knock(place, 3)
        for peer in served:
            assert await peer.ask(b"text") == b"text"
        silent = await knock(place, 50)
        await place.until(connections=10, turned_away=43)
        for peer in silent[:43]:
            assert await peer.is_closed()
        for peer in served + silent[43:]:
            assert await peer.ask(b"text") == b"text"
        late = await place.peer()
        assert await late.is_closed()
        await place.until(turned_away=44, connections=10)
        served[0].close()
        await place.until(connections=9)
        assert await (await place.peer()).ask(b"text") == b"text"
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 2


async def test_connections_of_one_address() -> None:
    pool = ModelPool(1000)
    async with Place(pool, Desk(), max_connections_per_peer=3) as place:
        peers = await knock(place, 3)
        assert await (await place.peer()).is_closed()
        await place.until(connections=3, turned_away=1)
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", place.port, local_addr=("127.0.0.2", 0)
        )
        writer.write(framed(b"other"))
        assert await reader.readexactly(9) == framed(b"other")
        writer.close()
        await writer.wait_closed()
        peers[0].close()
        await place.until(connections=2)
        assert await (await place.peer()).ask(b"text") == b"text"


async def served(place: Place, peer: Peer) -> None:
    asking = asyncio.create_task(peer.ask(b"text"))
    while not asking.done():
        tick(place)
        await asyncio.sleep(0.001)
    assert asking.result() == b"text"


def descriptors(place: Place) -> int:
    theirs = sum(peer.sock.fileno() >= 0 for peer in place.peers)
    return len(os.listdir("/proc/self/fd")) - theirs


FLOOD, ROOM = 150, 20
HALF = framed(bytes(100))[:54]
FLOODS = [
    pytest.param(Place, b"", None, id="silent"),
    pytest.param(Place, b"\0\0", None, id="half a length"),
    pytest.param(Place, HALF[:4], None, id="announced"),
    pytest.param(Place, HALF, None, id="half a body"),
    pytest.param(Place, b"", "close", id="closed at once"),
    pytest.param(Place, HALF, "close", id="closed in a body"),
    pytest.param(Place, HALF, "vanish", id="reset in a body"),
    pytest.param(Place, b"\xff" * 4, "finish", id="bad length"),
    pytest.param(TlsPlace, b"", None, id="silent TLS"),
    pytest.param(TlsPlace, b"\x16\x03\x01", None, id="half a handshake"),
    pytest.param(TlsPlace, bytes(100), None, id="not TLS"),
    pytest.param(TlsPlace, b"\x16\x03\x01", "vanish", id="reset in a handshake"),
]


@pytest.mark.parametrize(("kind", "sent", "end"), FLOODS)
async def test_a_flood(kind: type[Place], sent: bytes, end: str | None) -> None:
    pool = ModelPool(1000)
    async with kind(pool, Desk(), max_connections=ROOM, **SLOW) as place:
        intake = place.intake
        connect = place.raw if isinstance(place, TlsPlace) else place.peer
        good = await place.peer()
        await served(place, good)
        bound = descriptors(place) + ROOM
        for number in range(FLOOD):
            peer = await connect()
            with contextlib.suppress(ConnectionError):
                await peer.send(sent)
            if end is not None:
                with contextlib.suppress(OSError):
                    getattr(peer, end)()
            await until(lambda: place.stats("connections") <= ROOM, "bounded connections")
            if number % 50 == 49:
                await served(place, good)
                late = await place.peer()
                await served(place, late)
                late.close()
        await until(lambda: descriptors(place) <= bound, "bounded descriptors")
        assert pool.most_used <= pool.size - 1 + 100
        kept = [intake._limits._silent, intake._gate.waiting, intake._pace._marks]
        kept += [intake._peers._watched, *(timeout._since for timeout in intake._timeouts)]
        assert all(len(one) <= ROOM for one in kept), kept
        garbage.collect()
        alive = [one for one in garbage.get_objects() if isinstance(one, Connection)]
        assert len(alive) <= 2 * ROOM


def test_descriptors_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    limit = gate.resource.getrlimit
    monkeypatch.setattr(gate.resource, "getrlimit", lambda which: (1024, limit(which)[1]))
    assert gate.most_connections() == 896


# -- handlers that do not end -------------------------------------------------------------------


@pytest.mark.parametrize("lost", [False, True])
async def test_a_handler_that_ignores_its_cancellation(
    lost: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pool = ModelPool(1000)
    monkeypatch.setattr("wheeld_client.intake.server.LAST_CALL", 0.01)
    go, tasks = asyncio.Event(), []

    async def handler(request: Request) -> Any:
        tasks.append(asyncio.current_task())
        while not go.is_set():
            try:
                await go.wait()
            except asyncio.CancelledError:
                continue
        return b"too late"

    async with Place(pool, handler) as place:
        peer = await place.peer()
        await peer.send(framed(b"text"))
        await place.until(requests=1)
        await ripple()
        if lost:
            peer.vanish()
            await place.until(connections=0)
        await place.intake.close(0)
        assert (pool.used, place.stats("in_flight"), place.stats("errors")) == (0, 0, 1)
        go.set()
        await asyncio.wait(tasks)
    assert ["cancellation" in record.message for record in caplog.records] == [True]
