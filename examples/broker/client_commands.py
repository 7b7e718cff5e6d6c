"""The commands that send one request, or follow a topic."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Coroutine
from typing import Annotated, Any

import typer

from examples.broker.client import BrokerError, Client, NoAnswer

DEFAULT_PORT = 9290
REFUSED, UNREACHABLE = 1, 3

Host = Annotated[str, typer.Option(help="Where the broker listens.")]
Port = Annotated[int, typer.Option(min=0, envvar="BROKER_PORT", help="Its port.")]
Topic = Annotated[str, typer.Option(help="Topic.")]
Number = Annotated[int, typer.Option(min=0, help="Partition.")]
Patience = Annotated[float, typer.Option(min=0.01, help="Seconds to go on trying to connect.")]


def produce(
    text: Annotated[str, typer.Argument(help="What to append.")],
    topic: Topic = "events",
    partition: Number = 0,
    acks: Annotated[str, typer.Option(help="all: wait for the followers; leader: do not.")] = "all",
    timeout: Annotated[float, typer.Option(min=0, help="Seconds to wait for them.")] = 10.0,
    host: Host = "127.0.0.1",
    port: Port = DEFAULT_PORT,
    patience: Patience = 30.0,
) -> None:
    """Append one record and print its offset."""

    async def run(client: Client) -> None:
        answer = await client.produce(topic, partition, text.encode(), acks=acks, max_wait=timeout)
        _say(answer.fields)

    _run(Client(host, port, patience=patience), run)


def fetch(
    topic: Topic = "events",
    partition: Number = 0,
    offset: Annotated[int, typer.Option(min=0, help="The first record.")] = 0,
    min_bytes: Annotated[int, typer.Option(min=0, help="Wait for so many bytes ...")] = 1,
    max_wait: Annotated[float, typer.Option(min=0, help="... for so many seconds.")] = 1.0,
    host: Host = "127.0.0.1",
    port: Port = DEFAULT_PORT,
    patience: Patience = 30.0,
) -> None:
    """Print the records from an offset on, as far as one answer goes."""

    async def run(client: Client) -> None:
        parts = await client.fetch(
            {(topic, partition): offset}, min_bytes=min_bytes, max_wait=max_wait
        )
        for part in parts:
            for at, record in enumerate(part.records, part.first):
                print(f"{at}\t{record.value.decode(errors='replace')}")

    _run(Client(host, port, patience=patience), run)


def tail(
    topic: Topic = "events",
    offset: Annotated[
        int | None,
        typer.Option(min=0, help="The first record of each partition.", show_default="now"),
    ] = None,
    count: Annotated[int, typer.Option(min=0, help="End after so many; 0: never.")] = 0,
    host: Host = "127.0.0.1",
    port: Port = DEFAULT_PORT,
    patience: Patience = 30.0,
) -> None:
    """Print a topic's records as they come, from all its partitions."""

    async def run(client: Client) -> None:
        positions = {
            (one["topic"], one["partition"]): one["high_watermark"] if offset is None else offset
            for one in (await client.status())["partitions"]
            if one["topic"] == topic
        }
        printed = 0
        while positions:
            for part in await client.fetch(positions, max_wait=30.0):
                for at, record in enumerate(part.records, part.first):
                    value = record.value.decode(errors="replace")
                    print(f"{part.partition}\t{at}\t{value}", flush=True)
                    printed += 1
                    if printed == count:
                        return
                positions[part.topic, part.partition] = part.first + len(part.records)

    _run(Client(host, port, patience=patience), run)


def join(
    group: Annotated[str, typer.Argument(help="Name of the group.")],
    size: Annotated[int, typer.Option(min=1, help="How many members it has.")] = 2,
    member: Annotated[
        str | None, typer.Option(help="Name of this one.", show_default="made")
    ] = None,
    timeout: Annotated[float, typer.Option(min=0, help="Seconds to wait for the others.")] = 30.0,
    host: Host = "127.0.0.1",
    port: Port = DEFAULT_PORT,
    patience: Patience = 30.0,
) -> None:
    """Join a group: wait until all its members are there."""

    async def run(client: Client) -> None:
        answer = await client.join(group, member or f"member-{os.getpid()}", size, max_wait=timeout)
        _say(answer.fields)

    _run(Client(host, port, patience=patience), run)


def status(host: Host = "127.0.0.1", port: Port = DEFAULT_PORT, patience: Patience = 30.0) -> None:
    """Print what one of the workers sees: partitions, waiting requests, memory."""

    async def run(client: Client) -> None:
        print(json.dumps(await client.status(), indent=1))

    _run(Client(host, port, patience=patience), run)


def _say(fields: dict[str, Any]) -> None:
    if fields.get("error"):
        raise BrokerError(fields)
    print(json.dumps({name: value for name, value in fields.items() if name != "error"}))


def _run(client: Client, run: Any) -> None:
    """Run one command; an error becomes a line and an exit code."""

    async def whole() -> None:
        async with client:
            await run(client)

    task: Coroutine[Any, Any, None] = whole()
    try:
        asyncio.run(task)
    except BrokerError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(REFUSED) from None
    except NoAnswer as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(UNREACHABLE) from None
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
