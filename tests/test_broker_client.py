"""The broker example's wire and client: what is sent again, what is counted."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from examples.broker import protocol
from examples.broker.client import BrokerError, Client, NoAnswer
from examples.broker.protocol import Kind, Message, ProtocolError, RequestError

Script = Callable[[int, list[Message], asyncio.StreamWriter, asyncio.StreamReader], Awaitable[None]]


# -- messages ----------------------------------------------------------------------------------


def test_message_comes_back_as_it_was() -> None:
    """Fields, blob and correlation id."""
    message = Message(Kind.FETCH, 2**63, {"a": [1, "ä"], "b": None}, b"\0blob")
    body = protocol.encode(message)
    assert protocol.decode(body) == message
    assert protocol.decode(memoryview(body)) == message
    assert message.error == ""
    assert Message(Kind.FETCH, 1, {"error": "timed-out"}).error == "timed-out"


GOOD = protocol.encode(Message(Kind.JOIN, 5, {"a": 1}))


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "got 0 bytes"),
        (GOOD[:15], "got 15 bytes, a header has 16"),
        (b"\x02" + GOOD[1:], "got version 2, expected 1"),
        (GOOD[:1] + b"\x09" + GOOD[2:], "9 is not a valid Kind"),
        (GOOD[:-1], "fields end at byte"),
        (GOOD[:16] + b"not js!", "Expecting value"),
        (protocol.HEADER.pack(1, 1, 0, 2, 1) + b"[]", "the fields are a list"),
        (protocol.HEADER.pack(1, 1, 0, 99_999, 1) + b"[" * 99_999, "recursion"),
        (protocol.HEADER.pack(1, 1, 0, 2, 1) + b"\xffa", "decode"),
    ],
)
def test_what_is_no_message_is_refused(body: bytes, said: str) -> None:
    """Never with another exception."""
    with pytest.raises(ProtocolError, match=said):
        protocol.decode(body)


@pytest.mark.parametrize("value", [None, "1", 1.0, True, -1, 11])
def test_number_is_checked(value: object) -> None:
    """A number is an int in its range."""
    with pytest.raises(RequestError, match="n: got"):
        protocol.number({"n": value}, "n", 0, 10)
    assert protocol.number({"n": 10}, "n", 0, 10) == 10


@pytest.mark.parametrize("value", [None, 1, "", "a/b", "..", "a.b", "ä", "x" * 101, "a b"])
def test_name_is_checked(value: object) -> None:
    """A name becomes a part of a path."""
    with pytest.raises(RequestError, match="expected letters"):
        protocol.text({"n": value}, "n")
    assert protocol.text({"n": "a_B-9"}, "n") == "a_B-9"


# -- the client --------------------------------------------------------------------------------


def answer(message: Message, **fields: Any) -> bytes:
    """A framed answer."""
    body = protocol.encode(Message(message.kind, message.correlation, {"error": "", **fields}))
    return protocol.frame(body)


def with_broker(script: Script, body: Callable[[Client, list[Message]], Awaitable[None]]) -> Client:
    """Run `body` with a client of a broker that does, per request, what the script says.

    The script gets the number of the connection, all requests so far, and the connection.
    """
    requests: list[Message] = []
    count = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal count
        count += 1
        number = count
        try:
            while True:
                (size,) = protocol.LENGTH.unpack(await reader.readexactly(4))
                requests.append(protocol.decode(await reader.readexactly(size)))
                await script(number, requests, writer, reader)
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()

    async def main() -> Client:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with server:
            client = Client("127.0.0.1", server.sockets[0].getsockname()[1], patience=0.5)
            await body(client, requests)
            await client.close(listen=30.0)
        return client

    return asyncio.run(main())


def test_request_is_sent_again_as_it_was() -> None:
    """The first two connections break, before and in the middle of the answer."""

    async def script(number: int, requests: list[Message], writer: Any, reader: Any) -> None:
        if number == 2:
            writer.write(answer(requests[-1], offset=9)[:10])
        if number <= 2:
            raise asyncio.IncompleteReadError(b"", 1)
        writer.write(answer(requests[-1], offset=9))

    async def body(client: Client, requests: list[Message]) -> None:
        got = await client.produce("t", 0, b"value")
        assert got.fields["offset"] == 9
        assert len(requests) == 3
        assert requests[0] == requests[1] == requests[2]
        got = await client.produce("t", 0, b"next")
        assert requests[3].fields["sequence"] == requests[2].fields["sequence"] + 1
        assert requests[3].correlation != requests[2].correlation

    counts = with_broker(script, body).counts
    assert (counts.requests, counts.answers) == (2, 2)
    assert (counts.resent, counts.broken, counts.strays) == (2, 2, 0)


@pytest.mark.parametrize("listening", [False, True])
def test_answer_too_many_is_counted(listening: bool) -> None:
    """Whether another request follows or not."""

    async def script(number: int, requests: list[Message], writer: Any, reader: Any) -> None:
        if len(requests) == 1:
            writer.write(answer(requests[-1]))
        writer.write(answer(requests[-1]))

    async def body(client: Client, requests: list[Message]) -> None:
        await client.status()
        if not listening:
            await client.status()
        assert client.counts.strays == (0 if listening else 1)

    assert with_broker(script, body).counts.strays == 1


def test_gives_up_when_nobody_is_there() -> None:
    """After its patience, and says where it was looking."""

    async def main() -> None:
        async with Client("127.0.0.1", 9, patience=0.05) as client:
            with pytest.raises(NoAnswer, match=r"no broker at 127\.0\.0\.1:9"):
                await client.status()
            assert client.counts.answers == 0
            assert client.counts.broken > 1

    asyncio.run(main())


def test_gives_up_on_who_always_hangs_up() -> None:
    """A connection that can be made is not yet an answer."""

    async def script(number: int, requests: list[Message], writer: Any, reader: Any) -> None:
        raise asyncio.IncompleteReadError(b"", 1)

    async def body(client: Client, requests: list[Message]) -> None:
        with pytest.raises(NoAnswer):
            await client.status()

    with_broker(script, body)


def test_cancelled_request_does_not_leave_its_answer_to_the_next() -> None:
    """Its connection is given up."""

    came = asyncio.Event()

    async def script(number: int, requests: list[Message], writer: Any, reader: Any) -> None:
        came.set()
        if len(requests) > 1:
            writer.write(answer(requests[-1], number=number))

    async def body(client: Client, requests: list[Message]) -> None:
        waiting = asyncio.create_task(client.status())
        await came.wait()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert (await client.status())["number"] == 2

    assert with_broker(script, body).counts.strays == 0


def test_refused_fetch_raises_and_timed_out_record_counts() -> None:
    """A record that timed out is in the log: the next has the next sequence."""

    async def script(number: int, requests: list[Message], writer: Any, reader: Any) -> None:
        error = {Kind.FETCH: "offset-out-of-range", Kind.PRODUCE: "timed-out"}[requests[-1].kind]
        writer.write(answer(requests[-1], error=error, offset=0))

    async def body(client: Client, requests: list[Message]) -> None:
        with pytest.raises(BrokerError, match="offset-out-of-range"):
            await client.fetch({("t", 0): 5})
        for expected in (0, 1):
            assert (await client.produce("t", 0, b"")).error == "timed-out"
            assert requests[-1].fields["sequence"] == expected
        with pytest.raises(ValueError, match="at most"):
            await client.produce("t", 0, bytes(protocol.MAX_FRAME))

    with_broker(script, body)
