"""Requests played against a daemon by a crew of worker processes, each request accounted for.

The demo plays requests that it made, `wheeld pipeline replay` those of a workload's files. Nothing
of the client loads this.

feed        one worker's share of the requests, by time
window      what is in flight, and the account of it
calendar    when which request is done
payloads    bytes that tell requests apart
histogram   percentiles in bounded memory
player      one worker's loop over all that
worker      the process around a player
board       what workers and parent tell each other while it runs
crew        the worker processes, seen from the parent
verdict     what became of all requests, for people
"""

from wheeld_client.replay.crew import Crew, running
from wheeld_client.replay.feed import FLAT_OUT, Columns, Feed
from wheeld_client.replay.histogram import LatenessHistogram
from wheeld_client.replay.payloads import payload_rows, payload_texts
from wheeld_client.replay.player import Player, PlayListener
from wheeld_client.replay.verdict import WORDS, faults_of, percentile_row, verdict_lines
from wheeld_client.replay.worker import ReplayWorker, main

__all__ = [
    "FLAT_OUT",
    "WORDS",
    "Columns",
    "Crew",
    "Feed",
    "LatenessHistogram",
    "PlayListener",
    "Player",
    "ReplayWorker",
    "faults_of",
    "main",
    "payload_rows",
    "payload_texts",
    "percentile_row",
    "running",
    "verdict_lines",
]
