"""The identity of an overflow, which must be the same in its checkpoint and its sink."""

from __future__ import annotations

import json
import secrets
from typing import Any, Final, NamedTuple

from wheeld_pipeline.errors import PipelineError
from wheeld_pipeline.overflow.checkpoint.files import Files
from wheeld_pipeline.overflow.columns.digests import SECRET_BYTES
from wheeld_pipeline.overflow.driver.sink import CARD, LOCK, STAGING
from wheeld_pipeline.overflow.machine import EXPIRED, REJECTED

FORMAT: Final = 2
IN_SPARKS_STATE: Final = 1
"""The format of checkpoints whose timers were in Spark's state store."""
QUERY: Final = "query"
"""Spark's own folder in the checkpoint."""


class Job(NamedTuple):
    """The identity file of an overflow, in its checkpoint and in its sink."""

    id: str
    shards: int
    secret: str = ""
    """The secret of the digests of keys, as hex; only in the checkpoint."""


def claim(checkpoint: Files, sink: Files, shards: int) -> Job:
    """Open the checkpoint, or begin one.

    Raises
    ------
    PipelineError
        It belongs to another job, or has another number of shards; or the sink belongs to another
        job. Keys are assigned to shards for good, and batches are numbered from the checkpoint's
        beginning, so any of these would lose or double results.
    """
    for files in (checkpoint, sink):
        files.sweep()
    job = _read(checkpoint)
    if job is None:
        found = checkpoint.names()
        if found:
            raise PipelineError(
                f"{checkpoint.base} holds {', '.join(sorted(found)[:3])} and no {CARD}: it is the "
                "checkpoint of another job; give an empty directory"
            )
        job = Job(secrets.token_hex(8), shards, secrets.token_hex(SECRET_BYTES))
    elif job.shards != shards:
        raise PipelineError(
            f"{checkpoint.base} has {job.shards} shards, got {shards}: the number stays for the "
            f"life of a checkpoint; say --shards {job.shards}, or start over elsewhere"
        )
    theirs = _read(sink)
    begun = sink.exists(EXPIRED) or sink.exists(REJECTED)
    if theirs is not None and begun and theirs.id != job.id:
        raise PipelineError(
            f"{sink.base} is the sink of job {theirs.id}, and {checkpoint.base} belongs to "
            f"{job.id}: "
            "its results would be replaced; give an empty sink, or its own checkpoint"
        )
    if (theirs is None or not begun) and set(sink.names()) - {CARD, LOCK, STAGING}:
        raise PipelineError(f"{sink.base} is not empty and has no {CARD}: give an empty directory")
    # The sink first: a checkpoint with a card has a sink with one.
    if theirs is None or theirs.id != job.id:  # that of a job that ended before its first batch
        sink.remove(CARD)
        _write(sink, job._replace(secret=""))
    _write(checkpoint, job)
    return job


def _write(files: Files, job: Job) -> None:
    files.make()
    files.put_new(json.dumps({"format": FORMAT, **job._asdict()}), CARD)


def _read(files: Files) -> Job | None:
    if not files.exists(CARD):
        return None
    try:
        card: dict[str, Any] = json.loads(files.read_text(CARD))
        form = card.pop("format")
        if form == FORMAT:
            return Job(**card)
    except Exception as error:  # of JSON, or of Java: a checksum that is wrong
        said = str(error).splitlines()[0][:200]
        raise PipelineError(
            f"{files.at(CARD)}: {said}; expected what an overflow of this version writes"
        ) from error
    raise PipelineError(f"{files.at(CARD)}: {_other(form)}")


def _other(form: object) -> str:
    if form == IN_SPARKS_STATE:
        return (
            "format 1, whose timers are in Spark's state store, and this version keeps them in "
            "columns (format 2): let the version that made it run until nothing is pending, or "
            "send the commands again to an empty checkpoint and an empty sink"
        )
    return f"format {form!r}, expected {FORMAT}: another version of wheeld has made it"
