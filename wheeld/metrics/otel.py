"""A daemon's metrics for OpenTelemetry, by its SDK: observable instruments, exported by OTLP.

The SDK has no instrument for a histogram that was counted elsewhere, so the daemon's histograms are
added to the export, as exponential histograms. The variables OTEL_* work as in any program with
that SDK.
"""

from __future__ import annotations

import importlib.metadata
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, Final

from opentelemetry.metrics import CallbackOptions, Meter, Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Buckets,
    ExponentialHistogram,
    ExponentialHistogramDataPoint,
    Metric as Exported,
    MetricExporter,
    MetricExportResult,
    MetricsData,
    PeriodicExportingMetricReader,
)
from opentelemetry.sdk.resources import OTELResourceDetector, Resource

from wheeld.metrics.declarations import METRICS, SCHEMA, UP, Metric, label_names, rebucketed, values
from wheeld_core.errors import WheelError

Status = dict[str, Any]
_UNITS: Final = {"seconds": "s", "bytes": "By", "ratio": "1"}


def name_and_unit(metric: Metric) -> tuple[str, str]:
    """Names and units as in OpenTelemetry: no suffixes, units by UCUM.

    A Collector that exports to Prometheus turns them into the names of docs/metrics.md again.
    """
    words = metric.name.removeprefix("wheeld_").removesuffix("_total").split("_")
    if (unit := _UNITS.get(words[-1])) is not None:
        return "wheeld." + "_".join(words[:-1]), unit
    return "wheeld." + "_".join(words), f"{{{metric.unit}}}" if metric.unit else "1"


class _Reading:
    """One status for each export; None: the daemon does not answer."""

    def __init__(self, read: Callable[[], Status]) -> None:
        self._read, self._known = read, False
        self._found: Status | None = None

    def get(self) -> Status | None:
        if not self._known:
            try:
                self._found = self._read()
            except (WheelError, OSError):
                self._found = None
            self._known = True
        return self._found

    def forget(self) -> None:
        self._known = False

    def observe(self, metric: Metric, options: CallbackOptions) -> Iterator[Observation]:
        status = self.get()
        for labels, found in values(metric, status) if status is not None else ():
            yield Observation(_scaled(found, metric), _attributes(metric, labels))

    def observe_up(self, options: CallbackOptions) -> Iterator[Observation]:
        yield Observation(int(self.get() is not None))


def _scaled(found: Any, metric: Metric) -> int | float:
    whole = metric.scale == 1 and not isinstance(found, float)
    return int(found) if whole else float(found) * metric.scale


def _attributes(metric: Metric, labels: Iterable[str]) -> dict[str, str]:
    names = label_names(metric)[1:]
    pairs = zip(names, labels, strict=True)
    return {f"wheeld.{name.removesuffix('_name')}.name": label for name, label in pairs if label}


class _WithHistograms(MetricExporter):
    """Adds the daemon's histograms to the metrics that the SDK has collected, and exports both."""

    def __init__(self, inner: MetricExporter, reading: _Reading) -> None:
        super().__init__(inner._preferred_temporality, inner._preferred_aggregation)
        self._inner, self._reading = inner, reading
        self.result = MetricExportResult.FAILURE

    def export(
        self, metrics_data: MetricsData, timeout_millis: float = 10_000, **kwargs: Any
    ) -> MetricExportResult:
        status = self._reading.get()
        self._reading.forget()
        if status is not None:
            added = list(_histograms(status))
            ours = metrics_data.resource_metrics[0]
            scopes = [replace(each, metrics=[*each.metrics, *added]) if not i else each
                      for i, each in enumerate(ours.scope_metrics)]  # fmt: skip
            metrics_data = MetricsData([replace(ours, scope_metrics=scopes)])
        self.result = self._inner.export(metrics_data, timeout_millis=timeout_millis)
        return self.result

    def force_flush(self, timeout_millis: float = 10_000) -> bool:
        return self._inner.force_flush(timeout_millis)

    def shutdown(self, timeout_millis: float = 30_000, **kwargs: Any) -> None:
        self._inner.shutdown(timeout_millis=timeout_millis)


