"""CPython's own tests of `asyncio.timeout`, run with the timeouts of a wheel in their place.

They are those of the interpreter that runs this, Lib/test/test_asyncio/test_timeouts.py.
"""

from __future__ import annotations

import asyncio
import types
from typing import Any

import pytest

import wheeld
from wheeld_client import AsyncTimers

suite = pytest.importorskip(
    "test.test_asyncio.test_timeouts", reason="this Python comes without its own tests"
)


class TestTimeouts(suite.TimeoutTests):  # type: ignore[misc,name-defined]
    """Real time: a tick is fine enough for their hundredths of a second."""

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def daemon(cls, wheel_server: wheeld.ForkServer) -> Any:
        """One for all of them."""
        with wheel_server.embedded(capacity=1024) as cls.name:
            yield

    async def asyncSetUp(self) -> None:
        """A worker for each, and what they call `asyncio` has its timeouts."""
        timers = await self.enterAsyncContext(AsyncTimers(self.name))
        replaced = {"timeout": timers.timeout, "timeout_at": timers.timeout_at}
        patched = types.SimpleNamespace(**{**vars(asyncio), **replaced})
        before, suite.asyncio = suite.asyncio, patched
        self.addCleanup(setattr, suite, "asyncio", before)
