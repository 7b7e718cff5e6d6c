"""Celery's delayed tasks on the wheel: `countdown=...`, `eta=...`, and retries.

    app = Celery("shop", broker="redis://")
    install(app, "default")

A delayed task of Celery is sent at once; a worker takes it from the broker and holds it until its
time. With Redis and SQS the broker sends it again to another worker when that takes longer than the
visibility timeout (an hour), so that it runs twice. Here it is a timer: the broker gets the task
when it is due, and no worker holds it until then.

The timer carries the message as Celery made it: serialized, compressed and routed. It is sent
unchanged. Its key is `celery:` and the task's id.
"""

from __future__ import annotations

import json
import logging
import threading
import zlib
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any, Final, Unpack

from celery import Celery, Task, bootsteps
from kombu import Exchange
from kombu.compression import compress
from kombu.serialization import dumps
from kombu.utils.imports import symbol_by_name

from wheeld_client.connection.options import MemberKeywords
from wheeld_client.integrations.process import ProcessTimers, RunsJobs, connect_as, jobs_of
from wheeld_client.timers.timers import Timers, payload_of
from wheeld_core.errors import DaemonNotRunning, RingFull, WheelError, WheelFull

__all__ = ["install", "run_jobs"]

log = logging.getLogger("wheeld")

AGAIN_SECONDS: Final = 5.0
"""Delay after a broker refused a task that was due."""
AGAIN_CONNECTED_SECONDS: Final = 1.0
"""Delay between two attempts of a worker to connect."""
FORMAT: Final = b"\x01"
"""First byte of each payload; the number changes with the format or with WORDS."""
WORDS: Final = (
    b'["application/x-python-serialize","binary",["application/json","utf-8","","celery",["celery"],'
    b'{"lang":"py","task":"tasks.","id":"","shadow":null,"eta":null,"expires":"20","group":null,'
    b'"group_index":null,"retries":0,"timelimit":[null,null],"root_id":"","parent_id":null,'
    b'"argsrepr":"(\'\',)","kwargsrepr":"{}","origin":"gen1@localhost","ignore_result":false,'
    b'"replaced_task_nesting":0,"stamped_headers":null,"stamps":{}},'
    b'{"delivery_mode":2,"expiration":0.0,"priority":null,"correlation_id":"","reply_to":""}]'
    b'[[""], {}, {"callbacks": null, "errbacks": null, "chain": null, "chord": null}]'
)
"""Common to most messages, so it need not be carried."""
MOST_SAID: Final = 1000
"""Reasons that are remembered as logged."""


def install(
    app: Celery, daemon: str = "default", group: str = "celery", **options: Unpack[MemberKeywords]
) -> None:
    """Use a daemon for the delayed tasks of an application.

    Its workers on this host send tasks that are due. They share `group`, so that one of them sends
    each task. A daemon accepts messages up to its `max_payload`; with a state directory, delayed
    tasks survive a reboot.

    A delayed task is the timer of the key `celery:` and its id: `AsyncResult.revoke` cancels it,
    and `pending_timers(prefix="celery:")` lists it.

    The signals `before_task_publish` and `after_task_publish`, and the event `task-sent`, are sent
    during the call, as without a daemon. Celery itself delays each message that the wheel cannot
    carry unchanged; each reason is logged once for each task: there is no daemon or no room, the
    message is larger than its payloads, `task_protocol` is 1, the broker delays by itself (quorum
    queues), the caller has a producer of its own, a queue that is not one of the application's, or
    headers that JSON does not hold. It also delays a second call with the same id while the timer
    of the first one is pending, since Celery sends both.

    Parameters
    ----------
    app : Celery
        The application. It may be configured later.
    daemon : str
        Name of the daemon, or the path of its runtime directory.
    group : str
        Name of the group of workers.
    **options
        As in `connect`: `runtime_dir=...`
    """
    process = ProcessTimers(daemon, dispatch=False, group=group, **options)
    app.wheeld = (process, group, daemon, options)
    app.steps["worker"].add(Sender)
    _extend(app, "amqp", _sending_by_the_wheel)
    _extend(app, "control", _revoking_on_the_wheel)


def run_jobs(app: Celery, jobs: RunsJobs | str) -> None:
    """Have each worker of an application run jobs, from its start to its end.

    They run in threads of the worker's main process, not in its pool: a long job should send a
    task. While there is no daemon, the worker waits for one.

    Parameters
    ----------
    app : Celery
    jobs : Jobs or str
        "shop.work:jobs" is imported when the worker starts.
    """
    app.wheeld_jobs = [*getattr(app, "wheeld_jobs", ()), jobs]
    app.steps["worker"].add(JobsStep)


def _extend(app: Celery, part: str, extended: Callable[[Any], Any]) -> None:
    """Make a part of an application, which may already exist, aware of the wheel."""
    made = vars(app).get(part)
    kind = type(made) if made is not None else symbol_by_name(getattr(app, f"{part}_cls"))
    if not hasattr(kind, "on_the_wheel"):
        kind = extended(kind)
        setattr(app, f"{part}_cls", kind)
        if made is not None:
            made.__class__ = kind


