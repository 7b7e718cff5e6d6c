"""Replay: a workload's Parquet against a running daemon, each request accounted for.

source      the files: checked, in order, streamed in batches
feed        one worker's share of them, by time
window      what is in flight, and the account of it
calendar    when which request is done
histogram   percentiles in bounded memory
player      one worker's loop over all that
worker      the process around a player
board       what workers and parent tell each other while it runs
crew        the worker processes, seen from the parent
outcome     the account of all workers
run         all of it
"""

from wheeld_pipeline.replay.outcome import Outcome
from wheeld_pipeline.replay.run import replay

__all__ = ["Outcome", "replay"]
