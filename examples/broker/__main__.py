"""The command: `python -m examples.broker start`, a broker until Ctrl-C or SIGTERM."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
import tempfile
from contextlib import ExitStack, suppress
from pathlib import Path

import wheeld
from examples.broker.parent import Broker, BrokerFailed
from examples.broker.settings import Settings
from wheeld_client import WheelError

parser = argparse.ArgumentParser(
    prog="python -m examples.broker", formatter_class=argparse.ArgumentDefaultsHelpFormatter
)
start = parser.add_subparsers(required=True).add_parser("start", help="run a broker")
start.add_argument("--port", type=int, default=9092, help="0: choose a free one")
start.add_argument("--workers", type=int, default=2, help="processes that accept on the port")
start.add_argument("--followers", type=int, default=2, help="processes that keep a replica")
start.add_argument("--min-in-sync", type=int, default=1, help="min.insync.replicas")
start.add_argument("--directory", type=Path, help="logs and groups; else temporary")
start.add_argument("--name", help="a running wheeld daemon; else an own one")
start.add_argument("--pool", default="requests", help="the daemon's pool for requests")
start.add_argument("--pool-bytes", default="64M", help="its size, with an own daemon")


async def serve(settings: Settings) -> None:
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    with suppress(asyncio.CancelledError):
        async with Broker(settings) as broker:
            own = broker.settings
            processes = f"{own.workers} workers, {own.followers} followers"
            print(f"broker on {own.host}:{own.port}: {processes}, {own.directory}", flush=True)
            await broker.failed()


def main() -> None:
    given = vars(parser.parse_args())
    directory, name, size = (given.pop(key) for key in ("directory", "name", "pool_bytes"))
    with ExitStack() as stack:
        if directory is None:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="broker-")))
        if name is None:
            pools = [f"{given['pool']}={size}"]
            daemon = wheeld.embedded(capacity=1 << 18, payload_bytes=256, pools=pools)
            name = str(stack.enter_context(daemon))
        asyncio.run(serve(Settings(str(directory.resolve()), name, **given)))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        main()
    except (BrokerFailed, WheelError, OSError) as error:
        sys.exit(f"broker: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
