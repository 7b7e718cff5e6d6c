"""Tests that are coroutines: run by the fixture `run_async`, which a folder may have its own of."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import pytest

from wheeld_testing.wheel import Wheel

Body = Callable[..., Awaitable[None]]


@pytest.fixture
def run_async() -> Callable[[Body], None]:
    return lambda body: asyncio.run(body())  # type: ignore[arg-type]


def with_timers(test: Body | None = None, **options: Any) -> Any:
    """Mark a test that the fixture `run` of its module runs, and gives the first two arguments.

    The others are fixtures; `options` are for `run`.
    """
    if test is None:
        return partial(with_timers, **options)
    signature = inspect.signature(test)
    first, _, *others = signature.parameters.values()
    parameters = [first.replace(name="run"), *others]
    test.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    test.with_timers = options  # type: ignore[attr-defined]
    return test


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine; other tests are pytest's own matter, and those that use a
    wheel of `wheeld_testing` are its plugin's."""
    test = pyfuncitem.obj
    if not inspect.iscoroutinefunction(test):
        return None
    if any(isinstance(value, Wheel) for value in pyfuncitem.funcargs.values()):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    options = getattr(test, "with_timers", None)
    if options is None:
        pyfuncitem._request.getfixturevalue("run_async")(partial(test, **arguments))
    else:
        arguments.pop("run")(partial(test, **arguments), **options)
    return True
