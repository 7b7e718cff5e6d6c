"""Tests of programs that use wheeld: a wheel for each test, and time that the test moves.

With pytest nothing needs to be imported: the fixture is `wheel`. `running` and `wheel_fixture` are
for other frameworks, and for fixtures with other options.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wheeld_testing.fixtures import wheel_fixture
    from wheeld_testing.wheel import Wheel, running

__all__ = ["Wheel", "running", "wheel_fixture"]

_HOMES = {"wheel_fixture": "fixtures"}


def __getattr__(name: str) -> Any:
    """Load submodules on use: each run of pytest in this environment loads the package."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"{__name__}.{_HOMES.get(name, 'wheel')}"), name)
