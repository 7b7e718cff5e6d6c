"""Find a daemon and connect to it, even while its supervisor is being restarted."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from wheeld_client.connection.options import ConnectOptions
from wheeld_core import presence, runtime
from wheeld_core.errors import DaemonNotRunning

if TYPE_CHECKING:
    from wheeld_client.connection.starting import Starter

Client = TypeVar("Client")
PAUSE: Final = 0.02


def arrive(
    enter: Callable[[Path], Client],
    name: str,
    runtime_dir: str | os.PathLike[str] | None,
    options: ConnectOptions,
) -> Client:
    """Find a daemon as `connect` does, and call `enter` with its runtime directory. Retry for
    `options.timeout` seconds while no daemon answers but the shared memory of a daemon that was not
    stopped exists; with `options.start`, until one has been started.

    DaemonNotRunning: there is none; raised at once if no daemon left any memory.
    """
    give_up = time.monotonic() + options.timeout
    with contextlib.ExitStack() as at_end:
        starter: Starter | None = None
        while True:
            try:
                return enter(runtime.find(name, runtime_dir))
            except DaemonNotRunning:
                over = time.monotonic() >= give_up
                if options.start == "if-needed":
                    if starter is None:
                        from wheeld_client.connection.starting import Starter

                        starter = Starter(name, runtime_dir)
                        at_end.callback(starter.close)
                    if over:
                        raise starter.overdue(options.timeout) from None
                    starter.step()
                elif over or not _is_left(name, runtime_dir):
                    raise
            time.sleep(PAUSE)


def _is_left(name: str, runtime_dir: str | os.PathLike[str] | None) -> bool:
    return any(map(presence.is_left, runtime.candidates(name, runtime_dir)))
