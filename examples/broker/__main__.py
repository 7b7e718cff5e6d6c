"""The command: `python -m examples.broker`."""

from __future__ import annotations

import asyncio
import signal
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Annotated

import typer

import wheeld
from examples.broker.parent import Broker, BrokerFailed
from examples.broker.settings import Settings
from wheeld_client import WheelError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

Port = Annotated[int, typer.Option(min=0, max=65535, help="0: choose a free one.")]
Workers = Annotated[int, typer.Option(min=1, max=32, help="Processes that accept on the port.")]
Followers = Annotated[int, typer.Option(min=0, max=8, help="Processes that keep a replica.")]
Directory = Annotated[
    Path | None, typer.Option(help="Directory for logs and groups.", show_default="temporary")
]
Daemon = Annotated[
    str | None, typer.Option("--name", help="A running wheeld daemon.", show_default="an own one")
]
PoolBytes = Annotated[str, typer.Option(help="Memory for requests, with a private daemon.")]
MinInSync = Annotated[int, typer.Option(min=1, help="min.insync.replicas; the leader counts.")]


@app.callback()
def program() -> None:
    """A Kafka broker of several processes, on wheeld's purgatory, pool and Intake."""


@app.command()
def start(
    port: Port = 9092,
    workers: Workers = 2,
    followers: Followers = 2,
    min_in_sync: MinInSync = 1,
    directory: Directory = None,
    name: Daemon = None,
    pool: Annotated[str, typer.Option(help="The daemon's pool for requests.")] = "requests",
    pool_bytes: PoolBytes = "64M",
) -> None:
    """Run a broker until Ctrl-C or SIGTERM."""
    with reporting(), place(directory, name, f"{pool}={pool_bytes}") as (where, daemon):
        settings = Settings(
            where,
            daemon,
            port,
            pool=pool,
            workers=workers,
            followers=followers,
            min_in_sync=min_in_sync,
        )
        asyncio.run(_serve(settings))


async def _serve(settings: Settings) -> None:
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


@contextmanager
def place(directory: Path | None, daemon: str | None, pool: str) -> Iterator[tuple[str, str]]:
    """A directory and a daemon; those that were not given exist only during the block."""
    with ExitStack() as stack:
        if directory is None:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="broker-")))
        if daemon is None:
            options = {"capacity": 1 << 18, "payload_bytes": 256, "pools": [pool]}
            daemon = stack.enter_context(wheeld.embedded(**options))
        yield str(directory.resolve()), daemon


@contextmanager
def reporting() -> Iterator[None]:
    """Turn errors into one line and an exit code; SIGTERM acts like Ctrl-C."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except (BrokerFailed, WheelError, OSError) as error:
        typer.echo(f"broker: {error}", err=True)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        raise typer.Exit(130) from None


if __name__ == "__main__":
    app()
