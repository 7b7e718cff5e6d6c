"""TLS peers for tests of `Intake`: certificates, and a client that works byte by byte."""

from __future__ import annotations

import asyncio
import functools
import socket
import ssl

import pytest
import trustme

from intake_peers import LONG, Peer, Place, until


@functools.cache
def contexts() -> tuple[ssl.SSLContext, ssl.SSLContext]:
    authority = trustme.CA()
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    authority.issue_cert("localhost").configure_cert(server)
    authority.issue_cert("someone@example.org").configure_cert(client)
    for context in (server, client):
        authority.configure_trust(context)
    server.verify_mode = ssl.CERT_OPTIONAL
    return server, client


def old(context: ssl.SSLContext) -> ssl.SSLContext:
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    trustme.CA().issue_cert("localhost").configure_cert(server)
    server.maximum_version = ssl.TLSVersion.TLSv1_2
    return server


class TlsPeer(Peer):
    """One connection to an intake, under TLS."""

    def __init__(self, sock: socket.socket, context: ssl.SSLContext) -> None:
        super().__init__(sock)
        self._incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.session = context.wrap_bio(self._incoming, self.outgoing, server_hostname="localhost")

    async def flush(self) -> None:
        if data := self.outgoing.read():
            await super().send(data)

    async def _more(self) -> bool:
        await self.flush()
        receive = asyncio.get_running_loop().sock_recv(self.sock, 1 << 20)
        data = await asyncio.wait_for(receive, LONG)
        self._incoming.write(data)
        return bool(data)

    async def shake_hands(self) -> TlsPeer:
        while True:
            try:
                self.session.do_handshake()
            except ssl.SSLWantReadError:
                if not await self._more():
                    raise ConnectionResetError("closed in the handshake") from None
            else:
                await self.flush()
                return self

    async def send(self, data: bytes) -> Peer:
        for start in range(0, len(data), 1 << 14):
            self.session.write(data[start : start + (1 << 14)])
        await self.flush()
        return self

    async def read(self, size: int) -> bytes:
        found = bytearray()
        while len(found) < size:
            try:
                part = self.session.read(size - len(found))
            except ssl.SSLWantReadError:
                if not await self._more():
                    break
                continue
            except ssl.SSLZeroReturnError:
                break
            if not part:
                break
            found += part
        return bytes(found)

    async def say_end(self) -> None:
        try:
            self.session.unwrap()
        except ssl.SSLWantReadError:
            await self.flush()


class TlsPlace(Place):
    context: ssl.SSLContext | None = None

    async def __aenter__(self) -> TlsPlace:
        server = await self.intake.serve("127.0.0.1", 0, ssl=self.context or contexts()[0])
        self.port = server.sockets[0].getsockname()[1]
        return self

    async def raw(self) -> Peer:
        return await super().peer()

    async def peer(self, client: ssl.SSLContext | None = None) -> TlsPeer:
        plain = await super().peer()
        peer = TlsPeer(plain.sock, client or contexts()[1])
        self.peers[-1] = peer
        await peer.shake_hands()
        (new,) = [one for one in self.connections() if one.peer == plain.sock.getsockname()]
        await until(lambda: new._tls.secure, "secure on both sides")
        return peer


PLAIN_AND_TLS = pytest.mark.parametrize("kind", [Place, TlsPlace], ids=["plain", "TLS"])
