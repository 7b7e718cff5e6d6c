"""The wheel above the wheels: durable timers in columns, handed to daemons when near.

    from wheeld_pipeline import overflow
    plan = overflow.Plan("commands", "sink", "checkpoint", overflow.ShardMap.uniform(8, Daemon()))
    query = overflow.start(spark, plan)
    overflow.read_sink(spark, "sink").show()

docs/overflow.md defines the semantics; batch/step.py implements them.
"""

from wheeld_pipeline.overflow.driver.query import Batch, Plan, start
from wheeld_pipeline.overflow.driver.run import Account, run
from wheeld_pipeline.overflow.driver.sink import read as read_sink
from wheeld_pipeline.overflow.machine import Rules
from wheeld_pipeline.overflow.shards import Daemon, ShardMap

__all__ = ["Account", "Batch", "Daemon", "Plan", "Rules", "ShardMap", "read_sink", "run", "start"]
