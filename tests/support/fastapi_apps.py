"""The application of FastAPI for the tests: see `web_apps`."""

import asyncio
import os
import time
from collections.abc import MutableMapping
from typing import Any

from fastapi import Depends, FastAPI, Request

from web_apps import FOR_EVER, daemon
from wheeld_client.integrations.asgi import DeadlineMiddleware
from wheeld_client.integrations.fastapi import WheelTimers, deadline, lifespan

SOON = 0.1


def _limit(scope: MutableMapping[str, Any]) -> float:
    """Only what is to be ended has little time: a busy machine ends nothing else."""
    return SOON if scope["path"] == "/all" else FOR_EVER


app = FastAPI(lifespan=lifespan(daemon()))
app.add_middleware(DeadlineMiddleware, seconds=_limit, daemon=daemon())
ended: list[str] = []


@app.get("/quick")
async def quick(request: Request, timers: WheelTimers) -> dict[str, Any]:
    await timers.sleep(0.001)
    return {"pid": os.getpid(), "when": request.state.deadline.when() > time.monotonic()}


@app.get("/slow", dependencies=[Depends(deadline(SOON))])
async def slow() -> None:
    try:
        await asyncio.sleep(FOR_EVER)
    finally:
        ended.append("slow")


@app.get("/all")
async def under_the_middleware() -> None:
    try:
        await asyncio.sleep(FOR_EVER)
    finally:
        ended.append("all")


@app.get("/moved")
async def moved(request: Request) -> None:
    request.state.deadline.reschedule(time.monotonic() + SOON)
    await asyncio.sleep(FOR_EVER)


@app.get("/ended")
async def tell() -> list[str]:
    return ended