def _sending_by_the_wheel(kind: Any) -> Any:
    class WheelAMQP(kind):
        on_the_wheel = True

        @property
        def send_task_message(self) -> Any:
            return partial(_send, self.app, super().send_task_message)

    return WheelAMQP


def _revoking_on_the_wheel(kind: Any) -> Any:
    class WheelControl(kind):
        on_the_wheel = True

        def revoke(self, task_id: Any, destination: Any = None, *args: Any, **options: Any) -> Any:
            if destination is None:  # else other workers may still run it
                _cancel(self.app, [task_id] if isinstance(task_id, str) else task_id)
            return super().revoke(task_id, destination, *args, **options)

    return WheelControl


def _key(task_id: object) -> str:
    return f"celery:{task_id}"


def _cancel(app: Any, task_ids: Iterable[str]) -> None:
    """Cancel delayed tasks. If it is no longer a timer, Celery revokes it."""
    timers = app.wheeld[0].find()
    if timers is None:  # which it has logged
        return
    try:
        timers.cancel_many(keys=[_key(task_id) for task_id in task_ids])
    except (WheelError, ValueError) as error:
        log.warning("revoked in Celery's workers only, not on the wheel: %s", error)


class WheelTask(Task):
    """Celery's own task class: `install` no longer needs a special one."""

    abstract = True


class _NotTaken(Exception):
    """The wheel cannot carry a message as it is."""


def _send(app: Any, send: Any, producer: Any, name: str, message: Any, **options: Any) -> Any:
    """Send a task's message as Celery does, or put it on the wheel if it is delayed."""
    keeper = None
    try:
        if _is_delayed(message):
            timers = app.wheeld[0].find()
            if timers is not None:  # else it has logged why
                _check(app, producer, options.get("exchange"))
                keeper = _Keeper(app, timers, producer, name)
    except Exception as error:
        _say(name, error)
    try:
        return send(keeper or producer, name, message, **options)
    except Exception as error:
        if keeper is None or not keeper.kept:
            raise
        log.warning("%s is on the wheel, but its event was not sent: %s", name, error)
        return None


def _is_delayed(message: Any) -> bool:
    if isinstance(message.body, dict) and message.body.get("eta"):
        raise _NotTaken("task_protocol is 1; expected 2")
    return bool(message.headers.get("eta"))


def _delay(app: Any, eta: str) -> float:
    """Seconds until it is due, as a worker would compute them."""
    moment = datetime.fromisoformat(eta)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=app.timezone)
    return (moment - datetime.now(UTC)).total_seconds()


def _check(app: Any, producer: Any, exchange: Any) -> None:
    """Raise unless any other producer of this application would publish the same message to the
    same place."""
    if str(getattr(exchange, "name", exchange)).startswith("celery_delayed"):
        raise _NotTaken("the broker delays it by itself")
    given = (producer.exchange.name, producer.routing_key, producer.serializer)
    with app.connection_for_write() as own:
        place = own.as_uri(include_password=True)
    there = producer.connection.as_uri(include_password=True)
    if any(given) or producer.compression or there != place:
        raise _NotTaken("the producer is not the application's; leave producer= and connection=")


TRANSIENT: Final = (DaemonNotRunning, WheelFull, RingFull)
_said: set[object] = set()


def _say(name: str, error: Exception) -> None:
    """Log why Celery delays a task: once, and again when it comes back after a while."""
    kind = type(error)
    key: object = kind if kind in TRANSIENT else (name, str(error) if kind is _NotTaken else kind)
    if key in _said:
        return
    if len(_said) >= MOST_SAID:
        _said.clear()
    _said.add(key)
    log.warning("%s is delayed by Celery, not by the wheel: %s", name, error)


class _Keeper:
    """Stands before a producer: it puts the message of a task on the wheel if that carries it."""

    def __init__(self, app: Any, timers: Timers, producer: Any, name: str) -> None:
        self._app, self._timers, self._producer, self._name = app, timers, producer, name
        self.kept = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._producer, name)

    def publish(self, body: Any, **options: Any) -> Any:
        if not self.kept:  # else it is an event
            try:
                self.kept = self._keep(body, **options)
            except Exception as error:
                _say(self._name, error)
            if self.kept:
                _said.difference_update(TRANSIENT)
                return None
        return self._producer.publish(body, **options)

    def _keep(self, body: Any, *, headers: dict[str, Any], **options: Any) -> bool:
        """Whether it was delayed, and is on the wheel; signals may have changed the headers."""
        delay = _delay(self._app, headers["eta"]) if headers["eta"] else 0.0
        if delay <= 0:
            return False
        payload = _packed(self._app, delay, body, headers={**headers, "eta": None}, **options)
        key, to = _key(headers["id"]), f"group:{self._app.wheeld[1]}"
        self._timers.schedule(delay, payload=payload, to=to, key=key, detached=True, keep=True)
        return True


