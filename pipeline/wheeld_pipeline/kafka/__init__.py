"""The Spark data source `wheeld.kafka`: topics of Kafka as rows and back, without a jar.

    from wheeld_pipeline import kafka
    kafka.register(spark)
    spark.readStream.format("wheeld.kafka").option("kafka.bootstrap.servers", "host:9092")...

It speaks through confluent-kafka (extra `kafka`), in Spark's Python workers; the page of the format
is the docstring of `KafkaDataSource`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wheeld_core import extras
from wheeld_pipeline.errors import PipelineError

try:
    import confluent_kafka  # noqa: F401
except ImportError as error:
    raise PipelineError(
        f"wheeld.kafka needs confluent-kafka, which is not installed: {extras.command('kafka')}"
    ) from error
from wheeld_pipeline.session import needs_pyspark

needs_pyspark("4.2", "the data source wheeld.kafka")
from wheeld_pipeline.kafka.source import KafkaDataSource  # noqa: E402 - of 4.2

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["KafkaDataSource", "register"]


def register(spark: SparkSession) -> None:
    """Make `format("wheeld.kafka")` known to a session.

    `wheeld[kafka]` must be installed wherever the session runs tasks.
    """
    spark.dataSource.register(KafkaDataSource)
