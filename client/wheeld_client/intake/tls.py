"""Tls: the server side of TLS for one connection, between encrypted and plain bytes.

It works in memory: the owner of the socket feeds what arrived and sends what is to go. So the owner
decides how much is read, and when. An event loop's own TLS does not allow that: it keeps reading
while it is paused, and allocates 256 KiB per connection for it.

It holds bytes that were fed but not yet read, at most as many as are fed at a time; the
record that OpenSSL has decrypted (16 KiB); what was written but not yet taken by `outgoing`.
"""

from __future__ import annotations

import ssl
from contextlib import suppress
from typing import Final

RECORD: Final = 16 << 10
"""Bytes of the largest TLS record, the unit of encryption."""


class Tls:
    """TLS of one connection.

    Attributes
    ----------
    session : ssl.SSLObject
        With the peer's certificate, the cipher and so on.
    secure : bool
        The handshake is over.
    """

    def __init__(self, context: ssl.SSLContext) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.session = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self.secure = False

    def feed(self, data: memoryview) -> None:
        """Feed bytes that arrived."""
        self._incoming.write(data)

    def outgoing(self) -> bytes:
        """Take the bytes to be sent."""
        return self._outgoing.read()

    @property
    def pending(self) -> int:
        """Bytes that arrived but were not read: decrypted, and encrypted with overhead."""
        return self._incoming.pending + self.session.pending()

    def handshake(self) -> bool:
        """Continue the handshake. Whether it is complete."""
        try:
            self.session.do_handshake()
        except ssl.SSLWantReadError:
            return False
        self.secure = True
        return True

    def read(self, into: memoryview) -> int | None:
        """Read plain bytes; returns their number. 0: the peer has ended; None: more must arrive
        first."""
        try:
            # typeshed knows only the form that gives bytes
            return self.session.read(len(into), into)  # type: ignore[return-value]
        except ssl.SSLWantReadError:
            return None
        except ssl.SSLZeroReturnError:
            return 0

    def write(self, data: memoryview) -> int:
        """Encrypt the first bytes; returns how many."""
        return self.session.write(data[:RECORD])

    def close(self) -> None:
        """Tell the peer that nothing follows."""
        with suppress(ssl.SSLError):
            self.session.unwrap()
