"""A daemon's metrics for Prometheus, by prometheus-client: OpenMetrics and text."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from wheeld.metrics.declarations import METRICS, UP, Metric, classic_buckets, values
from wheeld_core.errors import WheelError


def family(metric: Metric, status: dict[str, Any]) -> Family:
    """One metric of a daemon, with all its labels."""
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
        up = GaugeMetricFamily(UP.name, UP.help)
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
