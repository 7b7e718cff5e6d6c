"""A pytest plugin for the tests of `limits` and flask-limiter: their storages are one of a daemon.

It is loaded in their process (foreign_suites.py). A storage in memory, or in a server, is `wheeld://`
there; the time is that of a virtual clock, and who sleeps advances it. Packages that only reach
servers are stand-ins. A dead Redis is a daemon that cannot be reached.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

import wheeld
from wheeld_client import DaemonNotRunning, Timers, connect
from wheeld_client.integrations.limits import AsyncWheeldStorage, WheeldStorage
from wheeld_client.integrations.process import ProcessTimers

TAKEN = ("memory:", "async+memory:", "redis:", "memcached:", "mongodb:")
"""Storages whose place it takes."""
REAL_TIME = {"tests.integration.test_concurrency"}
"""Their threads sleep only to meet."""
SERVER = object()
"""Fixtures that start a server of theirs: such a test is of another storage."""

modules: dict[str, Any] = sys.modules  # type: ignore[assignment]


class Redis:
    def execute_command(*_: object) -> None:
        """A test lets it raise: the server is dead."""


class Flushed(str):
    flushall: Any


class Wheel:
    """The daemon of all tests, and its time."""

    def __init__(self) -> None:
        self.embedded = wheeld.embedded(virtual_clock=True)
        self.daemon = self.embedded.__enter__()
        self.clock = connect(self.daemon, worker="clock")
        self.storage = WheeldStorage(f"wheeld://{self.daemon}")

    def sleep(self, seconds: float) -> None:
        self.daemon.advance(max(seconds, 0.01))

    async def async_sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)
        self.sleep(seconds)

    def time(self) -> float:
        return self.clock._clock_ns(time.CLOCK_REALTIME) / 1e9

    def uri(self, uri: str) -> str:
        begin = "async+" * uri.startswith("async+")
        return f"{begin}wheeld://{self.daemon}" if uri.startswith(TAKEN) else uri


wheel = functools.cache(Wheel)


class Timeline:
    """As hiro's: the time passes when a test says so, and a little besides if it is not frozen."""

    besides = 0.001

    def __enter__(self) -> Timeline:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def freeze(self, *_: object) -> Timeline:
        self.besides = 0.0
        return self

    def forward(self, time: float | timedelta) -> None:
        seconds = time.total_seconds() if isinstance(time, timedelta) else time
        wheel().sleep(seconds + self.besides)


def _stand_ins() -> None:
    """Before their conftest.py is imported."""
    names = ("pymemcache", "pymemcache.client", "pymongo", "valkey", "flask_restful", "redis")
    for name in (*names, "redis.sentinel"):
        modules[name] = mock.MagicMock(__path__=[], __spec__=None)
    modules["redis"].Redis = Redis
    modules["hiro"] = SimpleNamespace(Timeline=Timeline)
    modules["pytest_lazy_fixtures"] = SimpleNamespace(lf=lambda name: SERVER)
    get = ProcessTimers.get

    def reached(process: ProcessTimers) -> Timers:
        try:
            Redis.execute_command()
        except Exception as error:
            raise DaemonNotRunning(str(error)) from error
        return get(process)

    ProcessTimers.get = reached  # type: ignore[method-assign]


_stand_ins()


def pytest_unconfigure() -> None:
    wheel().embedded.__exit__(None, None, None)


def pytest_collection_modifyitems(config: pytest.Config, items: list[Any]) -> None:
    others = []
    for item in items:
        params = item.callspec.params if hasattr(item, "callspec") else {}
        if SERVER in params.values() or item.fixturenames == SERVER:
            others.append(item)
        if "uri" in params:
            params["uri"] = wheel().uri(params["uri"])
        if "expected_instance" in params:
            in_asyncio = ".aio." in item.module.__name__
            params["expected_instance"] = AsyncWheeldStorage if in_asyncio else WheeldStorage
    items[:] = [item for item in items if item not in others]
    config.hook.pytest_deselected(items=others)


def pytest_collection_finish() -> None:
    """From here on their modules have the wheel's time."""
    clocks = {
        time: SimpleNamespace(**{**vars(time), "time": wheel().time, "sleep": wheel().sleep}),
        asyncio: SimpleNamespace(**{**vars(asyncio), "sleep": wheel().async_sleep}),
    }
    for name, module in list(modules.items()):
        if name.split(".")[0] in ("tests", "limits", "flask_limiter") and name not in REAL_TIME:
            for clock, ours in clocks.items():
                if vars(module).get(clock.__name__) is clock:
                    setattr(module, clock.__name__, ours)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: Any) -> bool | None:
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


@pytest.fixture(autouse=True)
def anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is taken, a minute has begun, and a Limiter of Flask has our storage."""
    wheel().storage.reset()
    wheel().sleep(60.303 - wheel().time() % 60)
    if (flask := modules.get("flask_limiter._extension")) is None:
        return
    make = flask.storage_from_string

    def ours(uri: str, **options: Any) -> Any:
        storage = make(wheel().uri(uri), **options)
        storage.storage = Flushed(storage.storage)
        storage.storage.flushall = storage.reset
        return storage

    monkeypatch.setattr(flask, "storage_from_string", ours)


@pytest.fixture(scope="session")
def docker_services() -> Any:
    return mock.MagicMock()


@pytest.fixture
def mocker() -> Iterator[Any]:
    with contextlib.ExitStack() as stack:

        def spy(of: Any, name: str) -> Any:
            patch = mock.patch.object(of, name, wraps=getattr(of, name))
            return stack.enter_context(patch)

        yield SimpleNamespace(spy=spy)


@pytest.fixture
def check() -> Any:
    return SimpleNamespace(check_func=lambda function: function)
