"""A daemon's metrics in Prometheus's protobuf format, which has native histograms.

prometheus-client writes native histograms only in OpenMetrics 2, which no released Prometheus
scrapes. With `--enable-feature=native-histograms`, Prometheus asks for this format. The messages
are those of `io.prometheus.client.MetricFamily` (prometheus/client_model, metrics.proto): few and
flat, so they are written here, without a protobuf compiler.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Any, Final

from wheeld.metrics.declarations import (
    METRICS,
    MOST,
    SCHEMA,
    UP,
    Metric,
    classic_buckets,
    label_names,
    rebucketed,
    values,
)

CONTENT_TYPE: Final = (
    "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited"
)
ZERO: Final = 2.0**-128
"""Values up to this count as 0; the default of client_golang."""
_TYPES: Final = {"counter": 0, "gauge": 1, "histogram": 4}
_VALUES: Final = {"counter": 3, "gauge": 2}
_VARINT, _DOUBLE, _BYTES = 0, 1, 2


def exposition(status: dict[str, Any] | None, daemon: str) -> bytes:
    """All metrics of a daemon; for a daemon that does not answer (None), only `wheeld_up 0`."""
    families = [_family(UP, [([], int(status is not None))], daemon)]
    if status is not None:
        families += [_family(metric, found, daemon) for metric in METRICS
                     if (found := list(values(metric, status)))]  # fmt: skip
    return b"".join(_varint(len(each)) + each for each in families)


def _family(metric: Metric, found: Iterable[tuple[list[str], Any]], daemon: str) -> bytes:
    parts = [_text(1, metric.name), _text(2, metric.help), _number(3, _TYPES[metric.kind])]
    for labels, value in found:
        pairs = b"".join(
            _message(1, _text(1, name) + _text(2, each))
            for name, each in zip(label_names(metric), [daemon, *labels], strict=True)
        )  # fmt: skip
        if metric.kind == "histogram":
            said = _message(7, _histogram(metric, value))
        else:
            said = _message(_VALUES[metric.kind], _double(1, float(value) * metric.scale))
        parts.append(_message(4, pairs + said))
    return b"".join(parts)


def _histogram(metric: Metric, found: dict[str, Any]) -> bytes:
    """One Histogram, with the classic buckets and the native ones."""
    zero, counts = rebucketed(found["buckets"], metric.scale)
    parts = [
        _number(1, zero + sum(counts.values())),
        _double(2, found["sum"] * metric.scale),
        *(
            _message(3, _number(1, min(count, MOST)) + _double(2, bound))
            for bound, count in classic_buckets(metric, found)
        ),
        _number(5, _zigzag(SCHEMA)),
        _double(6, ZERO),
        _number(7, zero),
    ]
    deltas, before = [], 0
    for offset, run in _spans(counts):
        parts.append(_message(12, _number(1, _zigzag(offset)) + _number(2, len(run))))
        for count in run:
            deltas.append(_varint(_zigzag(count - before)))
            before = count
    return b"".join([*parts, _key(13, _BYTES) + _sized(b"".join(deltas))])


def _spans(counts: dict[int, int]) -> Iterator[tuple[int, list[int]]]:
    """Runs of buckets without a gap: the distance from the run before (for the first: its index),
    and counts."""
    end, run, offset = 0, list[int](), 0
    for index, count in counts.items():
        if run and index != end:
            yield offset, run
            run = []
        if not run:
            offset = index - end
        run.append(count)
        end = index + 1
    if run:
        yield offset, run


# -- the wire: https://protobuf.dev/programming-guides/encoding -----------------------------------


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def _zigzag(value: int) -> int:
    return value << 1 if value >= 0 else (-value << 1) - 1


def _key(field: int, wire: int) -> bytes:
    return _varint(field << 3 | wire)


def _sized(content: bytes) -> bytes:
    return _varint(len(content)) + content


def _number(field: int, value: int) -> bytes:
    return _key(field, _VARINT) + _varint(value)


def _double(field: int, value: float) -> bytes:
    return _key(field, _DOUBLE) + struct.pack("<d", value)


def _message(field: int, content: bytes) -> bytes:
    return _key(field, _BYTES) + _sized(content)


def _text(field: int, text: str) -> bytes:
    return _message(field, text.encode(errors="replace"))
