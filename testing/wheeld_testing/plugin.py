"""The pytest plugin: its fixtures, its marker, and `async def` tests that run on a wheel's loop.

Every run of pytest in an environment with wheeld loads this file, so it imports no other part of
wheeld until a test asks for a wheel.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Callable, Generator, Iterator
from typing import TYPE_CHECKING, Any, Final

import pytest
from _pytest.fixtures import resolve_fixture_function

from wheeld_testing.fixtures import wheel_fixture

if TYPE_CHECKING:
    from wheeld import ForkServer
    from wheeld_testing.wheel import Wheel

SCOPES: Final = ("session", "package", "module", "class", "function")

wheel = wheel_fixture()


@pytest.fixture(scope="session")
def wheel_server() -> Iterator[ForkServer]:
    """The process that forks the wheels of this run's tests."""
    from wheeld import ForkServer

    with ForkServer() as server:
        yield server


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "wheel(leaks=False, **options): options of the daemon behind the fixture `wheel`, as of "
        "wheeld.embedded; with leaks=True the test may leave workers and timers behind",
    )


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
) -> Generator[None, object, object]:
    """Run an async fixture on the wheel's loop, if its test runs there."""
    made, item = fixturedef.func, request._pyfuncitem
    many = inspect.isasyncgenfunction(made)
    if not (many or inspect.iscoroutinefunction(made)) or _test_of(item) is None:
        return (yield)
    if (found := _wheel_for(fixturedef, request)) is None:
        return (yield)
    call: Any = resolve_fixture_function(fixturedef, request)

    def on_the_loop(**arguments: Any) -> Any:
        if not many:
            return found._run_shared(call(**arguments))
        steps = call(**arguments)

        async def step() -> Any:
            return await anext(steps)

        def finish() -> None:
            with contextlib.suppress(StopAsyncIteration):
                found._run_shared(step())
                raise ValueError(f"the async fixture {fixturedef.argname!r} yields more than once")

        value = found._run_shared(step())
        request.addfinalizer(finish)
        return value

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fixturedef, "func", on_the_loop)
        return (yield)


def _wheel_for(fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest) -> Wheel | None:
    """The wheel of the test, if this fixture may use it by its scope."""
    known = request._pyfuncitem._fixtureinfo.name2fixturedefs
    for name in request.fixturenames:
        last = known[name][-1] if name in known else None
        if last is None or SCOPES.index(last.scope) > SCOPES.index(fixturedef.scope):
            continue
        if getattr(last.func, "gives_wheel", False) or name in fixturedef.argnames:
            from wheeld_testing.wheel import Wheel

            if isinstance(value := request.getfixturevalue(name), Wheel):
                return value
    return None


def _test_of(item: pytest.Item) -> Callable[..., Any] | None:
    """The coroutine function of an async test, unless another plugin should run it."""
    test = getattr(item, "obj", None)
    marks = {mark.name for part in item.listchain()[:-1] for mark in part.own_markers}
    marks |= {mark.name for mark in getattr(test, "pytestmark", ())}
    if marks & {"asyncio", "anyio", "trio"}:
        return None
    if item.get_closest_marker("asyncio") is not None:
        if item.config.getini("asyncio_mode") != "auto":
            return None
        test = getattr(test, "__wrapped__", test)  # pytest-asyncio's own call of it, on its loop
    elif any(item.get_closest_marker(name) for name in ("anyio", "trio")):
        return None
    return test if inspect.iscoroutinefunction(test) else None


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run an `async def` test that uses a wheel on the wheel's loop, unless another plugin runs
    it."""
    if "wheeld_testing.wheel" not in sys.modules or (test := _test_of(pyfuncitem)) is None:
        return None
    from wheeld_testing.wheel import Wheel

    values = pyfuncitem.funcargs.values()
    found = next((value for value in values if isinstance(value, Wheel)), None)
    if found is None:
        return None
    names = pyfuncitem._fixtureinfo.argnames
    found._run_test(test(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True
