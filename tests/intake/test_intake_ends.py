"""Intake: peers that leave give their memory back (KIP-72), whenever they leave."""

import socket

import pytest

from intake_peers import BOTH_LOOPS, STATES, Desk, Peer, Place, Stage, framed, ripple, until
from model_pool import ModelPool

pytestmark = BOTH_LOOPS

# -- 6: a connection that closes gives back -------------------------------------------------------


@pytest.mark.parametrize("state", STATES)
async def test_6_peer_that_resets(state: str) -> None:
    pool = ModelPool(1000)
    async with Stage(state, pool) as stage:
        stage.peer.vanish()
        await stage.gone()


@pytest.mark.parametrize("state", ["silent", "prefix", "body"])
async def test_6_peer_that_leaves_before_its_request_is_complete(state: str) -> None:
    pool = ModelPool(1000)
    async with Stage(state, pool) as stage:
        stage.peer.finish()
        assert await stage.peer.is_closed()
        await stage.gone()
        assert stage.place.stats("peers_lost") == (state != "silent")


@pytest.mark.parametrize("complete", [True, False])
@pytest.mark.parametrize("state", ["refused", "muted"])
async def test_6_half_closed_while_muted(state: str, complete: bool) -> None:
    pool = ModelPool(1000)
    desk = Desk()
    async with Place(pool, desk, half_close=True) as place:
        peer = await place.peer()
        (connection,) = place.connections()
        hold = pool.try_allocate(1000) if state == "refused" else None
        if state == "muted":
            connection.mute()
            await peer.send(framed(b"text") if complete else b"\0")
        else:
            await peer.send(framed(b"text")[: None if complete else 7])
            await place.until(muted=1)
        peer.finish()
        if not complete:
            assert await peer.is_closed()
            await place.until(connections=0, peers_lost=1)
            assert desk.got == []
            assert pool.used == (1000 if hold else 0)
        await until(lambda: connection._peer_finished, "noticed")
        await ripple()
        assert place.stats("connections") == complete
        if hold is not None:
            pool.release(hold)
        connection.unmute()
        if complete:
            assert await peer.answer() == b"text"
            assert await peer.is_closed()


@pytest.mark.parametrize("then", ["answered", "reset"])
async def test_6_half_closed_while_muted_and_then(then: str) -> None:
    pool = ModelPool(1000)
    async with Stage("refused", pool, half_close=True) as stage:
        stage.peer.finish()
        await until(lambda: stage.connection._peer_finished, "noticed")
        looks: list[object] = []
        stage.connection._peer_event, event = looks.append, stage.connection._peer_event
        await ripple()
        assert looks == []
        stage.connection._peer_event = event
        if then == "reset":
            stage.peer.vanish()
            await stage.gone()


@pytest.mark.parametrize("bodies", [[b"one"], [b"one", b"two"]], ids=["one", "two"])
async def test_6_half_closed_in_the_next_request(bodies: list[bytes]) -> None:
    pool = ModelPool(1000)
    desk = Desk(closed=True)
    async with Place(pool, desk, half_close=True) as place:
        peer = await place.peer()
        await peer.send(b"".join(map(framed, bodies)) + framed(b"torso")[:6])
        peer.finish()
        await place.until(requests=1)
        (connection,) = place.connections()
        await until(lambda: connection._peer_finished, "noticed")
        await ripple()
        assert desk.now == 1
        desk.open()
        assert [await peer.answer() for _ in bodies] == bodies
        assert await peer.is_closed()
        await place.until(connections=0)
        assert desk.got == bodies
        assert pool.asked == [3] * len(bodies), "a torso gets no memory"


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_UNIX])
async def test_6_half_closed_while_handled(family: int) -> None:
    pool = ModelPool(1000)
    desk = Desk(closed=True)
    async with Place(pool, desk, half_close=True) as place:
        if family == socket.AF_UNIX:
            ours, theirs = socket.socketpair()
            await place.intake.accept(theirs)
            peer = Peer(ours)
            place.peers.append(peer)
        else:
            peer = await place.peer()
        await peer.send(framed(b"text"))
        peer.finish()
        await place.until(requests=1)
        (connection,) = place.connections()
        await until(lambda: connection._at_eof, "the end was read")
        await ripple()
        assert desk.now == 1
        desk.open()
        assert await peer.answer() == b"text"
        assert await peer.is_closed()


async def test_6_half_closed_while_handled_and_then_lost() -> None:
    pool = ModelPool(1000)
    async with Stage("handler", pool, half_close=True) as stage:
        stage.peer.finish()
        await until(lambda: stage.connection._at_eof, "the end was read")
        assert stage.desk.now == 1
        stage.peer.vanish()
        await stage.gone()


async def test_6_unix_peer_that_left_its_request() -> None:
    pool = ModelPool(1000)
    desk = Desk()
    hold = pool.try_allocate(1000)
    async with Place(pool, desk, half_close=True) as place:
        ours, theirs = socket.socketpair()
        connection = await place.intake.accept(theirs)
        await Peer(ours).send(framed(b"text"))
        await place.until(muted=1)
        ours.close()
        await until(lambda: connection._peer_finished, "noticed")
        assert not place.intake._peers._watched, "it would be reported again and again"
        pool.release(hold)
        await place.until(connections=0, requests=1)
        assert desk.got == [b"text"]
