"""The command: `python -m examples.broker`."""

from __future__ import annotations

import asyncio
import json
import signal
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

import wheeld
from examples.broker.load import account
from examples.broker.load.demo import Demo
from examples.broker.parent import Broker, BrokerFailed
from examples.broker.settings import Settings
from wheeld_client import WheelError

app = typer.Typer(
    help="A Kafka broker of several processes, on wheeld's purgatory, pool and Intake.",
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
Quota = Annotated[
    list[str], typer.Option("--quota", help="CLIENT=PRODUCE,FETCH: bytes per second; repeatable.")
]


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
    quota: Quota = [],  # noqa: B006  (typer copies it)
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
            quotas=dict(_quota(text) for text in quota),
        )
        asyncio.run(_serve(settings))


@app.command()
def demo(
    records: Annotated[int, typer.Option(min=1, help="Records that each producer sends.")] = 3000,
    rate: Annotated[
        float, typer.Option(min=1, help="Records per second of each producer.")
    ] = 300.0,
    kills: Annotated[int, typer.Option(min=0, help="Processes to kill during the run.")] = 12,
    workers: Workers = 3,
    followers: Followers = 2,
    seed: Annotated[int, typer.Option(min=0, help="Seed that chooses what to kill.")] = 1,
    as_json: Annotated[bool, typer.Option("--json", help="Print the account as JSON.")] = False,
) -> None:
    """Run a broker and all installed clients, kill processes, and account for every record.

    Exit code 1 unless every acknowledged record is in the log once and each group has read it once.
    """
    with reporting(), place(None, None, "requests=64M") as (where, daemon):
        least = 2 if followers else 1
        settings = Settings(
            where, daemon, 0, workers=workers, followers=followers, min_in_sync=least
        )
        found = asyncio.run(Demo(settings, records, rate, kills, seed).run())
    if as_json:
        print(json.dumps(found, indent=1))
    else:
        Console().print(account.table(found))
        for example in found["examples"]:
            print(example)
    raise typer.Exit(0 if found["exact"] else 1)


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


def _quota(text: str) -> tuple[str, dict[str, int]]:
    client, _, rates = text.rpartition("=")
    produce, _, fetch = rates.partition(",")
    if not (client and produce.isdecimal() and fetch.isdecimal()):
        raise typer.BadParameter(f"got {text!r}, expected CLIENT=BYTES,BYTES", param_hint="--quota")
    return client, {"produce": max(1, int(produce)), "fetch": max(1, int(fetch))}


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
