"""Shared by the tests of the purgatory: operations that wait in it, what is watched, processes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from local_wheel import LocalTimers, LocalWheel
from purgatory_crew import NAME, Crew
from purgatory_ops import WatchView, loop_purgatory
from wheeld_client import Purgatory

if TYPE_CHECKING:
    from daemons import Daemon


@pytest.fixture(params=["threads", "loop"])
def purgatory(request: pytest.FixtureRequest, timers: LocalTimers) -> Iterator[Purgatory]:
    """For threads, and for a loop: there `begin` watches, and each future must agree."""
    if request.param == "threads":
        yield Purgatory(timers, NAME)
    else:
        with loop_purgatory(timers, NAME) as purgatory:
            yield purgatory


@pytest.fixture
def purgatories(workers: list[LocalTimers]) -> list[Purgatory]:
    return [Purgatory(timers, NAME) for timers in workers]


@pytest.fixture
def view(wheel: LocalWheel) -> WatchView:
    return WatchView(wheel.shared("watch"))


@pytest.fixture
def crew(daemon: Daemon, runtime_dir: Path) -> Iterator[Crew]:
    crew = Crew(daemon, runtime_dir / "ledger")
    yield crew
    crew.end()
