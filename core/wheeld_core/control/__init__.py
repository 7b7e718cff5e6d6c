"""The control socket: connections, messages, and the time namespace of a peer.

Connection(directory).request(Request.STATUS)
"""

from wheeld_core.control.connection import (
    MAX_ANSWER,
    MAX_MESSAGE,
    MOST_DESCRIPTORS,
    Connection,
    Message,
    ask,
    decode,
    encode,
    failure,
    greet,
)

__all__ = [
    "MAX_ANSWER",
    "MAX_MESSAGE",
    "MOST_DESCRIPTORS",
    "Connection",
    "Message",
    "ask",
    "decode",
    "encode",
    "failure",
    "greet",
]
