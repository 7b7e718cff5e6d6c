"""An application whose beat is made of jobs, with messages in files below $WHEELD_TEST_PLACE."""

from __future__ import annotations

import os
from pathlib import Path

from celery import Celery
from celery.schedules import crontab

QUEUE = Path(os.environ["WHEELD_TEST_PLACE"]) / "queue"

app = Celery("shop", broker="filesystem://", set_as_current=False)
app.conf.broker_transport_options = {
    "data_folder_in": str(QUEUE), "data_folder_out": str(QUEUE), "control_folder": str(QUEUE),
}  # fmt: skip
app.conf.update(
    timezone="Europe/Berlin",
    wheeld_daemon=os.environ["WHEELD_TEST_DAEMON"],
    beat_schedule={
        "minutely": {"task": "refresh", "schedule": 60.0, "args": [7]},
        "nightly": {"task": "report", "schedule": crontab(hour=3, minute=0)},
    },
)
