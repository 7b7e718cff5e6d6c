"""A shop on one host, without Redis: what its processes share is in a wheeld daemon.

    wheeld start &
    cd examples/without_redis; gunicorn -c gunicorn.conf.py shop:app

It writes what it does to the file $SHOP_LOG.
"""

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import Depends, FastAPI, HTTPException, Request
from slowapi import Limiter, _rate_limit_exceeded_handler
from slowapi.errors import RateLimitExceeded

import wheeld_client.integrations.limits  # noqa: F401 - registers wheeld://
from wheeld_client import AsyncLease, AsyncTimers, Deadlines, Jobs
from wheeld_client.integrations.fastapi import WheelTimers, deadline

DAEMON = os.environ.get("SHOP_DAEMON", "default")
WORK = float(os.environ.get("SHOP_WORK", "0.05"))  # seconds that a job takes
LOG = os.open(os.environ.get("SHOP_LOG", "shop.log"), os.O_WRONLY | os.O_APPEND | os.O_CREAT)

jobs = Jobs("shop", daemon=DAEMON)
limiter = Limiter(
    key_func=lambda request: request.path_params["customer"],
    storage_uri=f"wheeld://{DAEMON}",
    strategy="moving-window",
)


def note(*words: object) -> None:
    """One write, so that the lines of processes do not mix."""
    os.write(LOG, (" ".join(map(str, (os.getpid(), *words))) + "\n").encode())


@jobs.every(60)
def refresh() -> None:
    """Once a minute on this host, by any of its processes."""
    note("refresh begins")
    time.sleep(WORK)
    note("refresh ends")


@jobs.cron("0 3 * * *", tz="Europe/Berlin", grace=3600)
def nightly() -> None:
    """Each night."""
    note("nightly begins")
    time.sleep(WORK)
    note("nightly ends")


@jobs.task
def send_mail(customer: str) -> None:
    """When a cart has been quiet for five seconds."""
    note("mail begins", customer)
    note("mail ends", customer)


@asynccontextmanager
async def connected(app: FastAPI) -> AsyncIterator[dict[str, Any]]:
    """A process has timers, jobs and sessions from its start to its end."""
    async with AsyncTimers(DAEMON) as timers, jobs.running(timers):
        sessions = Deadlines(timers, "sessions", lambda customer: note("logged-out", customer))
        yield {"timers": timers, "sessions": sessions}


app = FastAPI(lifespan=connected)
app.state.limiter = limiter
app.add_exception_handler(RateLimitExceeded, _rate_limit_exceeded_handler)


@app.post("/login/{customer}")
async def login(customer: str, request: Request) -> None:
    """A session of 90 seconds, which each request makes longer."""
    request.state.sessions.start(customer, timeout=90)


@app.get("/me/{customer}")
async def me(customer: str, request: Request) -> None:
    """401 for who was silent for too long."""
    if not request.state.sessions.extend(customer, timeout=90):
        raise HTTPException(401, "log in again")


@app.post("/cart/{customer}")
@limiter.limit("20/minute")
async def cart(customer: str, request: Request) -> None:
    """A rate limit for each customer, and one mail after the last change."""
    send_mail.schedule(5, customer, key=("mail", customer), on_conflict="replace")


@app.get("/report")
async def report(timers: WheelTimers) -> int:
    """One process at a time makes it."""
    lease = AsyncLease(timers, "report", 30)
    if not lease.try_acquire():
        raise HTTPException(409, "it is being made")
    note("report begins", lease.token)
    await asyncio.sleep(0.01)
    note("report ends", lease.token)
    lease.release()
    return lease.token


@app.get("/slow", dependencies=[Depends(deadline(2.0))])
async def slow() -> None:
    """504 after two seconds."""
    note("slow begins")
    await asyncio.sleep(3600)
