"""The commands that run a broker, or load one."""

from __future__ import annotations

import asyncio
import json
import signal
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any

import typer

import wheeld
from examples.broker import account, report
from examples.broker.client import NoAnswer
from examples.broker.client_commands import DEFAULT_PORT, Host, Port
from examples.broker.demo import demo as run_demo
from examples.broker.demo import run_load
from examples.broker.load import Load
from examples.broker.parent import Broker, BrokerFailed
from examples.broker.protocol import is_name
from examples.broker.settings import Settings
from examples.broker.workload import Plan, PlanError
from wheeld_client import WheelError

INEXACT, WRONG_INPUT = 1, 2

Workers = Annotated[int, typer.Option(min=1, max=32, help="Processes that accept on the port.")]
Followers = Annotated[int, typer.Option(min=0, max=8, help="Processes that keep a replica.")]
Topics = Annotated[list[str], typer.Option("--topic", help="NAME=PARTITIONS; repeatable.")]
Directory = Annotated[
    Path | None, typer.Option(help="Where logs and groups are.", show_default="temporary")
]
Daemon = Annotated[
    str | None, typer.Option("--name", help="A running wheeld daemon.", show_default="an own one")
]
Pool = Annotated[str, typer.Option(help="The daemon's memory pool for requests.")]
PoolBytes = Annotated[str, typer.Option(help="Its size, if the daemon is an own one.")]
Connections = Annotated[int, typer.Option(min=1, help="How many.")]
Requests = Annotated[int, typer.Option(min=0, help="In all; 0: until --seconds are over.")]
Seconds = Annotated[float, typer.Option(min=0, help="End after so many; 0: after --requests.")]
Rate = Annotated[float, typer.Option(min=0, help="Requests per second at most; 0: no limit.")]
Mix = Annotated[str, typer.Option(help="Weights of the kinds of requests.")]
Seed = Annotated[int, typer.Option(min=0, help="Equal seeds make equal loads.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the account as JSON.")]
DEFAULT_MIX = "produce=6,fetch=3,join=1"
DEFAULT_TOPICS = ["events=4"]


def start(
    port: Port = DEFAULT_PORT,
    workers: Workers = 2,
    followers: Followers = 2,
    topic: Topics = DEFAULT_TOPICS,
    directory: Directory = None,
    name: Daemon = None,
    pool: Pool = "requests",
    pool_bytes: PoolBytes = "16M",
) -> None:
    """Run a broker until Ctrl-C or SIGTERM."""
    with (
        _reporting(),
        _settings(port, workers, followers, topic, directory, name, pool, pool_bytes) as settings,
    ):
        asyncio.run(_serve(settings))


async def _serve(settings: Settings) -> None:
    task = asyncio.current_task()
    assert task is not None
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    with suppress(asyncio.CancelledError):
        await _run(settings)


async def _run(settings: Settings) -> None:
    async with Broker(settings) as broker:
        own = broker.settings
        print(
            f"broker on {own.host}:{own.port}: {own.workers} workers, {own.followers} followers, "
            f"{own.directory}",
            flush=True,
        )
        await broker.failed()


def demo(
    kill: Annotated[int, typer.Option(min=0, help="How many processes to kill meanwhile.")] = 6,
    requests: Requests = 3000,
    seconds: Seconds = 0.0,
    connections: Connections = 24,
    rate: Rate = 0.0,
    mix: Mix = DEFAULT_MIX,
    seed: Seed = 1,
    workers: Workers = 2,
    followers: Followers = 2,
    name: Daemon = None,
    pool: Pool = "requests",
    pool_bytes: PoolBytes = "16M",
    as_json: AsJson = False,
) -> None:
    """Run a broker under load, kill its processes, and account for every request.

    Exit code 1 when a request got no answer or two, or a record is not in the log exactly once.
    """
    with (
        _reporting(),
        _settings(0, workers, followers, DEFAULT_TOPICS, None, name, pool, pool_bytes) as settings,
    ):
        plan = _plan(connections, requests, seconds, rate, mix, seed)
        figures = asyncio.run(run_demo(settings, plan, kill))
    _finish(figures, as_json)


def load(
    requests: Requests = 2000,
    seconds: Seconds = 0.0,
    connections: Connections = 16,
    rate: Rate = 0.0,
    mix: Mix = DEFAULT_MIX,
    seed: Seed = 1,
    host: Host = "127.0.0.1",
    port: Port = DEFAULT_PORT,
    as_json: AsJson = False,
) -> None:
    """Send load to a running broker and account for every request. Exit codes as of `demo`."""

    async def run() -> dict[str, Any]:
        made = Load(_plan(connections, requests, seconds, rate, mix, seed), host, port)
        took = await run_load(made)
        figures = await account.account(made)
        return figures | {"seconds": round(took, 2)}

    with _reporting():
        figures = asyncio.run(run())
    _finish(figures, as_json)


def _finish(figures: dict[str, Any], as_json: bool) -> None:
    print(json.dumps(figures, indent=1) if as_json else report.text(figures))
    raise typer.Exit(0 if figures["exact"] else INEXACT)


def _plan(
    connections: int, requests: int, seconds: float, rate: float, mix: str, seed: int
) -> Plan:
    if seconds:
        requests = 0
    plan = Plan(connections, requests, seconds, rate, _weights(mix, "--mix"), seed=seed)
    plan.check()
    return plan


def _weights(given: str, option: str) -> dict[str, int]:
    """NAME=NUMBER,NAME=NUMBER as a dict."""
    found = {}
    for part in given.split(","):
        name, _, number = part.partition("=")
        if not is_name(name) or not number.isdecimal():
            raise typer.BadParameter(f"got {part!r}, expected NAME=NUMBER", param_hint=option)
        found[name] = int(number)
    return found


@contextmanager
def _settings(
    port: int,
    workers: int,
    followers: int,
    topics: list[str],
    directory: Path | None,
    daemon: str | None,
    pool: str,
    pool_bytes: str,
) -> Iterator[Settings]:
    """The broker's settings; what is private of daemon and directory lasts as long as the block."""
    with ExitStack() as stack:
        if directory is None:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="broker-")))
        if daemon is None:
            daemon = stack.enter_context(
                wheeld.embedded(capacity=1 << 16, pools=[f"{pool}={pool_bytes}"])
            )
        yield Settings(
            directory=str(directory.resolve()),
            daemon=daemon,
            port=port,
            pool=pool,
            workers=workers,
            followers=followers,
            topics=_weights(",".join(topics), "--topic"),
        )


@contextmanager
def _reporting() -> Iterator[None]:
    """What goes wrong becomes one line and an exit code; SIGTERM is as Ctrl-C."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    except PlanError as error:
        typer.echo(f"broker: {error}", err=True)
        raise typer.Exit(WRONG_INPUT) from None
    except (BrokerFailed, NoAnswer, WheelError, OSError) as error:
        typer.echo(f"broker: {error}", err=True)
        raise typer.Exit(INEXACT) from None
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
