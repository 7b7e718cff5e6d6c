"""`wheeld metrics --otlp`: what a receiver of OTLP gets, over HTTP and over gRPC."""

from __future__ import annotations

import gzip
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from commands import LONG, badly, well, wheeld_command
from common_fixtures import daemon_process
from daemons import Daemon
from wheeld.metrics.declarations import METRICS
from wheeld_client import connect

pytest.importorskip("opentelemetry.sdk")
from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2 as service

from wheeld.metrics.otel import name_and_unit

daemon = daemon_process(virtual_clock=True)
Requests = queue.Queue[Any]


@contextmanager
def http_receiver() -> Iterator[tuple[str, Requests]]:
    came: Requests = queue.Queue()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            assert self.path == "/v1/metrics"
            came.put(service.ExportMetricsServiceRequest.FromString(body))
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.end_headers()
            self.wfile.write(service.ExportMetricsServiceResponse().SerializeToString())

        def log_message(self, format: str, *args: Any) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", came
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def grpc_receiver() -> Iterator[tuple[str, Requests]]:
    grpc = pytest.importorskip("grpc")
    pytest.importorskip("opentelemetry.exporter.otlp.proto.grpc")
    from opentelemetry.proto.collector.metrics.v1 import metrics_service_pb2_grpc as stubs

    came: Requests = queue.Queue()

    class Receiver(stubs.MetricsServiceServicer):  # type: ignore[misc]
        def Export(self, request: Any, context: Any) -> Any:
            came.put(request)
            return service.ExportMetricsServiceResponse()

    with ThreadPoolExecutor(1) as pool:
        server = grpc.server(pool)
        stubs.add_MetricsServiceServicer_to_server(Receiver(), server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        try:
            yield f"http://127.0.0.1:{port}", came
        finally:
            server.stop(None).wait()


def metrics_of(request: Any) -> dict[str, Any]:
    (scope,) = request.resource_metrics[0].scope_metrics
    assert scope.scope.name == "wheeld"
    return {metric.name: metric for metric in scope.metrics}


def point(found: dict[str, Any], name: str) -> Any:
    (only,) = getattr(found[name], found[name].WhichOneof("data")).data_points
    return only


def quantile(histogram: Any, share: float) -> float:
    below, wanted = histogram.zero_count, share * histogram.count
    for i, count in enumerate(histogram.positive.bucket_counts):
        below += count
        if below >= wanted:
            return float(2 ** ((histogram.positive.offset + i + 1) / 2**histogram.scale))
    raise AssertionError("not that many")


@pytest.mark.parametrize(("receiver", "protocol"), [(http_receiver, ""), (grpc_receiver, "grpc")])
def test_a_receiver_gets_it(daemon: Daemon, receiver: Callable[[], Any], protocol: str) -> None:
    environment = {"OTEL_EXPORTER_OTLP_PROTOCOL": protocol} if protocol else {}
    with connect(str(daemon.directory), worker="web-1") as timers, receiver() as (url, came):
        timers.schedule_many([0.001 * 1.02**i for i in range(300)] + [50.0])
        well("advance", "1s", *daemon.where)
        assert len(timers.poll(LONG)) == 300
        own = timers.stats()["histograms"]["schedule_to_fire_ns"]
        assert well("metrics", "--otlp", url, "--once", *daemon.where, **environment) == ""
    request = came.get(timeout=LONG)
    resource = {
        a.key: a.value.string_value for a in request.resource_metrics[0].resource.attributes
    }
    assert (resource["service.name"], resource["service.instance.id"]) == ("wheeld", daemon.name)
    found = metrics_of(request)
    fired = found["wheeld.timers_fired"]
    assert (fired.unit, fired.sum.is_monotonic) == ("{timer}", True)
    assert point(found, "wheeld.timers_fired").as_int == 300
    assert point(found, "wheeld.timers_pending").as_int == 1
    assert not found["wheeld.timers_pending"].sum.is_monotonic
    assert found["wheeld.shared_memory"].unit == "By"
    assert point(found, "wheeld.up").as_int == 1
    times = found["wheeld.worker_schedule_to_fire"]
    assert (times.unit, times.exponential_histogram.aggregation_temporality) == ("s", 2)
    histogram = point(found, "wheeld.worker_schedule_to_fire")
    assert {a.key: a.value.string_value for a in histogram.attributes} == {
        "wheeld.worker.name": "web-1"
    }
    assert histogram.count == 300 == sum(histogram.positive.bucket_counts)
    assert histogram.sum == pytest.approx(own["sum"] / 1e9)
    for key, share in (("p50", 0.5), ("p99", 0.99)):
        bound = quantile(histogram, share)
        assert bound / 2 ** (1 / 8) * (1 - 1e-9) <= own[key] / 1e9 <= bound * (1 + 1e-9), key


def test_it_goes_on(daemon: Daemon) -> None:
    with http_receiver() as (url, came):
        environment = {
            **os.environ,
            "OTEL_EXPORTER_OTLP_ENDPOINT": url,
            "OTEL_METRIC_EXPORT_INTERVAL": "50",
            "OTEL_RESOURCE_ATTRIBUTES": "service.instance.id=mine",
        }
        command = [sys.executable, "-m", "wheeld", "metrics", *daemon.where, "--otlp"]
        with subprocess.Popen(
            command, stderr=subprocess.PIPE, text=True, env=environment
        ) as process:
            try:
                first = came.get(timeout=LONG)
                assert point(metrics_of(first), "wheeld.up").as_int == 1
                said = {a.key: a.value.string_value
                        for a in first.resource_metrics[0].resource.attributes}  # fmt: skip
                assert said["service.instance.id"] == "mine"
                well("stop", *daemon.where)
                daemon.end()
                for _ in range(100):  # it had the time between two looks to export some more
                    if not point(found := metrics_of(came.get(timeout=LONG)), "wheeld.up").as_int:
                        break
                assert set(found) == {"wheeld.up"}
                process.send_signal(signal.SIGINT)
                assert process.wait(LONG) == 0
            finally:
                process.kill()


def test_what_goes_wrong(daemon: Daemon) -> None:
    assert "expected a URL, such as http://" in badly(
        "metrics", "--otlp", "there", *daemon.where, code=2
    )
    environment = {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"}
    done = wheeld_command("metrics", "--otlp", "--once", *daemon.where, **environment)
    assert (done.returncode, done.stdout) == (1, "")
    assert "expected http/protobuf or grpc" in done.stderr
    environment = {"OTEL_EXPORTER_OTLP_TIMEOUT": "1"}
    url = "http://127.0.0.1:9"
    done = wheeld_command("metrics", "--otlp", url, "--once", *daemon.where, **environment)
    assert done.returncode == 1
    assert "the receiver did not take the metrics" in done.stderr
    program = (
        "import sys; sys.modules['opentelemetry.sdk'] = None; sys.argv = ['wheeld', 'metrics', "
        "'--otlp']; from wheeld.__main__ import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 1
    assert "pip install '.[otel]'" in done.stderr
    assert done.stderr.count("\n") == 1


def test_each_metric_has_a_name_and_a_unit() -> None:
    names = [name_and_unit(metric) for metric in METRICS]
    assert len({name for name, _ in names}) == len(METRICS)
    assert {name for name, unit in names if unit == "1"} == {
        "wheeld.clock_ok", "wheeld.worker_backlogged", "wheeld.pool_depleted", "wheeld.job_paused",
    }  # fmt: skip
    assert not [name for name, _ in names if name.endswith(("_total", "_seconds", "_bytes"))]
