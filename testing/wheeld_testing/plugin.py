"""The pytest plugin: its fixtures, its marker, and `async def` tests that run on a wheel's loop.

Every run of pytest in an environment with wheeld loads this file: it imports nothing of wheeld's
until a test asks for a wheel.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from wheeld_testing.fixtures import wheel_fixture

if TYPE_CHECKING:
    from wheeld import ForkServer
    from wheeld_testing.wheel import Wheel

wheel = wheel_fixture()


@pytest.fixture(scope="session")
def wheel_server() -> Iterator[ForkServer]:
    """The process that forks the wheels of this run's tests."""
    from wheeld import ForkServer

    with ForkServer() as server:
        yield server


def pytest_configure(config: pytest.Config) -> None:
    """Declare the marker."""
    config.addinivalue_line(
        "markers",
        "wheel(leaks=False, **options): options of the daemon behind the fixture `wheel`, as of "
        "wheeld.embedded; with leaks=True the test may leave workers and timers behind",
    )


def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run an `async def` test that uses a wheel, and that no other plugin runs, on its loop."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj) or "wheeld_testing.wheel" not in sys.modules:
        return None
    if any(pyfuncitem.get_closest_marker(name) for name in ("asyncio", "anyio", "trio")):
        return None
    found = _wheel_of(pyfuncitem)
    if found is None:
        return None
    names = pyfuncitem._fixtureinfo.argnames
    found.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


def _wheel_of(item: pytest.Function) -> Wheel | None:
    from wheeld_testing.wheel import Wheel

    return next((value for value in item.funcargs.values() if isinstance(value, Wheel)), None)
