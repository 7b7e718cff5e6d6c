"""Tls: the server's side of TLS for one connection, between bytes of the wire and bytes in plain.

It works in memory: whoever owns the socket feeds what came and sends what is to go. So the owner
decides how much is read, and when, which an event loop's own TLS does not let it: that reads on
while it is paused, and sets 256 KiB per connection aside for it.

What is held: bytes that were fed and not read yet, at most as many as are fed at a time; the
record that OpenSSL has decrypted (16 KiB); what was written and not taken by `outgoing`.
"""

from __future__ import annotations

import ssl
from contextlib import suppress
from typing import Final

RECORD: Final = 16 << 10
"""Bytes of the largest TLS record; what is encrypted at a time."""


class Tls:
    """One connection's.

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
        """These bytes came."""
        self._incoming.write(data)

    def outgoing(self) -> bytes:
        """The bytes that are to go."""
        return self._outgoing.read()

    @property
    def pending(self) -> int:
        """Bytes that came and were not read: decrypted ones, and encrypted ones, which are more."""
        return self._incoming.pending + self.session.pending()

    def handshake(self) -> bool:
        """Go on with the handshake. Is it over?"""
        try:
            self.session.do_handshake()
        except ssl.SSLWantReadError:
            return False
        self.secure = True
        return True

    def read(self, into: memoryview) -> int | None:
        """Bytes in plain; their number. 0: the peer has ended; None: more has to come first."""
        try:
            # typeshed knows only the form that gives bytes
            return self.session.read(len(into), into)  # type: ignore[return-value]
        except ssl.SSLWantReadError:
            return None
        except ssl.SSLZeroReturnError:
            return 0

    def write(self, data: memoryview) -> int:
        """Encrypt the first bytes; how many."""
        return self.session.write(data[:RECORD])

    def close(self) -> None:
        """Tell the peer that nothing follows."""
        with suppress(ssl.SSLError):
            self.session.unwrap()
