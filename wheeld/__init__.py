"""wheeld: a timer daemon for the processes of one Linux host.

Start a daemon with the command `wheeld start`, or a private one for this program with
`wheeld.embedded()`; use it through `wheeld_client`.
"""

from wheeld.embedded import embedded

__all__ = ["embedded"]
__version__ = "0.1.0"
