"""A daemon's metrics for Prometheus, by prometheus-client: OpenMetrics and text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from wheeld.metrics.declarations import METRICS, UP, Metric, classic_buckets, label_names, values


def family(metric: Metric, status: dict[str, Any], daemon: str) -> Family:
    labels = label_names(metric)
    if metric.kind == "histogram":
        times = HistogramMetricFamily(metric.name, metric.help, labels=labels)
        for names, found in values(metric, status):
            rows = [(repr(bound), float(below)) for bound, below in classic_buckets(metric, found)]
            total = found["sum"] * metric.scale
            times.add_metric([daemon, *names], [*rows, ("+Inf", found["count"])], total)
        return times
    made: CounterMetricFamily | GaugeMetricFamily
    if metric.kind == "counter":
        made = CounterMetricFamily(metric.name, metric.help, labels=labels)
    else:
        made = GaugeMetricFamily(metric.name, metric.help, labels=labels)
    for names, found in values(metric, status):
        made.add_metric([daemon, *names], float(found) * metric.scale)
    return made


class DaemonCollector(Collector):
    """The metrics of one status of `daemon`; for None (no answer), only `wheeld_up 0`."""

    def __init__(self, status: dict[str, Any] | None, daemon: str) -> None:
        self._status, self._daemon = status, daemon

    def collect(self) -> Iterator[Family]:
        up = GaugeMetricFamily(UP.name, UP.help, labels=label_names(UP))
        up.add_metric([self._daemon], float(self._status is not None))
        yield up
        if self._status is None:
            return
        for metric in METRICS:
            made = family(metric, self._status, self._daemon)
            if made.samples:
                yield made


def registry(status: dict[str, Any] | None, daemon: str) -> CollectorRegistry:
    made = CollectorRegistry(auto_describe=False)
    made.register(DaemonCollector(status, daemon))
    return made


def text(known: CollectorRegistry) -> str:
    return generate_latest(known).decode()
