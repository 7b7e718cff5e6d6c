"""An application with a job, as each server runs it: in its processes, without a request.

$WHEELD_TEST_DAEMON is the daemon's runtime directory. Each run writes lines to the file `log` of
$WHEELD_TEST_PLACE: "begin PID TIME" and "end PID TIME", with the wheel's seconds. Where there is a
file `die`, one run removes it, and kills its process.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from pathlib import Path
from typing import Any

from web_apps import daemon
from wheeld_client import Jobs

PLACE = Path(os.environ["WHEELD_TEST_PLACE"])
MINUTE = 60

jobs = Jobs("shop", daemon=daemon())


def _say(what: str) -> None:
    now = jobs._process.get().now_ns() // 10**9
    with (PLACE / "log").open("a") as file:
        file.write(f"{what} {os.getpid()} {now}\n")


@jobs.every(MINUTE, name="refresh")
def refresh() -> None:
    _say("begin")
    try:
        (PLACE / "die").unlink()
    except FileNotFoundError:
        _say("end")
    else:
        os.kill(os.getpid(), signal.SIGKILL)


@jobs.task
async def on_the_loop() -> None:
    asyncio.get_running_loop()
    _say(threading.current_thread().name)


def wsgi_app() -> Any:
    def app(environ: dict[str, Any], start: Any) -> list[bytes]:
        start("200 OK", [("Content-Type", "text/plain")])
        return [str(os.getpid()).encode()]

    return app


def fastapi_app() -> Any:
    from fastapi import FastAPI

    from wheeld_client.integrations.fastapi import lifespan

    return FastAPI(lifespan=lifespan(daemon(), jobs=jobs))


def asgi_app() -> Any:
    from fastapi import FastAPI

    from wheeld_client.integrations.asgi import JobsMiddleware

    app = FastAPI()
    app.add_middleware(JobsMiddleware, jobs="jobs_apps:jobs")
    return app


def _set_up_django(*apps: str) -> None:
    import django
    from django.conf import settings

    urls = type("urls", (), {"urlpatterns": []})
    settings.configure(
        ROOT_URLCONF=urls, INSTALLED_APPS=list(apps), WHEELD={"jobs": "jobs_apps:jobs"}
    )
    django.setup()


def django_app() -> Any:
    from django.core.wsgi import get_wsgi_application

    _set_up_django("wheeld_client.integrations.django.JobsConfig")
    return get_wsgi_application()


def django_asgi_app() -> Any:
    """Django refuses the lifespan."""
    from django.core.asgi import get_asgi_application

    from wheeld_client.integrations.asgi import JobsMiddleware

    _set_up_django()
    return JobsMiddleware(get_asgi_application(), jobs)


def celery_app() -> Any:
    from celery import Celery

    from wheeld_client.integrations.celery import run_jobs

    app = Celery("shop", broker="memory://", set_as_current=False)
    run_jobs(app, "jobs_apps:jobs")
    return app
