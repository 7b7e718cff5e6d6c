"""An application that nobody refers to any more leaves the daemon: a test suite makes one for each
test, in one process."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from pathlib import Path

from flask import Flask

from common_fixtures import embedded
from daemons import until
from programs import of_checkout
from wheeld_client import Jobs, Observer
from wheeld_client.integrations.flask import Wheeld
from wheeld_client.integrations.process import ProcessTimers
from wheeld_core import control
from wheeld_core.control.messages import Request

daemon = embedded(capacity=4096, max_workers=8)


def serve_once(daemon: str) -> None:
    app = Flask("shop")
    app.config["WHEELD_DAEMON"] = daemon
    Wheeld(app)
    app.add_url_rule("/", view_func=lambda: "ok")
    assert app.test_client().get("/").data == b"ok"
    assert app.extensions["wheeld"].find() is not None


def test_more_applications_than_the_daemon_has_rows(daemon: str) -> None:
    with Observer(daemon) as observer:
        for _ in range(20):
            serve_once(daemon)
            gc.collect()
            until(lambda: observer.workers() == [], "it has left")


def test_what_is_held_begins_anew_in_a_child(daemon: str) -> None:
    process, jobs = ProcessTimers(daemon), Jobs("shop", daemon=daemon)
    timers = process.get()
    lock = jobs._lock
    if (child := os.fork()) == 0:
        os._exit(0 if process._timers is None and jobs._lock is not lock else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert process.get() is timers
    process.close()


def test_a_process_leaves_at_its_end(daemon: str) -> None:
    program = (
        "import sys; from wheeld_client.integrations.process import ProcessTimers\n"
        "used = ProcessTimers(sys.argv[1], worker='web')\n"
        "used.get().schedule(60)"
    )
    subprocess.run(
        [sys.executable, "-c", program, str(daemon)], env=of_checkout(), check=True, timeout=60
    )
    events = until(lambda: control.ask(Path(str(daemon)), Request.EVENTS)["events"], "it has gone")
    assert [event["kind"] for event in events] == ["dropped"]  # and no death
