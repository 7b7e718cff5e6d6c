"""The application of FastAPI for the tests: see `web_apps`."""

import asyncio
import os
import time
from typing import Any

from fastapi import Depends, FastAPI, Request

from web_apps import FOR_EVER, LIMIT, daemon
from wheeld_client.integrations.asgi import DeadlineMiddleware
from wheeld_client.integrations.fastapi import WheelTimers, deadline, lifespan

app = FastAPI(lifespan=lifespan(daemon()))
app.add_middleware(DeadlineMiddleware, seconds=3 * LIMIT, daemon=daemon())
ended: list[str] = []


@app.get("/quick")
async def quick(request: Request, timers: WheelTimers) -> dict[str, Any]:
    await timers.sleep(0.001)
    return {"pid": os.getpid(), "when": request.state.deadline.when() > time.monotonic()}


@app.get("/slow", dependencies=[Depends(deadline(LIMIT))])
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
async def moved(request: Request, timers: WheelTimers) -> str:
    request.state.deadline.reschedule(None)
    await timers.sleep(4 * LIMIT)
    return "moved"


@app.get("/ended")
async def tell() -> list[str]:
    return ended
