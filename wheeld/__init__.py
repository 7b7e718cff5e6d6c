"""wheeld: a timer daemon for the processes of one Linux host.

Start a daemon with the command `wheeld start`, or a private one for this program with
`wheeld.embedded()`; use it through `wheeld_client`. `wheeld.advance()` moves a virtual clock.

A start passes through `cli` (or `embedding`, `forkserver`), reads its options (`config`), makes
or takes over its memory (`resources`, `tables`, `snapshot`), starts its `processes` (`clock`,
`recorder`, `metrics`) and serves (`supervisor`). `fsck`, `doctor` and `demo` are commands.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wheeld.config.arguments import DaemonOptions as DaemonOptions  # for signatures only
    from wheeld.embedding import EmbeddedDaemon, advance, embedded
    from wheeld.forkserver import ForkServer

    __version__: str

__all__ = ["EmbeddedDaemon", "ForkServer", "advance", "embedded"]


def __getattr__(name: str) -> Any:
    """Load public names on first use: the processes of a daemon are modules of this package, and
    need none of these names."""
    if name == "__version__":
        from importlib import metadata

        return metadata.version("wheeld")
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    home = "forkserver" if name == "ForkServer" else "embedding"
    return getattr(importlib.import_module(f"wheeld.{home}"), name)
