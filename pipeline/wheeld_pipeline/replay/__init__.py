"""Replay: a workload's Parquet against a running daemon, each request accounted for.

source      the files: checked, in order, streamed in batches
worker      a worker process; its driver is `wheeld_client.replay`
run         all of it
"""

from wheeld_client.replay import Outcome
from wheeld_pipeline.replay.run import replay

__all__ = ["Outcome", "replay"]
