"""CPython's own tests of `asyncio.timeout` and `asyncio.wait_for`, run with those of a wheel.

They are those of the interpreter that runs this: test_timeouts.py and test_waitfor.py of
Lib/test/test_asyncio. They run on asyncio's loop and on uvloop.
"""

from __future__ import annotations

import asyncio
import sys
import types
from typing import Any

import pytest
import uvloop

import wheeld
from wheeld_client import AsyncTimers

WITHOUT = "this Python comes without its own tests"
timeouts = pytest.importorskip("test.test_asyncio.test_timeouts", reason=WITHOUT)
waitfor = pytest.importorskip("test.test_asyncio.test_waitfor", reason=WITHOUT)


class _OnTheWheel:
    """Real time: a tick is fine enough for their hundredths of a second."""

    suite: types.ModuleType

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def daemon(cls, wheel_server: wheeld.ForkServer) -> Any:
        with wheel_server.embedded(capacity=1024) as cls.name:
            yield

    async def asyncSetUp(self: Any) -> None:
        timers = await self.enterAsyncContext(AsyncTimers(self.name))
        names = ("sleep", "timeout", "timeout_at", "wait_for")
        replaced = {name: getattr(timers, name) for name in names}
        patched = types.SimpleNamespace(**{**vars(asyncio), **replaced})
        before, self.suite.asyncio = self.suite.asyncio, patched
        self.addCleanup(setattr, self.suite, "asyncio", before)


class _OnUvloop:
    def _setupAsyncioRunner(self) -> None:
        self._asyncioRunner = asyncio.Runner(debug=True, loop_factory=uvloop.new_event_loop)


class TestTimeouts(_OnTheWheel, timeouts.TimeoutTests):  # type: ignore[misc,name-defined]
    suite = timeouts


class TestWaitFor(_OnTheWheel, waitfor.AsyncioWaitForTest):  # type: ignore[misc,name-defined]
    suite = waitfor

    if sys.version_info < (3, 12):
        test_wait_for_self_cancellation = None  # since 3.12 the result counts, as here


class TestTimeoutsOnUvloop(_OnUvloop, TestTimeouts):
    pass


class TestWaitForOnUvloop(_OnUvloop, TestWaitFor):
    pass
