"""A broker of the example with its daemon, for tests."""

from __future__ import annotations

import asyncio
import io
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from kio.records.schema import NewRecordBatch, Record
from kio.records.writers import write_batch

import wheeld
from examples.broker.parent import Broker, Child
from examples.broker.settings import Settings

LONG = 60.0
"""Seconds that a test waits for an event before it fails."""


class Run:
    """A broker that runs in a thread's event loop, its workers and followers in processes."""

    def __init__(
        self, broker: Broker, loop: asyncio.AbstractEventLoop, daemon: wheeld.EmbeddedDaemon
    ) -> None:
        self.broker, self._loop, self.daemon = broker, loop, daemon

    @property
    def port(self) -> int:
        """Where it listens."""
        return self.broker.settings.port

    @property
    def address(self) -> str:
        """As clients want it."""
        return f"127.0.0.1:{self.port}"

    def child(self, role: str, index: int) -> Child:
        return next(one for one in self.broker.children if (one.role, one.index) == (role, index))

    def kill(self, role: str, index: int) -> None:
        """SIGKILL; returns when the next life serves."""

        async def kill() -> None:
            child = self.child(role, index)
            await child.ready.wait()
            child.kill()
            await child.ready.wait()

        asyncio.run_coroutine_threadsafe(kill(), self._loop).result(LONG)


@contextmanager
def running(
    directory: Path, *, virtual_clock: bool = False, by_hand: bool = False, **options: Any
) -> Iterator[Run]:
    """A broker of two workers with a daemon of its own.

    Parameters
    ----------
    by_hand : bool
        The followers' processes are not started: the test says how far they have come.
    """
    with wheeld.embedded(
        capacity=1 << 16, payload_bytes=256, pools=["requests=16M"], virtual_clock=virtual_clock
    ) as daemon:
        broker = Broker(Settings(str(directory), str(daemon), 0, **options))
        if by_hand:
            broker.children = [one for one in broker.children if one.role == "worker"]
        loop, up, found = asyncio.new_event_loop(), threading.Event(), []
        over = asyncio.Event()

        async def serve() -> None:
            try:
                async with broker:
                    found.append(Run(broker, loop, daemon))
                    up.set()
                    await over.wait()
            finally:
                up.set()

        thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
        thread.start()
        try:
            assert up.wait(LONG)
            yield found[0]
        finally:
            loop.call_soon_threadsafe(over.set)
            thread.join(LONG)
            loop.close()


def until(holds: Callable[[], Any], what: str) -> Any:
    """Look again and again until it holds."""
    give_up = time.monotonic() + LONG
    while not (found := holds()):
        assert time.monotonic() < give_up, f"still not: {what}"
        time.sleep(0.01)
    return found


def batch(
    *values: bytes,
    stamp: datetime = datetime(2026, 1, 1, tzinfo=UTC),
    producer: int = -1,
    sequence: int = -1,
    epoch: int = 0,
) -> bytes:
    when: Any = stamp
    records: Any = tuple(
        Record(attributes=0, timestamp=when, offset=n, key=None, value=value, headers=())
        for n, value in enumerate(values)
    )
    names: Any = {"producer_id": producer, "producer_epoch": epoch, "base_sequence": sequence}
    names["attributes"] = 0
    out = io.BytesIO()
    write_batch(out, NewRecordBatch(**names, records=records))
    return out.getvalue()


def inside(**options: Any) -> Callable[[pytest.TempPathFactory], Iterator[Run]]:
    """A fixture: a broker that is `running` with these options, for a module."""

    @pytest.fixture(scope="module")
    def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
        with running(tmp_path_factory.mktemp("broker"), **options) as run:
            yield run

    return broker
