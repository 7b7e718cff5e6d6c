"""A Flask extension: requests have a time limit, and views reach the process's timers.

app.config["WHEELD_DAEMON"] = "default"
app.config["WHEELD_TIMEOUT"] = 2.0   # seconds; the default is 30, None is no limit
wheel = Wheeld(app)                  # or wheel.init_app(app)

wheel.timers.call_later(60.0, send_reminder, order)
"""

from __future__ import annotations

from typing import Unpack

from flask import Flask, current_app

from wheeld_client.connection.options import ConnectKeywords
from wheeld_client.integrations.process import ProcessTimers
from wheeld_client.integrations.seconds import limit_of
from wheeld_client.integrations.wsgi import TimeoutMiddleware
from wheeld_client.timers.timers import Timers


class Wheeld:
    """The extension.

    Parameters
    ----------
    app : Flask, optional
        Default: `init_app` names it later.
    **options
        As in `connect`: `group="web"`, `runtime_dir=...`
    """

    def __init__(self, app: Flask | None = None, **options: Unpack[ConnectKeywords]) -> None:
        self._options = options
        if app is not None:
            self.init_app(app)

    def init_app(self, app: Flask) -> None:
        """Use it in this application, which must already be configured; the timeout may change
        later."""
        app.config.setdefault("WHEELD_DAEMON", "default")
        app.config.setdefault("WHEELD_TIMEOUT", 30.0)
        limit_of(app.config["WHEELD_TIMEOUT"], "WHEELD_TIMEOUT")
        process = ProcessTimers(app.config["WHEELD_DAEMON"], **self._options)
        app.extensions["wheeld"] = process
        limited = TimeoutMiddleware(app.wsgi_app, lambda _: app.config["WHEELD_TIMEOUT"], process)
        app.wsgi_app = limited

    @property
    def timers(self) -> Timers:
        """This process's worker, whose callbacks a thread dispatches; errors as in `connect`."""
        process: ProcessTimers = current_app.extensions["wheeld"]
        return process.get()