def _packed(
    app: Any,
    delay: float,
    body: Any,
    *,
    serializer: str | None,
    compression: str | None,
    exchange: Any,
    routing_key: str | None,
    headers: dict[str, Any],
    declare: Any,
    **properties: Any,
) -> bytes:
    """A message as a producer makes it, and its destination."""
    for ours in ("retry", "retry_policy", "timeout", "confirm_timeout"):  # how the caller waits
        properties.pop(ours, None)
    kind, encoding, data = dumps(body, serializer=serializer)
    if compression:
        data, headers["compression"] = compress(data, compression)
    queues = [queue.name for queue in declare or ()]
    if [app.amqp.queues.get(name) for name in queues] != list(declare or ()):
        raise _NotTaken("a queue differs from the application's configuration")
    if properties.get("expiration") is not None:  # seconds from when it is published
        properties["expiration"] = max(properties["expiration"] - delay, 0)
    if isinstance(exchange, Exchange):
        exchange = exchange.name
    head = [kind, encoding, exchange, routing_key, queues, headers, properties]
    text = json.dumps(head, separators=(",", ":"), ensure_ascii=False)
    if repr(json.loads(text)) != repr(head):
        raise _NotTaken("its headers or properties have values that JSON changes")
    first = text.encode()
    packer = zlib.compressobj(9, wbits=-zlib.MAX_WBITS, zdict=WORDS)
    packed = packer.compress(len(first).to_bytes(4, "little") + first)
    packed += packer.compress(data.encode() if isinstance(data, str) else data)
    return FORMAT + packed + packer.flush()


def _unpacked(payload: bytes) -> tuple[list[Any], bytes]:
    """Unpack a payload: its head and its body. Data of another form raises some exception."""
    if not payload.startswith(FORMAT):
        raise ValueError("unknown form")
    unpacker = zlib.decompressobj(wbits=-zlib.MAX_WBITS, zdict=WORDS)
    whole = unpacker.decompress(payload[1:])
    end = 4 + int.from_bytes(whole[:4], "little")
    return json.loads(whole[4:end]), whole[end:]


class JobsStep(bootsteps.StartStopStep):
    """Part of each worker: runs the jobs of `run_jobs`."""

    requires = ("celery.worker.components:Pool",)

    def start(self, parent: Any) -> None:
        self._jobs = [jobs_of(each) for each in parent.app.wheeld_jobs]
        for each in self._jobs:
            each.start()

    def stop(self, parent: Any) -> None:
        for each in self._jobs:
            each.stop(wait=True)

    terminate = stop


class Sender(bootsteps.StartStopStep):
    """Part of each worker: receives the timers of delayed tasks and sends the tasks."""

    requires = ("celery.worker.components:Pool",)

    def start(self, parent: Any) -> None:
        self._app = parent.app
        self._stopping = False
        self._stopped: SimpleQueue[None] = SimpleQueue()
        self._sending = threading.RLock()
        self._timers: Timers | None = None
        self._thread = threading.Thread(target=self._run, name="wheeld-celery", daemon=True)
        self._thread.start()

    def stop(self, parent: Any) -> None:
        """Stop: tasks that fall due from now on go to another worker, or wait for the next one."""
        self._stopping = True
        self._stopped.put(None)
        with self._sending:  # a task that is being sent now is acknowledged first
            if self._timers is not None:
                self._timers.close()
        self._thread.join()

    def _run(self) -> None:
        """Send until it is stopped, even if this worker cannot reach the daemon for a while."""
        said = ""
        while not self._stopping:
            try:
                self._send_what_is_due()
            except (WheelError, OSError) as error:
                said = self._warn(str(error), said)
                with suppress(Empty):
                    self._stopped.get(timeout=AGAIN_CONNECTED_SECONDS)

    def _warn(self, error: str, said: str) -> str:
        if error != said and not self._stopping:
            log.warning("delayed tasks wait until this worker is connected: %s", error)
        return error

    def _send_what_is_due(self) -> None:
        _, group, daemon, options = self._app.wheeld
        with connect_as(
            daemon, group=group, on_death="reroute", on_reconnect=str, **options
        ) as self._timers:
            while not self._stopping:
                for event in self._timers.poll(None, hold=True):
                    with self._sending:
                        if not self._stopping:
                            self._send(self._timers, event)

    def _send(self, timers: Timers, event: Any) -> None:
        payload = payload_of(event)
        try:
            head, body = _unpacked(payload)
            kind, encoding, exchange, routing_key, queues, headers, properties = head
        except Exception:  # somebody else's timer, or of another version
            log.exception("no delayed task: %r", payload)
            timers.acknowledge(event)
            return
        app = self._app
        try:
            with app.producer_or_acquire() as producer:
                producer.publish(
                    body,
                    content_type=kind,
                    content_encoding=encoding,
                    exchange=exchange,
                    routing_key=routing_key,
                    headers=headers,
                    declare=[app.amqp.queues[name] for name in queues],
                    retry=app.conf.task_publish_retry,
                    retry_policy=dict(app.conf.task_publish_retry_policy),
                    **properties,
                )
        except Exception as error:  # such as a broker that does not answer, after its retries
            name = headers.get("task")
            log.warning("%s will be sent again in %g s: %s", name, AGAIN_SECONDS, error)
            timers.nack(event, AGAIN_SECONDS)
        else:
            timers.acknowledge(event)
