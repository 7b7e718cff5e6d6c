"""Intake: reading, answering, options. On a `ModelPool`; nothing depends on speed."""

import asyncio
import logging
import socket
from typing import Any

import pytest

from intake_peers import BOTH_LOOPS, Desk, Peer, Place, framed, ripple, until
from model_pool import ModelPool
from wheeld_client.intake.request import Request
from wheeld_client.intake.server import Intake

pytestmark = BOTH_LOOPS


async def test_requests_are_read_and_answered() -> None:
    pool = ModelPool(1 << 20)
    async with Place(pool, Desk()) as place:
        peers = [await place.peer() for _ in range(5)]
        for number in range(20):
            texts = [bytes([index, number]) * (1 + 37 * number) for index in range(5)]
            answers = await asyncio.gather(
                *(peer.ask(text) for peer, text in zip(peers, texts, strict=True))
            )
            assert answers == texts
        await place.until(requests=100, answers=100, in_flight=0, bytes=0, connections=5)


@pytest.mark.parametrize("prefix_bytes", [1, 2, 4, 8])
async def test_prefix_bytes(prefix_bytes: int) -> None:
    pool = ModelPool(1 << 16)
    async with Place(pool, Desk(), prefix_bytes=prefix_bytes) as place:
        peer = await place.peer()
        for size in (1, 200, 255):
            assert await peer.ask(b"x" * size) == b"x" * size


async def test_a_byte_at_a_time() -> None:
    pool = ModelPool(1000)
    async with Place(pool, Desk()) as place:
        peer = await place.peer()
        text = framed(b"slowly")
        for index in range(len(text)):
            await peer.send(text[index : index + 1])
            await ripple(3)
            expected = 6 if 5 <= index + 1 < len(text) else 0
            await until(lambda expected=expected: pool.used == expected, f"{expected} lent")
        assert await peer.answer() == b"slowly"


async def test_requests_in_one_piece() -> None:
    pool = ModelPool(1000)
    desk = Desk()
    async with Place(pool, desk) as place:
        peer = await place.peer()
        texts = [bytes([number]) * (number + 1) for number in range(50)]
        await peer.send(b"".join(map(framed, texts)))
        assert [await peer.answer() for _ in texts] == texts
        assert desk.got == texts
        assert desk.most == 1


async def test_a_large_request_goes_straight_into_the_buffer() -> None:
    pool = ModelPool(8 << 20)
    seen: list[tuple[int, int, bool]] = []

    async def handler(request: Request) -> bytes:
        assert request.data.obj in pool._out.values()
        seen.append((request.size, len(request.data), request.data.readonly))
        return len(request.data).to_bytes(8, "big")

    async with Place(pool, handler) as place:
        peer = await place.peer()
        assert int.from_bytes(await peer.ask(bytes(5 << 20)), "big") == 5 << 20
        assert seen == [(5 << 20, 5 << 20, False)]


async def test_answers_of_all_kinds() -> None:
    pool = ModelPool(1000)

    async def handler(request: Request) -> Any:
        text = bytes(request.data)
        return {
            b"bytes": b"1",
            b"bytearray": bytearray(b"2"),
            b"memoryview": memoryview(b"3"),
            b"empty": b"",
            b"none": None,
            b"whole": request.data,
            b"a part": request.data[2:],
        }[text]

    async with Place(pool, handler) as place:
        peer = await place.peer()
        assert await peer.ask(b"bytes") == b"1"
        assert await peer.ask(b"bytearray") == b"2"
        assert await peer.ask(b"memoryview") == b"3"
        assert await peer.ask(b"empty") == b""
        await peer.send(framed(b"none"))
        assert await peer.ask(b"whole") == b"whole"
        assert await peer.ask(b"a part") == b"part"
        await place.until(requests=7, answers=6, bytes=0)
        assert pool.exported == 0


async def test_early_release() -> None:
    pool = ModelPool(1000)
    errors: list[str] = []
    go = asyncio.Event()

    async def handler(request: Request) -> bytes:
        assert bytes(request.data) == b"abc"
        request.release()
        for call in (request.release, lambda: request.data):
            with pytest.raises(ValueError) as caught:
                call()
            errors.append(str(caught.value))
        await go.wait()
        return b"done %d" % request.size

    async with Place(pool, handler) as place:
        peer = await place.peer()
        await peer.send(framed(b"abc"))
        await place.until(requests=1, bytes=0, in_flight=1)
        assert pool.used == 0
        await peer.send(framed(b"abc"))
        await ripple()
        assert place.stats("requests") == 1, "one request of a connection at a time"
        go.set()
        assert await peer.answer() == b"done 3"
        assert await peer.answer() == b"done 3"
    assert all("released" in error for error in errors)


