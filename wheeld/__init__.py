"""wheeld: a timer daemon for the processes of one Linux host.

Start a daemon with the command `wheeld start`, or a private one for this program with
`wheeld.embedded()`; use it through `wheeld_client`. `wheeld.advance()` moves a virtual clock.
"""

from wheeld.embedded import EmbeddedDaemon, embedded
from wheeld.virtual import advance

__all__ = ["EmbeddedDaemon", "advance", "embedded"]
__version__ = "0.1.0"
