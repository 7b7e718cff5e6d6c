"""A worker receives of a delayed task exactly what it would have received without a delay."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta, timezone
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery, signals
from celery.contrib.testing.worker import start_worker
from hypothesis import HealthCheck, Phase, given, settings, strategies as st
from kombu import Exchange, Queue
from kombu.serialization import registry

import wheeld
from daemons import LONG, until
from wheeld_client import Observer, pending_timers
from wheeld_client.integrations import celery as integration

pytestmark = pytest.mark.filterwarnings("ignore::celery.exceptions.CDeprecationWarning")
FAR = 3600.0
SOON = 0.01
LATER = datetime(2100, 1, 1, tzinfo=UTC)
SERIALIZERS = [name for name in ("json", "pickle", "yaml", "msgpack") if name in registry._encoders]


def nothing() -> None:
    """The work of a task."""


class Shop:
    """An application, its tasks, and a worker in this process; keeps what the worker receives."""

    def __init__(self, daemon: Any, **conf: Any) -> None:
        self.app: Any = Celery("shop", broker="memory://", set_as_current=False)
        self.app.conf.update(
            accept_content=SERIALIZERS,
            broker_connection_retry_on_startup=True,
            worker_hijack_root_logger=False,
            task_queues=[
                Queue("celery", Exchange("celery"), "celery"),
                Queue("mails", Exchange("mails", type="topic"), "mail.#", max_priority=10),
            ],
            **conf,
        )
        self.channel = self.app.connection_for_read().channel()
        integration.install(self.app, str(daemon))

        @self.app.task(name="plain", typing=False, shared=False)
        def plain(*args: Any, **kwargs: Any) -> None:
            pass

        @self.app.task(
            name="full", typing=False, shared=False, queue="mails", routing_key="mail.x",
            priority=7, time_limit=30, soft_time_limit=20, expires=LATER, ignore_result=True,
            serializer="pickle", compression="zlib",
        )  # fmt: skip
        def full(*args: Any, **kwargs: Any) -> None:
            pass

        @self.app.task(name="linked", typing=False, shared=False)
        def linked(*args: Any, **kwargs: Any) -> None:
            pass

        @self.app.task(name="again", shared=False, bind=True, max_retries=1)
        def again(this: Any) -> None:
            raise this.retry(countdown=FAR)

        self.tasks = {"plain": plain, "full": full, "linked": linked, "again": again}

    def receive(self) -> Any:
        message = until(
            lambda: self.channel.basic_get("celery") or self.channel.basic_get("mails"), "it"
        )
        message.ack()
        properties = {k: v for k, v in message.properties.items() if k != "delivery_tag"}
        message.delivery_info.pop("redelivered", None)
        return (message.headers, properties, message.content_type, message.content_encoding,
                bytes(message.body), message.delivery_info)  # fmt: skip

    def of(self, task: str, args: Any, kwargs: Any, **options: Any) -> Any:
        try:
            self.tasks[task].apply_async(args, kwargs, task_id="the one", **options)
        except Exception as error:
            return type(error)
        return self.receive()


@pytest.fixture
def daemon(wheel_server: wheeld.ForkServer) -> Iterator[Any]:
    with wheel_server.embedded(capacity=4096, max_payload="2000") as daemon:
        yield daemon


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    real = integration._delay
    monkeypatch.setattr(integration, "_delay", lambda *given: min(real(*given), SOON))


@pytest.fixture
def shop(daemon: Any, soon: None) -> Iterator[Shop]:
    shop = Shop(daemon)
    for queue in ("celery", "mails"):  # they belong to the process
        shop.channel.queue_purge(queue)
    sender = integration.Sender(None)
    sender.start(SimpleNamespace(app=shop.app))
    yield shop
    sender.stop(None)
    shop.app.wheeld[0].close()


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Iterator[Any]:
    integration._said.clear()
    with caplog.at_level(logging.WARNING, "wheeld"):
        yield lambda: [x.getMessage() for x in caplog.records if "delayed by Celery" in x.message]


KEYS = st.text(max_size=5) | st.integers()
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9)
    | st.binary(max_size=9) | st.datetimes() | st.fractions().map(Fraction) | st.uuids(),
    lambda inner: st.lists(inner, max_size=3) | st.tuples(inner, inner)
    | st.dictionaries(KEYS, inner, max_size=3) | st.frozensets(st.integers(), max_size=3),
    max_leaves=6,
)  # fmt: skip
OPTIONS = st.fixed_dictionaries({}, optional={
    "serializer": st.sampled_from(SERIALIZERS),
    "compression": st.sampled_from(["zlib", "bzip2"]),
    "priority": st.integers(0, 9),
    "queue": st.sampled_from(["celery", "mails"]),
    "routing_key": st.just("mail.today"),
    "expires": st.sampled_from([LATER, LATER.isoformat()]),
    "headers": st.dictionaries(st.text(max_size=4), VALUES, max_size=2),
    "link": st.just("linked"),
    "link_error": st.just("linked"),
    "chord": st.just({"task": "linked", "args": [], "kwargs": {}, "options": {}}),
    "group_id": st.just("a group"),
    "group_index": st.integers(0, 9),
    "root_id": st.just("a root"),
    "parent_id": st.just("a parent"),
    "reply_to": st.just("a queue"),
    "retries": st.integers(0, 3),
    "shadow": st.text(max_size=5),
    "ignore_result": st.booleans(),
    "time_limit": st.integers(60, 90),
    "soft_time_limit": st.integers(10, 20),
    "delivery_mode": st.sampled_from([1, 2]),
    "message_id": st.just("a message"),
    "stamped_headers": st.just(["stamp"]),
    "stamp": st.just("a stamp"),
})  # fmt: skip


@settings(
    max_examples=60, deadline=None, phases=[Phase.generate], suppress_health_check=list(HealthCheck)
)
@given(
    task=st.sampled_from(["plain", "full"]),
    args=st.lists(VALUES, max_size=2) | st.tuples(VALUES),
    kwargs=st.dictionaries(st.text(max_size=4), VALUES, max_size=2),
    options=OPTIONS,
)
def test_any_call(shop: Shop, task: str, args: Any, kwargs: Any, options: Any) -> None:
    if ("stamp" in options) != ("stamped_headers" in options):
        options.pop("stamp", None), options.pop("stamped_headers", None)
    for link in {"link", "link_error"} & options.keys():
        options[link] = shop.tasks["linked"].si(1, two=(3,))
    expected = shop.of(task, args, kwargs, **options)
    seen = shop.of(task, args, kwargs, countdown=FAR, **options)
    if isinstance(seen, tuple) and seen[0]["eta"]:  # by Celery, which it may be for its headers
        assert "headers" in options
        seen[0]["eta"] = None
    for message in (expected, seen):  # what is left of it
        if isinstance(message, tuple) and message[0]["expires"]:
            assert int(message[1].pop("expiration")) > 0
    assert repr(seen) == repr(expected)


CASES: dict[str, tuple[Any, str]] = {
    "large": ({"args": (hex(7**9000),)}, "payload"),
    "queue": ({"queue": Queue("celery", Exchange("other"), "celery")}, "a queue differs"),
    "headers": ({"headers": {"pair": (1, 2)}}, "JSON changes"),
}


@pytest.mark.parametrize("case", ["large", "queue", "headers"])
def test_not_taken(shop: Shop, said: Any, case: str) -> None:
    options, reason = CASES[case]
    for _ in range(2):
        shop.tasks["plain"].apply_async(**{"countdown": FAR, **options})
        assert shop.receive()[0]["eta"]
    (line,) = said()
    assert reason in line


def test_a_producer_of_another_broker(shop: Shop, said: Any) -> None:
    with Celery("other", broker="memory://elsewhere", set_as_current=False) as other:
        producer = other.amqp.Producer(other.connection_for_write())
        shop.tasks["plain"].apply_async((), countdown=FAR, producer=producer)
    (line,) = said()
    assert "the producer is not" in line


def test_an_error_is_the_callers(shop: Shop) -> None:
    assert shop.of("plain", (object(),), {}, countdown=FAR) is shop.of("plain", (object(),), {})


def test_calls_by_name_and_in_chains(shop: Shop, said: Any) -> None:
    plain = shop.tasks["plain"]
    for call in (
        lambda: shop.app.send_task("plain", (1,), countdown=FAR),
        lambda: (plain.si(1) | plain.si(2)).apply_async(countdown=FAR),
        lambda: plain.si(1).apply_async(eta=datetime.now(UTC) + timedelta(seconds=FAR)),
        lambda: plain.chunks(iter([(1,)]), 1).group().apply_async(countdown=FAR),
    ):
        call()
        assert shop.receive()[0]["eta"] is None
    assert not said()


def test_a_retry(daemon: Any, said: Any) -> None:
    shop = Shop(daemon, task_default_queue="retried")
    shop.app.conf.task_queues = None
    options: Any = {"pool": "solo", "perform_ping_check": False, "shutdown_timeout": LONG}
    with start_worker(shop.app, loglevel="warning", **options), Observer(daemon) as observer:
        before = len(observer.pending().timers)
        shop.tasks["again"].delay()
        until(lambda: len(observer.pending().timers) == before + 1, "the retry on the wheel")
    assert not said()
    shop.app.wheeld[0].close()


def keys_of(daemon: Any) -> list[str]:
    return [str(key) for key in pending_timers(daemon, prefix="celery:").keys.values()]


def _later(zone: Any = UTC) -> datetime:
    return datetime.now(zone) + timedelta(seconds=FAR)


@pytest.mark.parametrize(
    "times",
    [
        lambda: {"countdown": FAR},
        lambda: {"eta": _later()},
        lambda: {"eta": _later().isoformat()},
        lambda: {"eta": _later(timezone(timedelta(hours=9)))},
        lambda: {"eta": _later(timezone(timedelta(hours=9))).isoformat()},
        lambda: {"eta": _later().isoformat().replace("+00:00", "Z")},
        lambda: {"countdown": FAR, "expires": 2 * FAR},
        lambda: {"eta": _later(), "expires": _later() + timedelta(seconds=FAR)},
    ],
    ids=range(8),
)
def test_a_time_in_any_form_is_on_the_wheel_and_revocable(
    daemon: Any, said: Any, times: Any
) -> None:
    shop = Shop(daemon, task_default_queue="times")
    shop.tasks["plain"].apply_async((1,), task_id="the one", **times())
    (timer,) = pending_timers(str(daemon), prefix="celery:the one").timers
    assert FAR - LONG < timer["due"] / 1e9 <= FAR
    assert said() == []
    shop.app.AsyncResult("the one").revoke()
    assert not len(pending_timers(str(daemon)).timers)
    shop.app.wheeld[0].close()


@pytest.mark.parametrize("used", [False, True])
def test_a_delayed_task_is_found_and_revoked_by_its_id(daemon: Any, said: Any, used: bool) -> None:
    shop = Shop(daemon, task_default_queue="revoked")
    if used:
        shop.app.control.broadcast("ping")
    for options in (
        {"countdown": FAR},
        {"eta": datetime.now(UTC) + timedelta(seconds=FAR)},
        {"eta": (datetime.now(UTC) + timedelta(seconds=FAR)).isoformat()},
        {"countdown": FAR, "expires": 2 * FAR},
    ):
        result = shop.tasks["plain"].apply_async(task_id="the one", **options)
        assert keys_of(daemon) == ["celery:the one"]
        result.revoke()
        assert keys_of(daemon) == []
    ids = [shop.tasks["plain"].apply_async(countdown=FAR).id for _ in range(3)]
    shop.app.control.revoke(ids[0], destination=["another worker"])
    assert sorted(keys_of(daemon)) == sorted(f"celery:{id}" for id in ids)
    shop.app.control.revoke(ids)
    assert keys_of(daemon) == []
    assert not said()
    shop.app.wheeld[0].close()


def test_a_second_call_with_the_same_id_is_sent_too(daemon: Any, said: Any) -> None:
    shop = Shop(daemon, task_default_queue="twice")
    for _ in range(2):
        shop.tasks["plain"].apply_async(task_id="the one", countdown=FAR)
    assert keys_of(daemon) == ["celery:the one"]
    (line,) = said()
    assert "has a pending timer" in line
    with shop.app.connection_for_read() as connection:
        message = connection.SimpleQueue(shop.app.amqp.queues["twice"]).get(timeout=LONG)
        assert (message.headers["id"], bool(message.headers["eta"])) == ("the one", True)
        message.ack()
    shop.app.wheeld[0].close()


def test_signals_and_events_belong_to_the_call(daemon: Any, soon: None) -> None:
    published: list[Any] = []

    def trace(headers: Any = None, **_: Any) -> None:
        headers["trace"] = "of the caller"
        published.append(headers)

    shop = Shop(daemon, task_send_sent_event=True, task_default_queue="traced")
    signals.before_task_publish.connect(trace)
    sent: list[Any] = []
    sender = integration.Sender(None)
    signals.after_task_publish.connect(lambda **_: sent.append(1), weak=False, dispatch_uid="sent")
    with ExitStack() as stack:
        stack.callback(signals.after_task_publish.disconnect, dispatch_uid="sent")
        stack.callback(signals.before_task_publish.disconnect, trace)
        stack.callback(shop.app.wheeld[0].close)
        shop.tasks["plain"].apply_async(countdown=FAR)
        assert (len(published), len(sent)) == (1, 1)
        assert published[0]["eta"]
        shop.tasks["plain"].apply_async((hex(7**9000),), countdown=FAR)  # too large for the wheel
        assert (len(published), len(sent)) == (2, 2)
        sender.start(SimpleNamespace(app=shop.app))
        stack.callback(sender.stop, None)
        with shop.app.connection_for_read() as connection:
            queue = connection.SimpleQueue(shop.app.amqp.queues["traced"])
            for delayed_by_celery in (True, False):
                headers = queue.get(timeout=LONG).headers
                assert headers["trace"] == "of the caller"
                assert bool(headers["eta"]) == delayed_by_celery
        assert (len(published), len(sent)) == (2, 2)


@pytest.mark.parametrize("used", [False, True])
def test_install_in_one_step(daemon: Any, used: bool) -> None:
    app: Any = Celery("shop", broker="memory://", set_as_current=False)
    if used:
        app.amqp.send_task_message  # noqa: B018
    integration.install(app, str(daemon))
    integration.install(app, str(daemon))
    task = app.task(nothing, name="x", shared=False, base=type("Own", (app.Task,), {}))
    with Observer(daemon) as observer:
        before = len(observer.pending().timers)
        task.apply_async(countdown=FAR)
        assert len(observer.pending().timers) == before + 1
    app.wheeld[0].close()


def test_without_install() -> None:
    kind = "wheeld_client.integrations.celery:WheelTask"
    app: Any = Celery("shop", broker="memory://", set_as_current=False, task_cls=kind)
    app.task(nothing, name="x", shared=False).apply_async(countdown=FAR)


def test_while_there_is_no_daemon(tmp_path: Any, caplog: pytest.LogCaptureFixture) -> None:
    app: Any = Celery("shop", broker="memory://", set_as_current=False)
    integration.install(app, str(tmp_path / "none"))
    task = app.task(nothing, name="x", shared=False)
    began = time.monotonic()
    for _ in range(2):
        task.apply_async(countdown=FAR)
    if time.monotonic() - began < 1.0:
        assert caplog.text.count("is not used for now") == 1


def test_a_task_outlives_its_process_and_the_daemon(
    wheel_server: wheeld.ForkServer, daemon_name: str, tmp_path: Path
) -> None:
    """No worker of Celery has been there yet, and nobody has named the process that called."""
    options: Any = {"name": daemon_name, "capacity": 4096, "state_dir": str(tmp_path)}
    with wheel_server.embedded(**options) as daemon:
        shop = Shop(daemon)
        shop.tasks["plain"].apply_async(task_id="one", countdown=FAR)
        shop.app.wheeld[0].close()
    with wheel_server.embedded(**options) as daemon:
        shop = Shop(daemon)
        assert set(pending_timers(daemon).keys.values()) == {"celery:one"}
        shop.app.control.revoke("one")
        assert not pending_timers(daemon).keys
        shop.app.wheeld[0].close()