def _histograms(status: Status) -> Iterator[Exported]:
    for metric in METRICS:
        if metric.kind == "histogram":
            points = [_point(metric, labels, found, status)
                      for labels, found in values(metric, status)]  # fmt: skip
            name, unit = name_and_unit(metric)
            data = ExponentialHistogram(points, AggregationTemporality.CUMULATIVE)
            if points:
                yield Exported(name, metric.help, unit, data)


def _point(
    metric: Metric, labels: list[str], found: dict[str, Any], status: Status
) -> ExponentialHistogramDataPoint:
    now = time.time_ns()
    zero, counts = rebucketed(found["buckets"], metric.scale)
    first, last = (min(counts), max(counts)) if counts else (1, 0)
    return ExponentialHistogramDataPoint(
        attributes=_attributes(metric, labels),
        start_time_unix_nano=now - int(status["uptime_s"] * 1e9),
        time_unix_nano=now,
        count=zero + sum(counts.values()),
        sum=found["sum"] * metric.scale,
        scale=SCHEMA,
        zero_count=zero,
        # A bucket is named by its lower bound there, by its upper one in Prometheus.
        positive=Buckets(first - 1, [counts.get(i, 0) for i in range(first, last + 1)]),
        negative=Buckets(0, []),
        flags=0,
        min=0.0,
        max=found["max"] * metric.scale,
    )


def _add_instruments(meter: Meter, reading: _Reading) -> None:
    meter.create_observable_gauge("wheeld.up", [reading.observe_up], "1", UP.help)
    for metric in METRICS:
        name, unit = name_and_unit(metric)
        callback = partial(reading.observe, metric)
        if metric.kind == "counter":
            meter.create_observable_counter(name, [callback], unit, metric.help)
        elif metric.kind == "gauge" and (unit.startswith("{") or unit == "By"):
            meter.create_observable_up_down_counter(name, [callback], unit, metric.help)
        elif metric.kind == "gauge":
            meter.create_observable_gauge(name, [callback], unit, metric.help)


def _exporter(endpoint: str | None) -> MetricExporter:
    """By OTLP, over the protocol that OTEL_EXPORTER_OTLP_PROTOCOL names; default: HTTP."""
    protocol = os.environ.get("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL") or os.environ.get(
        "OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"
    )
    if protocol == "http/protobuf":
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import (
            OTLPMetricExporter as Http,
        )

        return Http(endpoint and f"{endpoint.rstrip('/')}/v1/metrics")
    if protocol != "grpc":
        raise ValueError(f"OTEL_EXPORTER_OTLP_PROTOCOL={protocol}: expected http/protobuf or grpc")
    try:
        from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import (
            OTLPMetricExporter as Grpc,
        )
    except ModuleNotFoundError as error:
        raise WheelError(
            f"{error}; for grpc: pip install opentelemetry-exporter-otlp-proto-grpc"
        ) from None
    return Grpc(endpoint)


class Export:
    """Exports a daemon's metrics again and again, from its start to `close`, to the receiver at
    `endpoint`, by default the environment's. Unless the environment names another, `daemon` is the
    resource's `service.instance.id`; `read` is as in `prometheus.DaemonCollector`.

    `WheelError`, `ValueError`: the environment asks for an unknown protocol.
    """

    def __init__(self, daemon: str, read: Callable[[], Status], endpoint: str | None) -> None:
        reading = _Reading(read)
        self._exporter = _WithHistograms(_exporter(endpoint), reading)
        self._reader = PeriodicExportingMetricReader(self._exporter)
        known = OTELResourceDetector().detect().attributes
        ours = {"service.name": "wheeld", "service.instance.id": daemon}
        resource = Resource.create({k: v for k, v in ours.items() if k not in known})
        self._provider = MeterProvider([self._reader], resource, shutdown_on_exit=False)
        version = importlib.metadata.version("wheeld")
        _add_instruments(self._provider.get_meter("wheeld", version), reading)

    def now(self) -> bool:
        """Export at once; whether the receiver has taken it."""
        self._reader.force_flush()
        return self._exporter.result is MetricExportResult.SUCCESS

    def close(self) -> None:
        self._provider.shutdown()
