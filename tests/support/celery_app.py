"""Tasks of Celery whose delays are timers of the wheel, or Celery's own, by the environment."""

from __future__ import annotations

import os
import time
from pathlib import Path

from celery import Celery

from wheeld_client.integrations.celery import install

PLACE = Path(os.environ["WHEELD_TEST_PLACE"])
ON_THE_WHEEL = "WHEELD_TEST_DAEMON" in os.environ

app = Celery("shop", broker=os.environ["WHEELD_TEST_BROKER"])
app.conf.broker_transport_options = {
    "visibility_timeout": 1,
    "polling_interval": 0.1,
    # by default a worker looks every 100 s for what others have held too long
    "unacked_restore_interval": 0.2,
    "unacked_restore_throttle": 1,
}
app.conf.worker_prefetch_multiplier = 1
app.conf.task_acks_late = True
app.conf.broker_connection_retry_on_startup = True
app.conf.worker_hijack_root_logger = False
if ON_THE_WHEEL:
    install(app, os.environ["WHEELD_TEST_DAEMON"])


@app.task(name="note")
def note(what: str) -> None:
    with (PLACE / "notes").open("a") as file:
        file.write(f"{what} {time.monotonic()}\n")
