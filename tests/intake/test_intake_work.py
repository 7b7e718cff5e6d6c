"""Intake: the task of a request, and all the ways in which it ends."""

import asyncio
import contextvars

import pytest

import intake_peers
from intake_peers import BOTH_LOOPS, SLOW, Desk, Place, framed, ripple, until
from model_pool import ModelPool
from wheeld_client.intake.request import Request

pytestmark = BOTH_LOOPS
setting: contextvars.ContextVar[str] = contextvars.ContextVar("setting", default="nobody's")


async def test_each_request_has_a_context_of_its_own() -> None:
    pool = ModelPool(1000)
    seen: list[str] = []

    async def handler(request: Request) -> bytes:
        seen.append(setting.get())
        setting.set(bytes(request.data).decode())
        await asyncio.sleep(0)
        return b""

    setting.set("the server's")
    async with Place(pool, handler) as place:
        setting.set("somebody's")
        peer = await place.peer()
        await peer.send(b"".join(framed(b"%d" % number) for number in range(20)))
        for _ in range(20):
            assert await peer.answer() == b""
    assert seen == ["the server's"] * 20


@pytest.mark.parametrize("begun", [False, True])
async def test_a_handler_that_somebody_cancels(
    begun: bool, caplog: pytest.LogCaptureFixture
) -> None:
    pool = ModelPool(1000)
    desk = Desk(closed=True)
    async with Place(pool, desk, first_bytes=0, **SLOW) as place:
        peer = await place.peer()
        (connection,) = place.connections()
        if begun:
            await peer.send(framed(b"text"))
            await until(lambda: desk.now == 1, "begun")
        else:
            for part in (b"\0\0\0\4", b"text"):
                connection.get_buffer(-1)[:] = part
                connection.buffer_updated(4)
        connection._task.cancel()
        await place.until(connections=0, in_flight=0, bytes=0, errors=1)
        assert len(desk.got) == begun
        assert await peer.is_closed()
    assert "a handler failed" in caplog.text


@pytest.mark.parametrize("what", [SystemExit, KeyboardInterrupt])
def test_a_handler_that_ends_the_loop(what: type[BaseException]) -> None:
    pool = ModelPool(1000)

    async def handler(request: Request) -> bytes:
        await go.wait()
        raise what

    go = asyncio.Event()
    loop = intake_peers.make_loop()

    async def begin() -> Place:
        place = Place(pool, handler)
        await place.__aenter__()
        await (await place.peer()).send(framed(b"text"))
        await place.until(requests=1)
        return place

    try:
        place = loop.run_until_complete(begin())
        loop.call_soon(go.set)
        with pytest.raises(what):
            loop.run_forever()
        assert pool.used == 0
        assert place.stats("errors") == 1
        loop.run_until_complete(place.__aexit__(None))
    finally:
        loop.close()
    assert pool.buffers == 0


@pytest.mark.parametrize("size", [1, 4])
async def test_no_answer_is_taken_for_another(size: int) -> None:
    pool = ModelPool(1000)
    got: list[bytes] = []

    async def handler(request: Request) -> bytes:
        got.append(bytes(request.data))
        if got[-1] == b"wait":
            await asyncio.Event().wait()
        return got[-1]

    async with Place(pool, handler) as place:
        peer = await place.peer()
        await peer.send(framed(b"soon") + framed(b"wait") + framed(b"more") * size)
        peer.finish()
        assert await peer.answer() == b"soon"
        assert await peer.is_closed()
        assert got == [b"soon", b"wait", *[b"more"] * size], "handled all the same"


@pytest.mark.parametrize("prefix_bytes", [1, 2, 3, 8])
async def test_requests_of_all_sizes_in_one_stream(prefix_bytes: int) -> None:
    pool = ModelPool(5000)
    sizes = [size for size in (*range(1, 20), 255, 256, 1023, 1024, 1025, 5000)
             if size < 256**prefix_bytes]  # fmt: skip
    bodies = [bytes([number]) * size for number, size in enumerate(sizes)]

    async def handler(request: Request) -> bytes:
        return bytes(request.data)

    options = {"prefix_bytes": prefix_bytes, "first_bytes": 1024}
    async with Place(pool, handler, **options) as place:
        stream = b"".join(framed(one, prefix_bytes) for one in bodies)
        for piece in (1, 7, 100, 3000, len(stream)):
            peer = await place.peer()
            for start in range(0, len(stream) if piece > 50 else 500, piece):
                await peer.send(stream[start : start + piece])
                await asyncio.sleep(0)
            if piece <= 50:
                await peer.send(stream[start + piece :])
            for expected in bodies:
                assert await peer.answer() == expected
            peer.close()
        await ripple()
