"""WheeldDataSource: the class behind `format("wheeld")` in Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from wheeld_pipeline.datasource.options import Options
from wheeld_pipeline.datasource.schema import DEFAULT_SCHEMA

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceReader
    from pyspark.sql.types import StructType

    from wheeld_pipeline.datasource.stream_reader import ExpirationReader
    from wheeld_pipeline.datasource.writer import BatchWriter, StreamWriter


class WheeldDataSource(DataSource):
    """Timers of the wheeld daemon on each executor's host.

    ::

        datasource.register(spark)
        rows.write.format("wheeld").mode("append").option("name", "default").save()
        rows.writeStream.format("wheeld").option("checkpointLocation", ...).start()
        spark.readStream.format("wheeld").load()     # what expired
        spark.read.format("wheeld").load()           # what is pending

    **Writing** (`DataFrame.write` with mode `append`, or `writeStream`) schedules one timer a row:

    ========== ================ ==================================================================
    column     type             meaning
    ========== ================ ==================================================================
    `delay`    double           seconds from when the row is taken up by its task; not negative
    `deadline` timestamp        or: the point in time, by the wall clock; the past fires at once
    `cookie`   bigint           optional: 64 bits, handed back with the expiration
    `payload`  binary           optional: at most the daemon's `--payload-bytes`, null is empty
    `target`   string           optional: worker or `group:NAME` that receives it, as `to=`;
                                null: a stream that reads the same journal
    ========== ================ ==================================================================

    Exactly one of `delay` and `deadline`. Names are case-insensitive. A delay may also be an
    integer, a float, a decimal or a day-time interval; a cookie a smaller integer or a decimal of
    64 bits. Other columns are refused.

    A batch (of a streaming query: query id and batch id; else: the option `job`) is scheduled
    exactly once: its rows are written down in the journal first, then scheduled under keys of their
    own. Whichever process dies, the next attempt continues where the last one ended. A batch that
    is aborted, or whose driver died, stays in the journal as begun; the restarted query completes
    it. An aborted `write` without a stream is taken back: what has not expired yet is cancelled.

    **Reading a stream** yields each expiration once, with the columns

    ============= ========= ===================================================
    column        type      meaning
    ============= ========= ===================================================
    `timer_id`    bigint    the bits of the timer's id
    `cookie`      bigint    as scheduled
    `deadline`    timestamp when it was due
    `fired`       timestamp when the clock dealt with it; null: pending
    `lateness_ns` bigint    fired - deadline; null: pending
    `missed`      bigint    periodic timers: whole intervals skipped
    `payload`     binary    as scheduled; empty without one
    `host`        string    the daemon's host: its name, or `WHEELD_HOST` there
    `daemon`      string    name of the daemon
    ============= ========= ===================================================

    from timers that were written with the same `journal`, without a `target`, on all hosts that
    share it. The driver collects the expirations of its own host; for other hosts, batches have
    tasks that do so wherever Spark runs them. Only one query at a time can read a journal.

    **Reading a batch** gives the timers that are pending in the daemon of the driver's host,
    whoever scheduled them, soonest first within a partition; `fired` and `lateness_ns` are null.
    With `.schema(...)` a subset of the columns, and also `worker string` (the owner,
    which a detached timer lacks), `target string`, `clock string`, `interval_ns bigint`,
    `due_ns bigint` (time that is left).

    Options (all strings):

    ======================= ==================================================================
    `name`                  name of the daemon, or the path of its runtime directory
                            (default "default")
    `runtime_dir`           directory that holds the runtime directory; default: the usual places
    `journal`               directory of the durable account; writer and reader that belong
                            together name the same. On several hosts: a shared file system.
                            Default: `~/.local/state/wheeld/spark/<name>`
    `timeout`               seconds that an attempt waits for another one of its partition, and a
                            query for another one of its journal (default 60)
    `job`                   `write` only: a name for this write; a second one of the same name
                            schedules what the first did not, and nothing twice
    `max_rows_per_trigger`  stream: at most so many expirations in a batch
    `partition_rows`        rows of one partition when reading (default 500000)
    `visit_interval`        stream: seconds between two visits to hosts other than the driver's, as
                            long as one of them has timers (default 1)
    `fail_on_data_loss`     "true" (default): an error when timers are known to be lost, because
                            the daemon has a fresh wheel; "false": go on
    ======================= ==================================================================

    An unknown option is refused.

    Raises
    ------
    PipelineError
        As the cause of what Spark raises; names option, column or host.
    """

    @classmethod
    def name(cls) -> str:
        """The short name of the format."""
        return "wheeld"

    def schema(self) -> StructType | str:
        """The nine columns of an expiration."""
        Options.parse(self.options)
        return DEFAULT_SCHEMA

    def reader(self, schema: StructType) -> DataSourceReader:
        from wheeld_pipeline.datasource.batch_reader import PendingReader

        return PendingReader(Options.parse(self.options), schema)

    def streamReader(self, schema: StructType) -> ExpirationReader:
        from wheeld_pipeline.datasource.stream_reader import ExpirationReader

        return ExpirationReader(Options.parse(self.options), schema)

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        from wheeld_pipeline.datasource.writer import BatchWriter

        return BatchWriter(Options.parse(self.options), schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:
        from wheeld_pipeline.datasource.writer import StreamWriter

        return StreamWriter(Options.parse(self.options), schema, overwrite)
