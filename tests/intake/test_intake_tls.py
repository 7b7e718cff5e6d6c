"""Intake under TLS: the rules hold as in plain."""

import asyncio
import logging
import ssl
from typing import Any

import pytest

from intake_peers import BOTH_LOOPS, Desk, Stage, framed, ripple, until
from intake_tls_peers import TlsPeer, TlsPlace, contexts, old
from model_pool import ModelPool
from wheeld_client.intake.connection import SCRATCH
from wheeld_client.intake.request import Request

pytestmark = BOTH_LOOPS


@pytest.mark.parametrize("version", ["1.2", "1.3"])
async def test_requests_are_read_and_answered(version: str) -> None:
    pool = ModelPool(8 << 20)
    seen: list[Any] = []
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE

    async def handler(request: Request) -> bytes:
        seen.append(request.connection.tls.version())
        return bytes(request.data)[::-1]

    place = TlsPlace(pool, handler)
    place.context = old(contexts()[0]) if version == "1.2" else None
    async with place:
        peers = [await place.peer(trusting) for _ in range(3)]
        for size in (1, 5, 1000, 16_384, 100_000, 3_000_000):
            texts = [bytes([index]) + bytes(size) for index in range(3)]
            answers = await asyncio.gather(
                *(peer.ask(text) for peer, text in zip(peers, texts, strict=True))
            )
            assert answers == [text[::-1] for text in texts]
        many = [b"%d" % number for number in range(100)]
        await peers[0].send(b"".join(map(framed, many)))
        assert [await peers[0].answer() for _ in many] == [text[::-1] for text in many]
        await place.until(in_flight=0, bytes=0, unsent=0)
    assert set(seen) == {f"TLSv{version}"}
    assert pool.exported == 0


async def test_the_clients_certificate() -> None:
    pool = ModelPool(1000)
    seen: list[Any] = []

    async def handler(request: Request) -> bytes:
        seen.append(request.connection.tls.getpeercert()["subjectAltName"])
        return b"done"

    async with TlsPlace(pool, handler) as place:
        assert await (await place.peer()).ask(b"text") == b"done"
    assert seen == [(("email", "someone@example.org"),)]


async def test_the_standard_librarys_client() -> None:
    pool = ModelPool(1000)
    async with TlsPlace(pool, Desk()) as place:
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", place.port, ssl=contexts()[1], server_hostname="localhost"
        )
        writer.write(framed(b"hello"))
        assert await reader.readexactly(9) == framed(b"hello")
        await place.intake.close()
        assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()


# -- KIP-72: muted, and what has come already ---------------------------------------------------


async def test_muted_reads_nothing_more() -> None:
    pool = ModelPool(1 << 20)
    hold = pool.try_allocate(1 << 20)
    async with TlsPlace(pool, Desk()) as place:
        peer = await place.peer()
        (connection,) = place.connections()
        sending = asyncio.create_task(peer.send(framed(bytes(50_000)) * 400))
        await place.until(muted=1)
        await ripple(200)
        assert not connection._transport.is_reading()
        assert connection._tls.pending <= SCRATCH
        assert not sending.done(), "20 MB went somewhere"
        pool.release(hold)
        for _ in range(400):
            assert await peer.answer() == bytes(50_000)
        await sending


async def test_what_was_decrypted_is_read_when_memory_returns() -> None:
    pool = ModelPool(10)
    hold = pool.try_allocate(10)
    desk = Desk()
    async with TlsPlace(pool, desk) as place:
        peer = await place.peer()
        (connection,) = place.connections()
        await peer.send(framed(b"one") + framed(b"two") + framed(b"three"))
        await place.until(muted=1, refusals=1)
        assert connection._tls.pending > 0
        pool.release(hold)
        assert [await peer.answer() for _ in range(3)] == [b"one", b"two", b"three"]


# -- the end ------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", ["say_end", "finish", "close", "vanish"])
@pytest.mark.parametrize("state", ["silent", "prefix", "body", "refused", "handler"])
async def test_peers_that_leave(state: str, how: str) -> None:
    pool = ModelPool(1000)
    part = {"sent": 50} if state == "refused" else {}
    async with Stage(state, pool, kind=TlsPlace, **part) as stage:
        ended = getattr(stage.peer, how)()
        if how == "say_end":
            await ended
            if state == "refused":  # only the socket says so while nothing is read
                stage.peer.close()
        await stage.gone()
        assert stage.place.stats("tls_errors") == 0


# -- handshakes ---------------------------------------------------------------------------------


@pytest.mark.parametrize("sent", [b"", b"\x16\x03\x01"], ids=["nothing", "a part"])
async def test_a_slow_handshake(sent: bytes, caplog: pytest.LogCaptureFixture) -> None:
    pool = ModelPool(1000)
    async with TlsPlace(pool, Desk(), handshake_timeout=1000.0, idle_timeout=None) as place:
        slow, good = await place.raw(), await place.peer()
        await slow.send(sent)
        place.let_pass(900)
        await ripple()
        assert place.stats("connections") == 2
        place.let_pass(200)
        assert await slow.is_closed()
        await place.until(connections=1, slow_closed=1)
        assert await good.ask(b"text") == b"text"
    assert ["handshake" in record.message for record in caplog.records] == [True]


@pytest.mark.parametrize("text", [framed(b"hello"), b"GET / HTTP/1.1\r\n\r\n", bytes(100)])
async def test_plaintext_to_a_tls_port(text: bytes, caplog: pytest.LogCaptureFixture) -> None:
    pool = ModelPool(1000)
    async with TlsPlace(pool, Desk()) as place:
        good, bad = await place.peer(), await place.raw()
        await bad.send(text)
        await until(lambda: place.stats("tls_errors") == 1, "noticed")
        while await bad.read(1):  # an alert
            pass
        await place.until(connections=1)
        assert await good.ask(b"text") == b"text"
    assert [record.levelno for record in caplog.records] == [logging.WARNING]


async def test_tls_to_a_plain_port() -> None:
    pool = ModelPool(1000)
    async with TlsPlace(pool, Desk()) as place:
        server = await place.intake.serve("127.0.0.1", 0)
        place.port = server.sockets[0].getsockname()[1]
        plain = await place.raw()
        with pytest.raises(ConnectionResetError, match="handshake"):
            await TlsPeer(plain.sock, contexts()[1]).shake_hands()
        await place.until(connections=0, bad_lengths=1)


@pytest.mark.parametrize("how", ["close", "finish", "vanish"])
async def test_peers_that_leave_in_the_handshake(how: str) -> None:
    pool = ModelPool(1000)
    async with TlsPlace(pool, Desk()) as place:
        peer = await place.raw()
        client = TlsPeer(peer.sock, contexts()[1])
        with pytest.raises(ssl.SSLWantReadError):
            client.session.do_handshake()
        await peer.send(client.outgoing.read()[:50])
        getattr(peer, how)()
        await place.until(connections=0)


async def test_close_in_the_handshake() -> None:
    pool = ModelPool(1000)
    async with TlsPlace(pool, Desk()) as place:
        peer = await place.raw()
        await place.intake.close(None)
        assert await peer.is_closed()


async def test_garbage_in_the_middle() -> None:
    pool = ModelPool(1000)
    async with TlsPlace(pool, Desk()) as place:
        peer = await place.peer()
        await peer.send(framed(b"text")[:6])
        await place.until(bytes=4)
        await asyncio.get_running_loop().sock_sendall(peer.sock, b"garbage" * 100)
        await place.until(connections=0, bytes=0, in_flight=0, tls_errors=1)
