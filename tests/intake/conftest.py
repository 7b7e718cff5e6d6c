"""Which event loop the tests of the intake run on."""

from __future__ import annotations

import pytest
import uvloop

import intake_peers


@pytest.fixture(autouse=True)
def new_loop(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which loop `intake_peers.run` makes."""
    if getattr(request, "param", "") == "uvloop":
        uvloop.new_event_loop().close()  # the first one opens descriptors for all
        monkeypatch.setattr(intake_peers, "make_loop", uvloop.new_event_loop)
