"""Incoming commands of the overflow: JSON text or columns, checked row by row.

A command is one JSON object, or one row of Parquet with these columns:

    op        schedule, cancel or reschedule
    key       text that names the timer
    sequence  whole number that grows with each command of a key: a counter, microseconds, an offset
    deadline  schedule, reschedule: ISO 8601 (UTC if it names no zone), or seconds since 1970
    cookie    schedule: whole number of 64 bits, signed; default 0
    payload   schedule: text (Parquet: text or binary)

The column `wrong` says what is wrong with a command; such a row keeps its text, and ends among the
rejects.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from wheeld_pipeline.errors import PipelineError, UsageError
from wheeld_pipeline.overflow.machine import COMMANDS, UNREADABLE

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

FORMATS: Final = ("json", "parquet", "kafka")
OBSERVED: Final = "overflow"
"""The name of its observed metrics, for listeners of Spark."""
KEY_BYTES: Final = 1024
PAYLOAD_BYTES: Final = 65_528
LAST_DEADLINE_S: Final = 9_200_000_000
"""The wheels count nanoseconds in 63 bits."""
_JSON: Final = (
    "op string, key string, sequence string, deadline string, cookie string, payload string, "
    "_corrupt string"
)
_PARQUET: Final = (
    "op string, key string, sequence bigint, deadline timestamp, cookie bigint, payload binary"
)


def read(spark: SparkSession, form: str, path: str, options: dict[str, str]) -> DataFrame:
    """The stream of unparsed commands, for `understood`.

    It does not parse, because Spark plans the stream again for each batch, and most batches have no
    commands. `form` is json (files of one JSON object per line), parquet or kafka, for which `path`
    has no meaning. `options` are options of Spark's source.

    `PipelineError`: there is no such format, or Spark has no Kafka source here.
    """
    if form not in FORMATS:
        raise UsageError(f"commands as {form!r}: expected one of {', '.join(FORMATS)}")
    # By default Spark skips files that are a week older than the newest one; no command may be
    # skipped.
    reader = spark.readStream.options(**({"maxFileAge": "3650d"} | options))
    if form == "json":
        return reader.format("text").load(path)
    if form == "parquet":
        return reader.schema(_PARQUET).format("parquet").load(path)
    try:
        rows = reader.format("kafka").load()
    except Exception as error:
        raise PipelineError(
            f"cannot read from Kafka: {str(error).splitlines()[0]} (the source needs --packages "
            "org.apache.spark:spark-sql-kafka-0-10_2.13:VERSION, as spark-submit takes it, and "
            "the options kafka.bootstrap.servers and subscribe)"
        ) from error
    return rows.selectExpr("CAST(value AS STRING) AS value", "offset")


def counted(rows: DataFrame) -> DataFrame:
    """The same rows; Spark's progress of each batch then has their number, see OBSERVED."""
    from pyspark.sql import functions as F

    return rows.observe(OBSERVED, F.count(F.lit(1)).alias("commands"))


def understood(rows: DataFrame) -> DataFrame:
    """The columns that a shard's task gets: `op` (an index in COMMANDS), `sequence`, `deadline_us`,
    `cookie`, `key_bytes` (the length of its key; -1: it has no key), `has_payload`, `blob` (key and
    payload, or key and text of a command that is wrong), `wrong`."""
    return parse(rows) if "value" in rows.columns else check(rows)


