"""Whether a client and its daemon interpret the shared memory alike."""

from __future__ import annotations

from wheeld_core import _native
from wheeld_core.control import Message, time_namespace
from wheeld_core.errors import LayoutMismatch, WheelError


def check(message: Message) -> None:
    """Check the versions and clocks that a client sends in its hello, or when it reconnects.
    `LayoutMismatch`: it has another version. `WheelError`: its clocks differ from the daemon's."""
    theirs = (message.get("layout"), message.get("fingerprint"))
    if theirs != (_native.LAYOUT_VERSION, _native.FINGERPRINT):
        raise LayoutMismatch(
            f"the daemon has layout version {_native.LAYOUT_VERSION} ({_native.FINGERPRINT}), the "
            f"client version {theirs[0]} ({theirs[1]}): install the same wheeld on both sides"
        )
    ours = time_namespace.of_this_process()
    if apart := time_namespace.difference(ours, message.get("time")):
        raise WheelError(
            f"this process is in another time namespace ({apart}): its timers would fire early "
            "or late; run both with the same time offsets"
        )
