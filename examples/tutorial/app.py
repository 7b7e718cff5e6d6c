import asyncio

from fastapi import FastAPI, HTTPException

from wheeld_client import AsyncRateLimit, Jobs
from wheeld_client.integrations.asgi import DeadlineMiddleware
from wheeld_client.integrations.fastapi import WheelTimers, lifespan

jobs = Jobs("shop")
app = FastAPI(lifespan=lifespan(jobs=jobs))
app.add_middleware(DeadlineMiddleware, seconds=0.5, group="web")


def note(text: str) -> None:
    with open("done.txt", "a") as file:
        print(text, file=file)


@jobs.task  # by any of the workers
def send_mail(user: str) -> None:
    note(f"mail to {user}")


@jobs.cron("0 3 * * *", tz="Europe/Berlin")  # by one of them
def nightly() -> None:
    note("the work of a night")


@app.get("/hello")
async def hello() -> str:
    return "hello"


@app.get("/slow")
async def slow() -> str:
    await asyncio.sleep(60)
    return "never"


@app.post("/cart/{user}")
async def cart(user: str, timers: WheelTimers) -> str:
    if not AsyncRateLimit(timers, "carts", 3, per=60).try_acquire(key=user):
        raise HTTPException(429, "three changes a minute")
    send_mail.schedule(1, user, key=("mail", user), on_conflict="replace")
    return "there will be a mail"