def parse(rows: DataFrame) -> DataFrame:
    """Commands from the column `value`, JSON text; a column `offset` is used where there is no
    sequence."""
    from pyspark.sql import functions as F

    if "offset" not in rows.columns:
        rows = rows.withColumn("offset", F.lit(None).cast("bigint"))
    said = F.from_json(
        "value", _JSON, {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": "_corrupt"}
    )
    rows = rows.where(F.trim("value") != "").withColumn("c", said)
    number = F.col("c.deadline").rlike(r"^\s*[-+]?[0-9.]+([eE][-+]?[0-9]+)?\s*$")
    seconds = F.when(number, F.expr("try_cast(c.deadline AS double)"))
    far = F.abs(seconds) > LAST_DEADLINE_S  # beyond what a bigint of microseconds could hold
    micros = F.when(far, -1).otherwise(F.round(seconds * 1e6).cast("bigint"))
    stamp = F.when(~number, F.expr("unix_micros(try_cast(c.deadline AS timestamp))"))
    unreadable = F.when(
        F.col("c").isNull() | F.col("c._corrupt").isNotNull(), F.lit("it is not a JSON object")
    )
    for name in ("sequence", "cookie"):
        unreadable = F.coalesce(unreadable, _no_integer(name))
    late = F.col("c.deadline").isNotNull() & F.coalesce(stamp, seconds).isNull()
    unreadable = F.coalesce(unreadable, F.when(late, _says("deadline", "c.deadline", "a time")))
    fields = rows.select(
        F.col("c.op").alias("op"),
        F.col("c.key").alias("key"),
        F.coalesce(F.expr("try_cast(c.sequence AS bigint)"), "offset").alias("sequence"),
        F.coalesce(stamp, micros).alias("deadline_us"),
        F.expr("try_cast(c.cookie AS bigint)").alias("cookie"),
        F.encode("c.payload", "utf-8").alias("payload"),
        F.col("value").alias("raw"),
        unreadable.alias("wrong"),
    )
    return _checked(fields)


def check(rows: DataFrame) -> DataFrame:
    """Commands from columns, as in Parquet."""
    from pyspark.sql import functions as F

    raw = F.to_json(F.struct("op", "key", "sequence", "deadline", "cookie"))
    fields = rows.select(
        "op",
        "key",
        "sequence",
        F.unix_micros("deadline").alias("deadline_us"),
        "cookie",
        "payload",
        raw.alias("raw"),
        F.lit(None).cast("string").alias("wrong"),
    )
    return _checked(fields)


def place() -> Column:
    from pyspark.sql import functions as F

    return F.expr("substring(blob, 1, greatest(key_bytes, 0))")


def beat(spark: SparkSession, like: DataFrame) -> DataFrame:
    """A stream with the columns of another one and without rows, of which Spark reads one in each
    batch.

    Spark makes no batch without a row, but wheels must be visited with or without commands.
    """
    from pyspark.sql import functions as F

    rows = spark.readStream.format("rate-micro-batch").options(rowsPerBatch="1", numPartitions="1")
    nothing = [F.lit(None).cast(field.dataType).alias(field.name) for field in like.schema]
    return rows.load().where("value < 0").select(*nothing)


def _checked(fields: DataFrame) -> DataFrame:
    """Report the first thing that is wrong; join key and payload."""
    from pyspark.sql import functions as F

    def unless(fine: Column, said: Column) -> Column:
        return F.when(~F.coalesce(fine, F.lit(False)), said)

    timed = F.col("op") == "cancel"
    soon = F.col("deadline_us").between(0, LAST_DEADLINE_S * 1_000_000)
    wrong = F.coalesce(
        "wrong",
        unless(F.col("op").isin(*COMMANDS), _says("op", "op", f"one of {', '.join(COMMANDS)}")),
        unless(
            F.octet_length("key").between(1, KEY_BYTES) & F.is_valid_utf8("key"),
            _text(f"key: expected 1 to {KEY_BYTES} bytes of text"),
        ),
        unless(F.col("sequence") >= 0, _says("sequence", "sequence", "a whole number, 0 or more")),
        unless(timed | F.col("deadline_us").isNotNull(), _text("deadline is missing")),
        unless(timed | soon, _text("deadline: expected a time from 1970 to 2261")),
        F.when(
            F.octet_length("payload") > PAYLOAD_BYTES,
            _text(f"payload: expected at most {PAYLOAD_BYTES} bytes"),
        ),
    )
    codes = " ".join(f"WHEN '{name}' THEN {code}" for code, name in enumerate(COMMANDS))
    fine = F.col("wrong").isNull()
    key = F.make_valid_utf8("key")
    behind = F.when(fine, F.coalesce("payload", F.lit(b""))).otherwise(
        F.encode(F.coalesce(F.make_valid_utf8("raw"), F.lit("")), "utf-8")
    )
    rows = fields.withColumn("wrong", F.make_valid_utf8(wrong))
    return rows.select(
        F.when(fine, F.expr(f"CASE op {codes} END"))
        .otherwise(UNREADABLE)
        .cast("tinyint")
        .alias("op"),
        "sequence",
        "deadline_us",
        F.coalesce("cookie", F.lit(0).cast("bigint")).alias("cookie"),
        F.coalesce(F.octet_length(key), F.lit(-1)).alias("key_bytes"),
        (fine & F.col("payload").isNotNull()).alias("has_payload"),
        F.concat(F.coalesce(F.encode(key, "utf-8"), F.lit(b"")), behind).alias("blob"),
        "wrong",
    )


def _text(said: str) -> Column:
    from pyspark.sql import functions as F

    return F.lit(said)


def _says(field: str, column: str, wanted: str) -> Column:
    from pyspark.sql import functions as F

    got = F.coalesce(F.substring(F.col(column).cast("string"), 1, 40), F.lit("nothing"))
    return F.concat(F.lit(f"{field}: got "), got, F.lit(f", expected {wanted}"))


def _no_integer(field: str) -> Column:
    from pyspark.sql import functions as F

    bad = F.col(f"c.{field}").isNotNull() & F.expr(f"try_cast(c.{field} AS bigint)").isNull()
    return F.when(bad, _says(field, f"c.{field}", "a whole number of 64 bits"))
