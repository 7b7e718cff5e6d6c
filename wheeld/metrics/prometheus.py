"""A daemon's metrics for Prometheus, by prometheus-client.

Histograms have a bucket for each power of two, which is a bound of the live ones, too: counts are
exact. Native histograms would need OpenMetrics 2, and buckets of another base.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, generate_latest, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from wheeld.metrics.declarations import METRICS, Metric, values
from wheeld_core.errors import WheelError


def _bounds(metric: Metric) -> list[int]:
    """Largest values of the buckets, in the unit of the live histogram."""
    first = 10 if metric.scale != 1 else 0
    return [(1 << power) - 1 for power in range(first, first + 31)]


def _buckets(metric: Metric, found: dict[str, Any]) -> list[tuple[str, float]]:
    """Cumulative counts, as (le, count)."""
    counts, at, below = found["buckets"], 0, 0
    rows: list[tuple[str, float]] = []
    for bound in _bounds(metric):
        while at < len(counts) and counts[at][0] <= bound:
            below += counts[at][1]
            at += 1
        rows.append((repr(float(bound * metric.scale)), below))
    return [*rows, ("+Inf", found["count"])]


def family(metric: Metric, status: dict[str, Any]) -> Family:
    """One metric of a daemon, with all its labels."""
    labels = [metric.label] if metric.label else []
    if metric.kind == "histogram":
        times = HistogramMetricFamily(metric.name, metric.help, labels=labels)
        for names, found in values(metric, status):
            times.add_metric(names, _buckets(metric, found), found["sum"] * metric.scale)
        return times
    made: CounterMetricFamily | GaugeMetricFamily
    if metric.kind == "counter":
        made = CounterMetricFamily(metric.name, metric.help, labels=labels)
    else:
        made = GaugeMetricFamily(metric.name, metric.help, labels=labels)
    for names, found in values(metric, status):
        made.add_metric(names, float(found) * metric.scale)
    return made


class DaemonCollector(Collector):
    """Asks a daemon for its status at each scrape.

    Parameters
    ----------
    read : callable
        Returns the status, or raises WheelError or OSError; then there is only `wheeld_up 0`.
    """

    def __init__(self, read: Callable[[], dict[str, Any]]) -> None:
        self._read = read

    def describe(self) -> list[Family]:
        """Nothing is asked for before the first scrape."""
        return []

    def collect(self) -> Iterator[Family]:
        """The metrics of this moment."""
        up = GaugeMetricFamily("wheeld_up", "1 if the daemon answers, else 0.")
        try:
            status = self._read()
        except (WheelError, OSError):
            up.add_metric([], 0)
            yield up
            return
        up.add_metric([], 1)
        yield up
        for metric in METRICS:
            made = family(metric, status)
            if made.samples:
                yield made


def registry(read: Callable[[], dict[str, Any]]) -> CollectorRegistry:
    """A registry with the metrics of one daemon and nothing else."""
    made = CollectorRegistry()
    made.register(DaemonCollector(read))
    return made


def text(known: CollectorRegistry) -> str:
    """The metrics in Prometheus's text format."""
    return generate_latest(known).decode()


class _Server(ThreadingMixIn, WSGIServer):
    """A slow reader keeps no other from its scrape."""

    daemon_threads = True


class _Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        """A scrape is no news."""


@contextlib.contextmanager
def serve(known: CollectorRegistry, listen: str) -> Iterator[str]:
    """Serve the metrics for the block, in OpenMetrics or text, as the scraper asks.

    Parameters
    ----------
    listen : str
        ADDRESS:PORT; port 0: any that is free. Yields the address that it is then.

    Raises
    ------
    ValueError
        `listen` is no address.
    OSError
        It cannot be listened on.
    """
    host, colon, port = listen.rpartition(":")
    if not colon or not port.isdigit() or int(port) > 65535:
        raise ValueError(f"--listen {listen}: expected ADDRESS:PORT, such as 127.0.0.1:9464")
    server = make_server(host, int(port), make_wsgi_app(known), _Server, _Quiet)
    thread = threading.Thread(target=server.serve_forever, name="wheeld-metrics", daemon=True)
    thread.start()
    try:
        yield f"{host}:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
