"""wheeld: a timer daemon for the processes of one Linux host.

Start a daemon with the command `wheeld start`, or a private one for this program with
`wheeld.embedded()`; use it through `wheeld_client`. `wheeld.advance()` moves a virtual clock.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wheeld.embedding import EmbeddedDaemon, embedded
    from wheeld.forkserver import ForkServer
    from wheeld.virtual import advance

__all__ = ["EmbeddedDaemon", "ForkServer", "advance", "embedded"]
__version__ = "0.1.0"

_HOMES = {"advance": "virtual", "ForkServer": "forkserver"}


def __getattr__(name: str) -> Any:
    """Load what programs use on first use: the processes of a daemon are modules of this package,
    load it first, and need none of that."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"wheeld.{_HOMES.get(name, 'embedding')}"), name)
