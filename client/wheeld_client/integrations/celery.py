"""Celery's delayed tasks on the wheel: `apply_async(countdown=...)` and `eta=...`.

    app = Celery("shop", broker="redis://", task_cls="wheeld_client.integrations.celery:WheelTask")
    install(app, "default")

A delayed task of Celery is sent at once; a worker takes it from the broker and holds it until its
time. With Redis and SQS the broker sends it again to another worker when that takes longer than the
visibility timeout (an hour), so that it runs twice. Here it is a timer: the broker gets it when its
time has come, and no worker holds it until then.
"""

from __future__ import annotations

import logging
import threading
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from queue import Empty, SimpleQueue
from typing import Any, Final

from celery import Celery, Task, bootsteps
from celery.result import AsyncResult
from celery.utils import uuid
from kombu.serialization import dumps, loads

from wheeld_client.integrations.process import ProcessTimers
from wheeld_client.timers.timers import Timers, connect, payload_of
from wheeld_core.errors import WheelError

log = logging.getLogger("wheeld")

AGAIN_SECONDS: Final = 5.0
"""After a broker did not take a task that was due."""
AGAIN_CONNECTED_SECONDS: Final = 1.0
"""Between two tries of a worker to connect."""
HANDED_ON = ("queue", "routing_key", "priority", "expires", "serializer", "exchange", "headers")
"""Options of `apply_async` that go with the task; what is None is left out."""


def install(app: Celery, daemon: str = "default", group: str = "celery", **options: Any) -> None:
    """Use a daemon for the delayed tasks of an application, whose tasks are `WheelTask`s.

    Each of its workers on this host sends what is due; `group` is theirs, so that each task is sent
    by one of them. A daemon with `payload_bytes` of 1,000 or so holds the usual arguments, and with
    a state directory delayed tasks outlive the host.

    Parameters
    ----------
    app : Celery
        The application.
    daemon : str
        Name of the daemon, or the path of its runtime directory.
    group : str
        Name of the group of workers.
    **options
        As of `connect`: `runtime_dir=...`
    """
    process = ProcessTimers(daemon, dispatch=False, on_death="reroute", group=group, **options)
    app.wheeld = (process, group, daemon, options)
    app.steps["worker"].add(Sender)


class WheelTask(Task):
    """A task whose `countdown` and `eta` are timers.

    What the wheel does not take (no daemon, no room, arguments larger than its payloads) is delayed
    by Celery as usual, which is logged. Tasks that are already due are sent at once. `retry` with a
    countdown comes here, too. Links, chords and chains with a delay are Celery's.
    """

    abstract = True

    def apply_async(
        self,
        args: Any = None,
        kwargs: Any = None,
        task_id: str | None = None,
        countdown: float | None = None,
        eta: datetime | None = None,
        **options: Any,
    ) -> AsyncResult:
        """As Celery's."""
        delay = _delay(self.app, countdown, eta)
        given = {name: value for name, value in options.items() if value is not None}
        ours = set(given) <= {*HANDED_ON, "producer", "connection", "retries", "retry"}
        if delay is None or delay <= 0 or not ours or self.app.conf.task_always_eager:
            return self._by_celery(args, kwargs, task_id, countdown, eta, options)
        task_id = task_id or uuid()
        sent = {name: given[name] for name in (*HANDED_ON, "retries") if name in given}
        if isinstance(sent.get("expires"), int | float):  # counts from this call, not from its end
            sent["expires"] = self.app.now() + timedelta(seconds=sent["expires"])
        call = [self.name, list(args or ()), dict(kwargs or {}), task_id, sent]
        try:
            payload = _packed(call)
            process, group, *_ = self.app.wheeld
            process.get().schedule(delay, payload=payload, to=f"group:{group}")
        except (WheelError, ValueError, TypeError) as error:
            log.warning("%s is delayed by the broker, not by the wheel: %s", self.name, error)
            return self._by_celery(args, kwargs, task_id, countdown, eta, options)
        return self.AsyncResult(task_id)

    def _by_celery(
        self, args: Any, kwargs: Any, task_id: Any, countdown: Any, eta: Any, options: Any
    ) -> AsyncResult:
        given = {"task_id": task_id, "countdown": countdown, "eta": eta, **options}
        return super().apply_async(args, kwargs, **given)


def _delay(app: Celery, countdown: float | None, eta: datetime | None) -> float | None:
    if countdown is not None:
        return float(countdown)
    if eta is None:
        return None
    if eta.tzinfo is None:
        eta = eta.replace(tzinfo=app.timezone)
    return (eta - datetime.now(UTC)).total_seconds()


def _packed(call: list[Any]) -> bytes:
    _, _, body = dumps(call, serializer="json")
    return body.encode() if isinstance(body, str) else body


class Sender(bootsteps.StartStopStep):
    """Part of each worker: receives the timers of delayed tasks and sends the tasks."""

    requires = ("celery.worker.components:Pool",)

    def start(self, parent: Any) -> None:
        """Begin."""
        self._app = parent.app
        self._stopping = False
        self._stopped: SimpleQueue[None] = SimpleQueue()
        self._timers: Timers | None = None
        self._thread = threading.Thread(target=self._run, name="wheeld-celery", daemon=True)
        self._thread.start()

    def stop(self, parent: Any) -> None:
        """Stop: what is due from now on goes to another worker, or waits for the next one."""
        self._stopping = True
        self._stopped.put(None)
        if self._timers is not None:
            self._timers.close()
        self._thread.join()

    def _run(self) -> None:
        """Send until it is stopped, whatever keeps this worker from the daemon for a while."""
        said = ""
        while not self._stopping:
            try:
                self._send_what_is_due()
            except (WheelError, OSError) as error:
                said = self._warn(str(error), said)
                with suppress(Empty):
                    self._stopped.get(timeout=AGAIN_CONNECTED_SECONDS)

    def _warn(self, error: str, said: str) -> str:
        """Say an error once, not with each try."""
        if error != said and not self._stopping:
            log.warning("delayed tasks wait until this worker is connected: %s", error)
        return error

    def _send_what_is_due(self) -> None:
        _, group, daemon, options = self._app.wheeld
        with connect(
            daemon, group=group, on_death="reroute", on_reconnect=str, **options
        ) as self._timers:
            while not self._stopping:
                for event in self._timers.poll(None):
                    self._send(payload_of(event))

    def _send(self, payload: bytes) -> None:
        try:
            name, args, kwargs, task_id, options = loads(payload, "application/json", "utf-8")
        except Exception:  # somebody else's timer, or of another version
            log.exception("no delayed task: %r", payload)
            return
        try:
            self._app.send_task(name, args, kwargs, task_id=task_id, **options)
        except Exception as error:  # such as a broker that does not answer, after its retries
            self._send_later(name, payload, error)

    def _send_later(self, name: str, payload: bytes, error: Exception) -> None:
        """Schedule it again, for whichever worker of the group is connected then."""
        assert self._timers is not None
        _, group, *_ = self._app.wheeld
        log.warning("%s will be sent again in %g s: %s", name, AGAIN_SECONDS, error)
        try:
            self._timers.schedule(AGAIN_SECONDS, payload=payload, to=f"group:{group}")
        except WheelError:
            log.exception("a delayed task is lost: %r", payload)
