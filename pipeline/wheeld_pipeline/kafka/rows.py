"""Records of Kafka as Arrow batches, and the columns that a sink accepts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from wheeld_pipeline.datasource import schema as columns
from wheeld_pipeline.errors import PipelineError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

SCHEMA: Final = {
    "key": "binary",
    "value": "binary",
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "timestamp": "timestamp",
    "timestampType": "int",
}
"""Columns of a record, as in Spark's own source."""
_WRITTEN: Final = {
    "key": ("binary", "string"),
    "value": ("binary", "string"),
    "topic": ("string",),
    "partition": ("integer",),
    "generation": ("byte", "short", "integer", "long"),
}
_NO_TIME: Final = 0


def batch_of(schema: pa.Schema, messages: list[Any]) -> pa.RecordBatch:
    import pyarrow as pa

    count = len(messages)

    def times() -> Any:
        stamps = [message.timestamp() for message in messages]
        millis = [None if kind == _NO_TIME else at for kind, at in stamps]
        return pa.array(millis, pa.timestamp("ms", "UTC"))

    def kinds() -> Any:
        return pa.array([max(message.timestamp()[0] - 1, 0) for message in messages], pa.int32())

    makers: dict[str, columns.Maker] = {
        "key": lambda: pa.array([message.key() for message in messages], pa.binary()),
        "value": lambda: pa.array([message.value() for message in messages], pa.binary()),
        "topic": lambda: columns.constant(messages[0].topic(), count),
        "partition": lambda: pa.repeat(pa.scalar(messages[0].partition(), pa.int32()), count),
        "offset": lambda: pa.array([message.offset() for message in messages], pa.int64()),
        "timestamp": times,
        "timestampType": kinds,
    }
    return columns.batch_of(schema, makers)


def check_written(schema: StructType, topic: str | None) -> None:
    """Raise unless rows of that schema can be records.

    Raises
    ------
    PipelineError
        A column is unknown or of a wrong type, there is no value, or no topic.
    """
    for field in schema.fields:
        if field.name not in _WRITTEN:
            raise PipelineError(
                f"column {field.name!r}: expected value, and key, topic, partition, generation; "
                "select what is to be written"
            )
        if field.dataType.typeName() not in _WRITTEN[field.name]:
            wanted = " or ".join(_WRITTEN[field.name])
            got = field.dataType.simpleString()
            raise PipelineError(f"column {field.name!r} is {got}: expected {wanted}; cast it")
    if "value" not in schema.names:
        raise PipelineError(f"got the columns {', '.join(schema.names)}: expected value")
    if "generation" in schema.names and "key" not in schema.names:
        raise PipelineError("column 'generation' without 'key': it counts the records of a key")
    if ("topic" in schema.names) == (topic is not None):
        raise PipelineError("expected either the option topic or the column topic")
