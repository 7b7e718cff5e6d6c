"""PendingReader: the timers that are pending in the daemon of the driver's host."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
from pyspark.sql.datasource import DataSourceReader, InputPartition

from wheeld_client import Observer, PendingTimers, WheelError
from wheeld_pipeline.datasource import schema as columns
from wheeld_pipeline.datasource.journal import host_name
from wheeld_pipeline.datasource.options import Options
from wheeld_pipeline.errors import PipelineError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

BATCH_ROWS: Final = 1 << 16
SLOTS: Final = 1 << 20
"""Slots that one partition reads."""
CLOCKS: Final = ("monotonic", "realtime", "boottime", "monotonic")


@dataclass
class SlotsPartition(InputPartition):
    host: str
    wheel: int
    begin: int
    end: int


class PendingReader(DataSourceReader):
    """See the module."""

    def __init__(self, options: Options, schema: StructType) -> None:
        columns.check_schema(schema, columns.EXPIRATION | columns.PENDING_ONLY)
        self._options, self._schema = options, schema

    def partitions(self) -> list[InputPartition]:
        with self._observer() as observer:
            return [
                SlotsPartition(host_name(), observer.wheel_token, at, at + SLOTS)
                for at in range(0, observer.capacity, SLOTS)
            ]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The timers that are armed there now, soonest first."""
        assert isinstance(partition, SlotsPartition)
        with self._observer() as observer:
            if (host_name(), observer.wheel_token) != (partition.host, partition.wheel):
                raise PipelineError(
                    f"host {host_name()}: this task was to read the daemon {observer.name!r} of "
                    f"host {partition.host}: a batch reads only the daemon of the driver's host"
                )
            found, name = observer.pending(partition.begin, partition.end), observer.name
        order = np.argsort(found.timers["due"], kind="stable")
        schema = columns.arrow_schema(self._schema)
        for at in range(0, len(order), BATCH_ROWS):
            yield _batch(schema, found.timers[order[at : at + BATCH_ROWS]], found, name)

    def _observer(self) -> Observer:
        try:
            return Observer(self._options.name, self._options.runtime_dir)
        except (WheelError, OSError) as error:
            raise PipelineError(f"host {host_name()}: {error}") from error


def _batch(
    schema: pa.Schema, timers: npt.NDArray[np.void], found: PendingTimers, daemon: str
) -> pa.RecordBatch:
    count = len(timers)
    now = np.int64(found.now[1])
    last = np.iinfo(np.int64).max
    due = np.where(timers["due"] > last - now, last, now + timers["due"])
    wall = np.where(timers["clock"] == 1, timers["deadline"], due) // 1000
    makers: dict[str, columns.Maker] = {
        "timer_id": lambda: columns.numbers(timers["timer_id"]),
        "cookie": lambda: columns.numbers(timers["cookie"]),
        "deadline": lambda: columns.timestamps(wall),
        "fired": lambda: columns.nothing(count),
        "lateness_ns": lambda: columns.nothing(count),
        "missed": lambda: columns.numbers(np.zeros(count, np.int64)),
        "payload": lambda: columns.payloads(timers),
        "host": lambda: columns.constant(host_name(), count),
        "daemon": lambda: columns.constant(daemon, count),
        "worker": lambda: _names(timers["owner"], found.workers),
        "target": lambda: _names(timers["target"], found.targets),
        "clock": lambda: _names(timers["clock"], dict(enumerate(CLOCKS))),
        "interval_ns": lambda: columns.numbers(timers["interval"]),
        "due_ns": lambda: columns.numbers(timers["due"]),
    }
    return columns.batch_of(schema, makers)


def _names(keys: npt.NDArray[Any], names: dict[int, str]) -> Any:
    """Keys by their names; null if there is none."""
    import pyarrow as pa

    found, places = np.unique(keys, return_inverse=True)
    texts = pa.array([names.get(int(key)) for key in found], pa.string())
    return texts.take(pa.array(places))
