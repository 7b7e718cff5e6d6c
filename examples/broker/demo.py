"""Everything in one: a broker in a temporary directory, load, kills, and the account."""

from __future__ import annotations

import asyncio
import itertools
import random
import sys
import time
from collections import Counter
from contextlib import suppress
from typing import Any, Final

from examples.broker import account
from examples.broker.load import Load
from examples.broker.parent import Broker
from examples.broker.settings import Settings
from examples.broker.workload import Plan

PATTERN: Final = ("worker", "follower", "worker")
"""Whom to kill, in turn."""


async def kill_some(broker: Broker, load: Load, kills: int, killed: Counter[str]) -> None:
    """Kill workers and followers, evenly spread over the load's progress, not over time: so as many
    fall into it on any machine.

    Parameters
    ----------
    killed : Counter
        Counts them by role.
    """
    rng = random.Random(load.plan.seed)
    roles = [role for role in PATTERN if role == "worker" or broker.settings.followers]
    for number, role in zip(range(kills), itertools.cycle(roles), strict=False):
        await load.reached((number + 1) / (kills + 1))
        those = [child for child in broker.children if child.role == role]
        victim = rng.choice([child for child in those if child.ready.is_set()] or those)
        await victim.ready.wait()
        broker.kill(victim)
        killed[role] += 1


async def show_progress(load: Load, broker: Broker | None = None) -> None:
    """One line per second on the standard error, until cancelled."""
    began = time.monotonic()
    while True:
        await asyncio.sleep(1.0)
        deaths = f", {broker.deaths} processes died" if broker else ""
        answered, sent = load.results.answered(), load.results.sent
        line = f"{time.monotonic() - began:4.0f} s: {answered} answered of {sent} sent{deaths}"
        print(line, file=sys.stderr, flush=True)


async def run_load(load: Load, broker: Broker | None = None) -> float:
    """Run a load with progress; returns the seconds it took."""
    began = time.monotonic()
    progress = asyncio.create_task(show_progress(load, broker))
    try:
        await load.run()
    finally:
        progress.cancel()
        with suppress(asyncio.CancelledError):
            await progress
    return time.monotonic() - began


async def demo(settings: Settings, plan: Plan, kills: int) -> dict[str, Any]:
    """Run a broker under load and kills; returns the account, see `account.account`."""
    async with Broker(settings) as broker:
        load = Load(plan, broker.settings.host, broker.settings.port)
        killed: Counter[str] = Counter(worker=0, follower=0)
        killer = asyncio.create_task(kill_some(broker, load, kills, killed))
        failed = asyncio.create_task(broker.failed())
        running = asyncio.create_task(run_load(load, broker))
        try:
            await asyncio.wait({running, failed}, return_when=asyncio.FIRST_COMPLETED)
            if failed.done():
                failed.result()
            seconds = running.result()
            killer.cancel()
            await broker.all_ready()
            figures = await account.account(load)
        finally:
            for task in (killer, failed, running):
                task.cancel()
            await asyncio.gather(killer, failed, running, return_exceptions=True)
    figures |= {"killed": dict(killed), "restarts": broker.deaths, "seconds": round(seconds, 2)}
    account.add_replicas(figures, broker.settings)
    return figures
