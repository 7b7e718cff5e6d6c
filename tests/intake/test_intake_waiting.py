"""Intake: requests that wait in their handlers, and peers that leave meanwhile."""

import asyncio

import pytest

from intake_peers import BOTH_LOOPS, Place, framed, ripple, run, until
from intake_tls_peers import TlsPlace
from model_pool import ModelPool
from wheeld_client.intake.request import Request

pytestmark = BOTH_LOOPS


class Polls:
    """A handler: "poll..." waits until told, "hold..." so, too, but keeps its memory."""

    def __init__(self) -> None:
        self.go = asyncio.Event()
        self.seen: list[bytes] = []
        self.cancelled: list[bytes] = []

    async def __call__(self, request: Request) -> bytes:
        body = bytes(request.data)
        self.seen.append(body)
        try:
            if body[:4] == b"poll":
                request.release()
                await self.go.wait()
            elif body[:4] == b"hold":
                await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled.append(body)
            raise
        return body


async def test_requests_that_wait_hold_up_no_other() -> None:
    pool = ModelPool(100)
    polls = Polls()
    async with Place(pool, polls, max_requests=2) as place:
        waiting = [await place.peer() for _ in range(20)]
        for peer in waiting:
            await peer.send(framed(b"poll"))
        await place.until(requests=20, waiting=20, in_flight=20, bytes=0, muted=0)
        other = await place.peer()
        assert await other.ask(b"produce") == b"produce"
        polls.go.set()
        for peer in waiting:
            assert await peer.answer() == b"poll"
        await place.until(waiting=0, in_flight=0)


async def test_the_bound_on_what_waits() -> None:
    pool = ModelPool(100)
    polls = Polls()
    async with Place(pool, polls, max_requests=2, max_waiting=3) as place:
        peers = [await place.peer() for _ in range(5)]
        for number, peer in enumerate(peers, 1):
            await peer.send(framed(b"poll"))
            await place.until(waiting=number)
        late = await place.peer()
        await late.send(framed(b"late"))
        await place.until(muted=1, requests=5)
        await ripple()
        assert place.stats("muted") == 1
        peers[0].close()
        assert await late.answer() == b"late"
        await place.until(waiting=4, in_flight=4)
        polls.go.set()


async def test_what_waits_and_what_works_are_counted_apart() -> None:
    pool = ModelPool(100)
    polls = Polls()
    async with Place(pool, polls, max_requests=2) as place:
        for kind in (b"poll", b"hold", b"poll", b"hold"):
            await (await place.peer()).send(framed(kind))
            await place.until(muted=0)
        await place.until(requests=4, waiting=2, in_flight=4, bytes=8)
        await (await place.peer()).send(framed(b"hold"))
        await place.until(muted=1)
        await ripple()
        assert place.stats("requests") == 4
        polls.go.set()
        await place.until(requests=5, waiting=0, in_flight=0, bytes=0)


@pytest.mark.parametrize("kind", [b"poll", b"hold"])
@pytest.mark.parametrize("how", ["close", "finish", "vanish"])
@pytest.mark.parametrize("behind", [b"", framed(b"poll")[:6], b"\0"], ids=["", "body", "prefix"])
def test_who_leaves_gives_everything_back(
    kind: bytes, how: str, behind: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    pool = ModelPool(100)

    async def body() -> None:
        polls = Polls()
        async with Place(pool, polls, max_requests=3, max_waiting=0) as place:
            peers = [await place.peer() for _ in range(3)]
            for peer in peers:
                await peer.send(framed(kind) + behind)
            await place.until(requests=3, in_flight=3)
            for peer in peers:
                getattr(peer, how)()
            await place.until(connections=0, in_flight=0, bytes=0, waiting=0, peers_lost=3)
            assert polls.cancelled == [kind] * 3
            assert place.stats("errors") == 0
            assert await (await place.peer()).ask(b"next") == b"next"

    run(body)
    assert not caplog.records


@pytest.mark.parametrize("count", [2, 50])
async def test_what_was_sent_before_the_end_is_handled(count: int) -> None:
    pool = ModelPool(100)
    done: list[int] = []

    async def handler(request: Request) -> None:
        done.append(int(bytes(request.data)))

    async with Place(pool, handler) as place:
        peer = await place.peer()
        (connection,) = place.connections()
        connection.mute()
        await peer.send(b"".join(framed(b"%d" % one) for one in range(1, count + 1)))
        await peer.send(framed(b"torso")[:-1])
        peer.close()
        await until(lambda: connection._peer_finished, "noticed")
        await ripple()
        connection.unmute()
        await place.until(connections=0, in_flight=0, bytes=0)
        assert done == list(range(1, count + 1))
        assert place.stats("errors") == 0


async def test_requests_behind_one_that_waits_when_its_peer_ends() -> None:
    pool = ModelPool(100)
    polls = Polls()
    async with Place(pool, polls) as place:
        peer = await place.peer()
        await peer.send(framed(b"poll 1") + framed(b"quick") + framed(b"hold 2"))
        await place.until(requests=1, waiting=1)
        peer.close()
        await place.until(connections=0, in_flight=0, bytes=0, waiting=0, errors=0)
        assert polls.seen == [b"poll 1", b"quick", b"hold 2"]
        assert polls.cancelled == [b"poll 1", b"hold 2"]


@pytest.mark.parametrize(
    ("kind", "how"), [(Place, "finish"), (TlsPlace, "finish"), (TlsPlace, "say_end")]
)
async def test_half_closed_peers_wait_for_answers_if_told_so(kind: type[Place], how: str) -> None:
    pool = ModelPool(100)
    polls = Polls()
    async with kind(pool, polls, half_close=True) as place:
        peer = await place.peer()
        await peer.send(framed(b"poll") + framed(b"next"))
        await place.until(waiting=1)
        if (ended := getattr(peer, how)()) is not None:
            await ended
        (connection,) = place.connections()
        if kind is Place:  # under TLS it is read first
            await until(lambda: connection._peer_finished, "noticed")
        await ripple()
        assert polls.cancelled == []
        polls.go.set()
        assert await peer.answer() == b"poll"
        assert await peer.answer() == b"next"
        assert await peer.is_closed()
