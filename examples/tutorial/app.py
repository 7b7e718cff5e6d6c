import asyncio

from fastapi import FastAPI

from wheeld_client.integrations.asgi import DeadlineMiddleware

app = FastAPI()
app.add_middleware(DeadlineMiddleware, seconds=0.5, group="web")


@app.get("/hello")
async def hello() -> str:
    return "hello"


@app.get("/slow")
async def slow() -> str:
    await asyncio.sleep(60)
    return "never"
