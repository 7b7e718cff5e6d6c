"""Whose checkpoint and whose sink: what must stay the same over the life of an overflow."""

from __future__ import annotations

import json
import secrets
from typing import Any, Final, NamedTuple

from wheeld_pipeline.errors import PipelineError
from wheeld_pipeline.overflow.machine import EXPIRED, REJECTED
from wheeld_pipeline.overflow.sink import STAGING, Files

CARD: Final = "_overflow.json"
FORMAT: Final = 1
QUERY: Final = "query"
SAID: Final = "said"
"""Folders in the checkpoint: Spark's own, and what the wheels said."""


class Job(NamedTuple):
    """The name card of an overflow, in its checkpoint and in its sink."""

    id: str
    shards: int


def claim(checkpoint: Files, sink: Files, shards: int) -> Job:
    """Take the checkpoint up, or begin one.

    Raises
    ------
    PipelineError
        It is another job's, or has another number of shards; or the sink is another job's. Keys are
        spread over the shards for good, and batches are numbered from the checkpoint's beginning:
        each would end in results that are lost or doubled.
    """
    job = _read(checkpoint)
    if job is None:
        found = checkpoint.names()
        if found:
            raise PipelineError(
                f"{checkpoint.base} holds {', '.join(sorted(found)[:3])} and no {CARD}: it is the "
                "checkpoint of another job; give an empty directory"
            )
        job = Job(secrets.token_hex(8), shards)
    elif job.shards != shards:
        raise PipelineError(
            f"{checkpoint.base} has {job.shards} shards, got {shards}: the number stays for the "
            f"life of a checkpoint; say --shards {job.shards}, or begin anew elsewhere"
        )
    theirs = _read(sink)
    if theirs is not None and not (sink.exists(EXPIRED) or sink.exists(REJECTED)):
        theirs = None  # of a job that ended before it had begun
    elif theirs is not None and theirs.id != job.id:
        raise PipelineError(
            f"{sink.base} is the sink of job {theirs.id}, and {checkpoint.base} belongs to "
            f"{job.id}: "
            "its results would be replaced; give an empty sink, or the checkpoint that it has"
        )
    if theirs is None and set(sink.names()) - {CARD, STAGING}:
        raise PipelineError(f"{sink.base} is not empty and has no {CARD}: give an empty directory")
    for files in (sink, checkpoint):  # the sink first: a checkpoint with a card has a sink with one
        if _read(files) != job:
            files.make()
            files.write_text(json.dumps({"format": FORMAT, **job._asdict()}), CARD)
    checkpoint.make(SAID)
    return job


def _read(files: Files) -> Job | None:
    if not files.exists(CARD):
        return None
    try:
        card: dict[str, Any] = json.loads(files.read_text(CARD))
        if card.pop("format") != FORMAT:
            raise ValueError("another format")
        return Job(**card)
    except Exception as error:  # of JSON, or of Java: a checksum that is wrong
        said = str(error).splitlines()[0][:200]
        raise PipelineError(
            f"{files.at(CARD)}: {said}; expected what an overflow of this version writes"
        ) from error
