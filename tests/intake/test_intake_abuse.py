"""Intake: the helper thread, and crowds that behave badly or want more than there is."""

import asyncio
import contextlib
import logging
import random
import socket
import sys
import threading

import pytest

from intake_peers import BOTH_LOOPS, LONG, Desk, Peer, Place, check, framed, ripple, until
from intake_tls_peers import TlsPlace
from model_pool import ModelPool
from wheeld_client.intake.request import Request
from wheeld_client.intake.server import Intake

pytestmark = BOTH_LOOPS

# -- the helper thread ----------------------------------------------------------------------------


async def test_helper_is_started_when_needed() -> None:
    pool = ModelPool(10)

    def helpers() -> list[threading.Thread]:
        return [one for one in threading.enumerate() if one.name == "wheeld-intake"]

    async with Place(pool, Desk()) as place:
        peer = await place.peer()
        assert await peer.ask(b"text") == b"text"
        assert helpers() == []
        for number in range(1, 4):
            hold = pool.try_allocate(10)
            await peer.send(framed(b"text"))
            await place.until(muted=1, refusals=number)
            (helper,) = helpers()
            assert helper.daemon
            pool.release(hold)
            assert await peer.answer() == b"text"
        assert not place.intake._gate._memory._wanted
        looks = len(pool.waited_for)
        for _ in range(20):
            assert await peer.ask(b"text") == b"text"
        assert len(pool.waited_for) == looks, "it does not sleep while nobody waits"
        hold = pool.try_allocate(10)
        await peer.send(framed(b"text"))
        await place.until(muted=1, refusals=4)
        await place.intake.close()
        assert helpers() == []
        pool.release(hold)


def test_helper_of_a_loop_that_is_gone() -> None:
    pool = ModelPool(10)
    ours, theirs = socket.socketpair()

    async def body() -> None:
        pool.try_allocate(10)
        intake = Intake(pool, Desk())
        connection = await intake.accept(theirs)
        await Peer(ours).send(framed(b"text"))
        await until(lambda: intake.stats()["muted"] == 1, "refused")
        connection.close()
        await ripple()
        intake._peers.close()

    asyncio.run(body())
    for thread in threading.enumerate():
        if thread.name == "wheeld-intake":
            thread.join(LONG)
            assert not thread.is_alive()
    ours.close()


async def test_helper_does_not_keep_the_interpreter() -> None:
    program = """
import asyncio, os, socket, sys
from model_pool import ModelPool
from wheeld_client.intake.server import Intake

async def main():
    pool = ModelPool(10)
    pool.try_allocate(10)
    intake = Intake(pool, print)
    ours, theirs = socket.socketpair()
    await intake.accept(theirs)
    ours.send(b"\\0\\0\\0\\1x")
    while not intake.stats()["muted"]:
        await asyncio.sleep(0.001)
    print("refused", flush=True)
    sys.exit(7)

asyncio.run(main())
"""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        program,
        stdout=asyncio.subprocess.PIPE,
        env={"PYTHONPATH": ":".join(filter(None, sys.path))},
    )
    out, _ = await asyncio.wait_for(process.communicate(), LONG)
    assert (out, process.returncode) == (b"refused\n", 7)


# -- abuse ----------------------------------------------------------------------------------------


async def test_many_connections_come_and_go(
    caplog: pytest.LogCaptureFixture, rng_seed: int
) -> None:
    pool = ModelPool(400)
    rng = random.Random(rng_seed)
    caplog.set_level(logging.WARNING)

    async def one(place: Place) -> None:
        peer = await place.peer()
        what = rng.randrange(6)
        text = framed(rng.randbytes(rng.randint(1, 50)))
        with contextlib.suppress(ConnectionError):
            if what == 0:
                await peer.send(text[: rng.randint(0, len(text) - 1)])
            elif what == 1:
                await peer.send(text)
            elif what == 2:
                await peer.send(text * 5)
            elif what == 3:
                await peer.send(text)
                peer.finish()
                assert framed(await peer.answer()) == text
            elif what == 4:
                await peer.send(bytes(4))
            else:
                assert framed(await peer.ask(text[4:])) == text
        rng.choice([peer.close, peer.vanish])()
        place.peers.remove(peer)

    async def many(place: Place, count: int) -> None:
        for _ in range(count):
            await one(place)
            check(place.intake)

    async with Place(pool, Desk(), half_close=True) as place:
        await asyncio.gather(*(many(place, 100) for _ in range(20)))
        await place.until(connections=0, in_flight=0, bytes=0, muted=0)
        assert place.stats("accepted") == 2000
        assert not place.intake._peers._watched
    assert pool.most_used <= 400 + 49


async def throttle(place: Place, rng: random.Random) -> None:
    while True:
        connections = place.connections()
        for one in rng.sample(connections, len(connections) // 3):
            one.mute()
        check(place.intake)
        await asyncio.sleep(0)
        for one in connections:
            one.unmute()
        check(place.intake)
        await asyncio.sleep(0.001)


@pytest.mark.parametrize("kind", [Place, TlsPlace])
@pytest.mark.parametrize("strict", [False, True])
async def test_pressure(strict: bool, kind: type[Place], rng_seed: int) -> None:
    rng = random.Random(rng_seed)
    pool = ModelPool(300, largest=200, strict=strict)
    places: list[Place] = []

    async def handler(request: Request) -> bytes:
        check(places[0].intake)
        body = bytes(request.data)
        for _ in range(rng.randrange(3)):
            await asyncio.sleep(0)
        if rng.random() < 0.3:
            request.release()
            await asyncio.sleep(0)
        if rng.random() < 0.2:
            request.connection.mute()
            asyncio.get_running_loop().call_soon(request.connection.unmute)
        check(places[0].intake)
        return body[::-1]

    async def use(peer: Peer) -> None:
        for _ in range(40):
            texts = [rng.randbytes(rng.randint(1, 200)) for _ in range(rng.randint(1, 3))]
            await peer.send(b"".join(map(framed, texts)))
            assert [await peer.answer() for _ in texts] == [text[::-1] for text in texts]

    async def another() -> None:
        while True:
            held = pool.try_allocate(rng.randint(1, 200))
            try:
                await asyncio.sleep(0.001)
            finally:
                if held is not None:
                    pool.release(held)
            await asyncio.sleep(0.001)

    async with kind(pool, handler, max_requests=5, rng=random.Random(rng_seed)) as place:
        places.append(place)
        noise = [asyncio.create_task(another()), asyncio.create_task(throttle(place, rng))]
        await asyncio.gather(*[use(await place.peer()) for _ in range(30)])
        for task in noise:
            task.cancel()
        await asyncio.wait(noise)
        for connection in place.connections():
            connection.unmute()
        assert place.stats("refusals") > 0
        await place.until(muted=0, muted_explicitly=0, in_flight=0, bytes=0)
    assert pool.most_used <= (300 if strict else 299 + 200)
    assert pool.exported == 0
