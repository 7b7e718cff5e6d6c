"""A daemon's metrics for Prometheus, by prometheus-client: OpenMetrics and text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from wheeld.metrics.declarations import METRICS, UP, Metric, classic_buckets, values


def family(metric: Metric, status: dict[str, Any]) -> Family:
    labels = [metric.label] if metric.label else []
    if metric.kind == "histogram":
        times = HistogramMetricFamily(metric.name, metric.help, labels=labels)
        for names, found in values(metric, status):
            rows = [(repr(bound), float(below)) for bound, below in classic_buckets(metric, found)]
            times.add_metric(names, [*rows, ("+Inf", found["count"])], found["sum"] * metric.scale)
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
    """The metrics of one status; of None, which is no answer, only `wheeld_up 0`."""

    def __init__(self, status: dict[str, Any] | None) -> None:
        self._status = status

    def collect(self) -> Iterator[Family]:
        up = GaugeMetricFamily(UP.name, UP.help)
        up.add_metric([], float(self._status is not None))
        yield up
        if self._status is None:
            return
        for metric in METRICS:
            made = family(metric, self._status)
            if made.samples:
                yield made


def registry(status: dict[str, Any] | None) -> CollectorRegistry:
    made = CollectorRegistry(auto_describe=False)
    made.register(DaemonCollector(status))
    return made


def text(known: CollectorRegistry) -> str:
    return generate_latest(known).decode()
