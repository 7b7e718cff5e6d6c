"""The tasks of a batch as Spark runs them: one for each shard.

Commands are distributed to the shards by key, in one job with a shuffle. Most batches have no
commands to distribute and only visit wheels. Their job has neither a shuffle nor SQL, and costs
less than half.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Callable, Iterable, Iterator
from functools import cache, lru_cache
from typing import TYPE_CHECKING

from wheeld_pipeline.overflow.batch.task import Errand, Result, tend
from wheeld_pipeline.overflow.driver import commands
from wheeld_pipeline.overflow.driver.manifest import result_of

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark import RDD
    from pyspark.sql import DataFrame, SparkSession


class Tasks:
    """Runs them.

    Parameters
    ----------
    session : SparkSession
        The query's.
    shards : int
    """

    def __init__(self, session: SparkSession, shards: int) -> None:
        self._shards = shards
        self._numbers = lru_cache(_numbers_of(session))

    def with_rows(self, rows: DataFrame, errands: list[Errand]) -> list[Result]:
        spread = commands.understood(rows).repartition(self._shards, commands.place())
        said = spread.mapInArrow(_with_commands(errands), "result string").collect()
        return [result_of(json.loads(row[0])) for row in said]

    def alone(self, errands: list[Errand]) -> list[Result]:
        def run(number: int, _: Iterable[int]) -> Iterator[str]:
            yield _text(tend(errands[number], []))
            _freeze()

        said = self._numbers(len(errands)).mapPartitionsWithIndex(run).collect()
        return [result_of(json.loads(text)) for text in said]


def _numbers_of(session: SparkSession) -> Callable[[int], RDD[int]]:
    """Makes an RDD of that many partitions; it is kept, because making it goes through a file."""

    def numbers(count: int) -> RDD[int]:
        return session.sparkContext.parallelize(range(count), count)

    return numbers


def _with_commands(
    errands: list[Errand],
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function for `mapInArrow`: a partition has the rows of the shard with its number."""

    def run(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        result = tend(errands[context.partitionId()], list(batches))
        yield pa.RecordBatch.from_pydict({"result": [_text(result)]})
        _freeze()

    return run


@cache
def _freeze() -> None:
    """After a worker's first task, exclude its imported modules from garbage collection.

    Spark's workers collect after each task; with all these modules that takes longer than the task
    of a shard with little to do.
    """
    gc.collect()
    gc.freeze()


def _text(result: Result) -> str:
    return json.dumps(result._asdict() | {"position": result.position._asdict()})
