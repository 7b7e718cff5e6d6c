"""`wheeld start --metrics`: the daemon's exporter, its scrapers, its ends; native histograms."""

from __future__ import annotations

import contextlib
import gzip
import http.client
import json
import os
import signal
import socket
import threading
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import wheeld
from common_fixtures import daemon_process, shared_daemon
from daemons import LONG, Daemon, end_of, until
from scrapes import ask, fetch, needs_prometheus, prometheus, value
from wheeld.metrics import declarations, server
from wheeld.metrics.scrapes import Scrapes, wants_protobuf
from wheeld_client import connect
from wheeld_core.errors import WheelError

daemon = daemon_process(virtual_clock=True, metrics="127.0.0.1:0")
shared = shared_daemon(virtual_clock=True, metrics="127.0.0.1:0")
"""For tests that leave it as it was."""
PROTOBUF = (
    "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited"
)


def served(daemon: Daemon) -> dict[str, Any]:
    return dict(until(lambda: (m := daemon.status()["metrics"])["address"] and m, "metrics"))


@contextlib.contextmanager
def serving(read: Callable[[], Any], listen: str = "127.0.0.1:0") -> Iterator[str]:
    with server.serve({"--listen": (listen, Scrapes(read, "d"))}) as (where,):
        yield where


def url(daemon: Daemon) -> str:
    return f"http://{served(daemon)['address']}/metrics"


@needs_prometheus
def test_native_histograms_in_a_real_prometheus(daemon: Daemon, tmp_path: Path) -> None:
    with connect(str(daemon.directory), worker="web-1") as timers:
        timers.schedule_many([0.001 * 1.02**i for i in range(400)])
        wheeld.advance(str(daemon.directory), 10.0)
        assert len(timers.poll(LONG)) == 400
        own = daemon.status()["workers"][0]["histograms"]["schedule_to_fire_ns"]
        name = 'wheeld_worker_schedule_to_fire_seconds{worker="web-1"}'
        with prometheus(tmp_path, url(daemon), "--enable-feature=native-histograms") as at:
            assert ask(at, f"histogram_count({name})") == 400
            assert ask(at, f"histogram_sum({name})") == pytest.approx(own["sum"] / 1e9)
            for key, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99)):
                said = ask(at, f"histogram_quantile({share}, {name})")
                mine = own[key] / 1e9
                assert mine / 2 ** (1 / 8) <= said <= mine * 2 ** (1 / 8), key
            assert ask(at, "wheeld_timers_fired_total") == 400
            assert ask(at, f'count by (daemon) ({{daemon="{daemon.name}"}})') == ask(
                at, 'count({__name__=~"wheeld_.*"})'
            )
            assert ask(at, "wheeld_up") == 1


def test_what_a_scraper_asks_for(shared: Daemon) -> None:
    where = url(shared)
    assert value(fetch(where), "wheeld_up") == 1
    for accept, kind in (
        ("application/openmetrics-text; version=1.0.0", "application/openmetrics-text"),
        (PROTOBUF, "application/vnd.google.protobuf"),
    ):
        request = urllib.request.Request(where, headers={"Accept": accept})
        with urllib.request.urlopen(request, timeout=LONG) as answer:
            assert answer.headers["Content-Type"].startswith(kind)
            assert b"wheeld_up" in answer.read()
    assert not wants_protobuf(f"{PROTOBUF};q=0.3,application/openmetrics-text;q=0.5")
    assert wants_protobuf(f"{PROTOBUF},text/plain;q=0.5,*/*;q=0.1")
    assert not wants_protobuf("application/vnd.google.protobuf;proto=other;encoding=delimited")
    assert not wants_protobuf("*/*")


def test_scrapers_that_hang_keep_no_other_waiting(
    shared: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "CONNECTION_SECONDS", 100 * LONG)
    monkeypatch.setattr(server, "REQUEST_SECONDS", 100 * LONG)
    with serving(shared.status) as where, contextlib.ExitStack() as stack:
        host, _, port = where.rpartition(":")
        silent = [
            stack.enter_context(socket.create_connection((host, int(port)), LONG))
            for _ in range(server.MOST_CONNECTIONS)
        ]
        half = http.client.HTTPConnection(host, int(port), timeout=LONG)
        stack.callback(half.close)
        half.putrequest("GET", "/metrics")  # and no end of the headers
        assert value(fetch(f"http://{where}/metrics"), "wheeld_up") == 1
        assert silent[0].recv(1) == b"", "the first one made room"
        silent[-1].setblocking(False)
        with pytest.raises(BlockingIOError):
            silent[-1].recv(1)


