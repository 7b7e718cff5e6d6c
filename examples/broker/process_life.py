"""What worker and follower processes have in common: how they start and end."""

from __future__ import annotations

import asyncio
import resource
import signal
import sys
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any, Final

READY: Final = "ready"


async def work(body: Coroutine[Any, Any, None]) -> None:
    """Report to the parent that this process is ready; run the body until it must end.

    That is at SIGTERM and at the end of the standard input, which the parent holds: so its children
    end with it, however it ends.
    """
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))  # each partition has an open file
    loop, task = asyncio.get_running_loop(), asyncio.ensure_future(body)
    loop.add_signal_handler(signal.SIGTERM, task.cancel)
    loop.add_reader(sys.stdin.fileno(), task.cancel)
    print(READY, flush=True)
    with suppress(asyncio.CancelledError):
        await task
    loop.remove_reader(sys.stdin.fileno())
