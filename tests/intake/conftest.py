"""The event loops that run the tests of the intake."""

from collections.abc import Awaitable, Callable

import pytest
import uvloop

import intake_peers
from model_pool import ModelPool


@pytest.fixture
def run_async() -> Callable[[Callable[[], Awaitable[None]]], None]:
    return intake_peers.run


@pytest.fixture(autouse=True)
def new_pools(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ModelPool, "made", [])


@pytest.fixture(autouse=True)
def new_loop(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if getattr(request, "param", "") == "uvloop":
        uvloop.new_event_loop().close()  # the first one opens descriptors for all
        monkeypatch.setattr(intake_peers, "make_loop", uvloop.new_event_loop)