async def test_accept(runtime_dir: Any) -> None:
    pool = ModelPool(1000)
    intake = Intake(pool, Desk())
    async with intake:
        ours, theirs = socket.socketpair()
        connection = await intake.accept(theirs)
        peer = Peer(ours)
        assert await peer.ask(b"one") == b"one"
        other, theirs = socket.socketpair()
        intake.accept(theirs)
        assert await Peer(other).ask(b"two") == b"two"
        connection.close()
        assert await peer.is_closed()
        other.close()
        peer.close()
    with pytest.raises(RuntimeError, match="closed"):
        intake.accept(theirs)
    with pytest.raises(RuntimeError, match="closed"):
        await intake.serve("127.0.0.1", 0)


async def test_serve_at_several_places(runtime_dir: Any) -> None:
    pool = ModelPool(1000)
    async with Intake(pool, Desk()) as intake:
        first = await intake.serve("127.0.0.1", 0, reuse_port=True)
        port = first.sockets[0].getsockname()[1]
        await intake.serve("127.0.0.1", port, reuse_port=True)
        own = socket.socket(socket.AF_UNIX)
        own.bind(str(runtime_dir / "intake"))
        await intake.serve(sock=own)
        for family, place in (
            (socket.AF_INET, ("127.0.0.1", port)),
            (socket.AF_UNIX, str(runtime_dir / "intake")),
        ):
            sock = socket.socket(family)
            sock.connect(place)
            assert await Peer(sock).ask(b"hello") == b"hello"
            sock.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port))


async def test_serve_while_closing() -> None:
    pool = ModelPool(1000)
    intake = Intake(pool, Desk())
    serving = asyncio.create_task(intake.serve("127.0.0.1", 0))
    await asyncio.sleep(0)
    await intake.close()
    with pytest.raises(RuntimeError, match="closed"):
        await serving


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"largest": 0}, "1 to 100"),
        ({"largest": 101}, "1 to 100"),
        ({"max_requests": 0}, "1 or more"),
        ({"idle_timeout": 0}, "more than 0"),
        ({"idle_timeout": float("nan")}, "more than 0"),
        ({"prefix_bytes": 0}, "1 to 8"),
        ({"prefix_bytes": 9}, "1 to 8"),
    ],
)
def test_options_out_of_range(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Intake(ModelPool(1000, largest=100), Desk(), **options)


@pytest.mark.parametrize(("size", "largest"), [(0, 100), (101, 100), (2**32 - 1, 100), (101, None)])
async def test_lengths_out_of_range(
    size: int, largest: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    pool = ModelPool(1000, largest=100)
    async with Place(pool, Desk(), largest=largest) as place:
        good, bad = await place.peer(), await place.peer()
        await bad.send(size.to_bytes(4, "big") + b"some of the body")
        assert await bad.is_closed()
        await place.until(bad_lengths=1, connections=1)
        assert await good.ask(b"x" * 100) == b"x" * 100
        assert pool.asked == [100]
    assert [f"{size} bytes" in record.message for record in caplog.records] == [True]


async def test_a_bad_length_behind_a_good_request() -> None:
    pool = ModelPool(1000)
    desk = Desk(closed=True)
    async with Place(pool, desk) as place:
        peer = await place.peer()
        await peer.send(framed(b"good") + bytes(4))
        await place.until(requests=1)
        await ripple()
        assert place.stats("bad_lengths") == 0
        desk.open()
        assert await peer.answer() == b"good"
        assert await peer.is_closed()
        await place.until(bad_lengths=1)


async def fails(request: Request) -> bytes:
    part = request.data[1:]
    raise KeyError(bytes(part))


async def wrong_kind(request: Request) -> Any:
    return "text"


async def too_long(request: Request) -> bytes:
    return bytes(256)


async def cancels_itself(request: Request) -> bytes:
    raise asyncio.CancelledError


def not_async(request: Request) -> Any:
    return b"text"


@pytest.mark.parametrize("handler", [fails, wrong_kind, too_long, cancels_itself, not_async])
async def test_errors_of_a_handler(handler: Any, caplog: pytest.LogCaptureFixture) -> None:
    pool = ModelPool(1000)
    async with Place(pool, handler, prefix_bytes=1) as place:
        other, peer = await place.peer(), await place.peer()
        await peer.send(framed(b"request", 1))
        assert await peer.is_closed()
        await place.until(handler_errors=1, errors=1, connections=1, in_flight=0, bytes=0)
        await other.send(framed(b"x", 1))
        assert await other.is_closed()
    assert pool.exported == 0
    errors = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert len(errors) == 2
    assert all(record.exc_info for record in errors)
