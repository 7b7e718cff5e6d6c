"""Plays requests against a daemon, with a crew of worker processes, and accounts for each request.

The demo plays requests that it generates, `wheeld pipeline replay` plays the files of a workload.
Nothing else in the client loads this.

feed        one worker's share of the requests, by time, and bytes that tell requests apart
calendar    when which request is done
histogram   percentiles in bounded memory
account     what is in flight, what became of each request, and whether that was right
player      one worker's loop over all that
crew        the parent, and the worker processes
"""

from wheeld_client.replay.account import (
    EVENT_FAULTS,
    WORDS,
    Account,
    Outcome,
    add_up,
    event_faults,
    percentile_row,
    verdict_lines,
)
from wheeld_client.replay.crew import Crew, main, running
from wheeld_client.replay.feed import FLAT_OUT, Columns, Feed, payload_rows, payload_texts
from wheeld_client.replay.histogram import LatenessHistogram
from wheeld_client.replay.player import Player

__all__ = [
    "EVENT_FAULTS",
    "FLAT_OUT",
    "WORDS",
    "Account",
    "Columns",
    "Crew",
    "Feed",
    "LatenessHistogram",
    "Outcome",
    "Player",
    "add_up",
    "event_faults",
    "main",
    "payload_rows",
    "payload_texts",
    "percentile_row",
    "running",
    "verdict_lines",
]
