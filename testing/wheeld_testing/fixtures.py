"""Fixtures that provide a wheel."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Literal, Unpack

import pytest

if TYPE_CHECKING:
    from wheeld import DaemonOptions, ForkServer
    from wheeld_testing.wheel import Wheel

Scope = Literal["session", "package", "module", "class", "function"]


def wheel_fixture(
    scope: Scope = "function", *, leaks: bool = False, **options: Unpack[DaemonOptions]
) -> Callable[[pytest.FixtureRequest, ForkServer], Iterator[Wheel]]:
    """Make a fixture that provides a `Wheel`: `small = wheel_fixture(capacity=64)`.

    Parameters
    ----------
    scope : str
        As in `pytest.fixture`.
    **options
        As in `running`. The marker `wheel` of a test overrides them.
    """

    def wheel(request: pytest.FixtureRequest, wheel_server: ForkServer) -> Iterator[Wheel]:
        """A daemon for this test alone, under virtual time that the test moves."""
        from wheeld_testing.wheel import running

        given: dict[str, Any] = {"leaks": leaks, **options}
        for marker in reversed(list(request.node.iter_markers("wheel"))):
            given.update(marker.kwargs)
        with running(wheel_server, **given) as wheel:
            yield wheel

    wheel.gives_wheel = True  # type: ignore[attr-defined]
    return pytest.fixture(scope=scope)(wheel)