@pytest.mark.parametrize("name", ["CONNECTION_SECONDS", "REQUEST_SECONDS"])
def test_one_that_says_nothing_is_hung_up_on(
    shared: Daemon, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(server, name, 0.01)
    with serving(shared.status, "[::1]:0") as where:
        port = int(where.rpartition(":")[2])
        with socket.create_connection(("::1", port), LONG) as silent:
            assert silent.recv(1) == b""


def test_one_reading_is_for_all_who_ask_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    parsed: list[bytes] = []
    go, parse = threading.Event(), server._parsed

    def read() -> dict[str, Any]:
        asked.append(threading.active_count())
        assert go.wait(LONG)
        raise WheelError("there is none")

    def counted(request: bytes) -> Any:
        parsed.append(request)
        return parse(request)

    monkeypatch.setattr(server, "_parsed", counted)
    with serving(read) as where, contextlib.ExitStack() as stack:
        host, _, port = where.rpartition(":")
        ends = []
        before = threading.active_count()
        for i in range(100):
            ends.append(stack.enter_context(socket.create_connection((host, int(port)), LONG)))
            accept = ("*/*", PROTOBUF, "application/openmetrics-text; version=1.0.0")[i % 3]
            ends[-1].sendall(f"GET /metrics HTTP/1.1\r\nAccept: {accept}\r\n\r\n".encode())
            until(lambda: asked, "the first reading")
        until(lambda: len(parsed) == 100, "all requests")
        go.set()
        for end in ends:
            with end.makefile("rb") as answer:
                assert b"200 OK" in answer.readline()
                assert b"wheeld_up" in answer.read()
    assert len(asked) <= 6  # two for each format
    assert max(asked) <= before + 2


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        ("POST / HTTP/1.0\r\n\r\n", 405),
        ("GET / HTTP/1.0\r\n" + "X: y\r\n" * 101 + "\r\n", 400),
        ("GET /" + "a" * server.MOST_REQUEST, 431),
        ("HEAD / HTTP/1.0\r\n\r\n", 200),
        ("GET / HTTP/1.0\nAccept-Encoding: gzip\n\n", 200),
    ],
)
def test_requests(shared: Daemon, request_: str, status: int) -> None:
    host, _, port = served(shared)["address"].rpartition(":")
    with socket.create_connection((host, int(port)), LONG) as end:
        end.sendall(request_.encode())
        answer = http.client.HTTPResponse(end, method=request_.partition(" ")[0])
        answer.begin()
        assert answer.status == status
        body = answer.read()
        if "gzip" in request_:
            assert f'wheeld_up{{daemon="{shared.name}"}} 1.0'.encode() in gzip.decompress(body)
        else:
            assert body == b""


def test_it_comes_back(daemon: Daemon) -> None:
    before = served(daemon)
    gone = end_of(before["pid"])
    os.kill(before["pid"], signal.SIGKILL)
    gone()
    until(lambda: served(daemon)["pid"] not in (None, before["pid"]), "another exporter")
    assert served(daemon)["restarts"] == 1
    assert value(fetch(url(daemon)), "wheeld_up") == 1
    second, pid = served(daemon), daemon.pid
    os.kill(pid, signal.SIGSTOP)  # a supervisor that hangs: its exporter says so
    try:
        assert value(fetch(f"http://{second['address']}/metrics"), "wheeld_up") == 0
    finally:
        os.kill(pid, signal.SIGCONT)
    gone = end_of(second["pid"])
    daemon.stop()
    gone()


def test_a_port_in_use(daemon: Daemon, tmp_path: Path, daemon_name: str) -> None:
    daemon.stop()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        with Daemon(tmp_path, f"{daemon_name}-b", metrics=where) as other:
            said = other.refused()
            assert f"--metrics {where}: Address already in use; give another port" in said
            assert not other.segments()
            other.options["metrics"] = "127.0.0.1:0"
            other.start().kill()
            other.start(metrics=where)
            until(lambda: "no metrics are served" in other.said(), "a warning")
            assert where in other.status()["metrics"]["trouble"]
            taken.close()
            assert url(other) == f"http://{where}/metrics"
            assert value(fetch(url(other)), "wheeld_up") == 1
            other.stop()


def test_bare_and_bad(daemon: Daemon) -> None:
    daemon.stop()
    said = daemon.refused(metrics="9464")
    assert "option --metrics: metrics = '9464': expected HOST:PORT, such as 127.0.0.1:9464" in said
    assert "metrics = '::1:80'" in daemon.refused(metrics="::1:80")
    assert "such as 127.0.0.1:9464" in daemon.refused(metrics="127.0.0.1:65536")
    daemon.options["metrics"] = True  # --metrics and no value
    process = daemon.launch("--check")
    assert process.wait(LONG) == 0
    assert json.loads(daemon.said().splitlines()[-1])["name"] == daemon.name


def test_buckets_of_schema_3() -> None:
    live = [(0, 2), (1, 3), (7, 1), (8, 1), (9, 4), (1023, 2**64 - 1)]
    zero, counts = declarations.rebucketed(live, 1.0)
    assert (zero, sum(counts.values())) == (2, 9 + declarations.MOST)
    for index, count in counts.items():
        low, high = 2 ** ((index - 1) / 8), 2 ** (index / 8)
        near = [n for upper, n in live if low < upper <= high * (1 + 1e-12)]
        inside = [min(n, declarations.MOST) for n in near]
        assert sum(inside) == count
