"""asyncio without TLS, for the supervisor."""

from __future__ import annotations

import sys


def load_asyncio() -> None:
    """Load asyncio as if Python had been built without `ssl`, which asyncio allows for.

    The supervisor has no TLS connections, and OpenSSL is 1.3 MB of its memory. Who imports `ssl`
    later gets it. Call it before anything else loads asyncio; afterwards it does nothing.
    """
    if "asyncio" in sys.modules or "ssl" in sys.modules:
        return
    sys.modules["ssl"] = None  # type: ignore[assignment] # so that its import fails
    try:
        import asyncio  # noqa: F401
    finally:
        del sys.modules["ssl"]
